"""Kinds of mixtures of experts: rows in groups, each group with a matrix of its own."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiValueError
from mspc.readers.pytorch.kinds.kind import row


def grouped_product(rows: Any, matrices: Any, ends: Any) -> Any:
    """The rows [m, k] of every group, which ends at a row, times its matrix of [groups, k, n]."""
    if len(rows.shape) != 2 or len(matrices.shape) != 3 or ends is None:
        raise ApiValueError("grouped products: only rows [m, k] by matrices [groups, k, n] with ends are read")
    return ops.GroupedProduct()(rows, matrices, ends)


EXPERTS = (
    row("transformers.grouped_mm_fallback.default", "input, weight, offs", grouped_product),
    row("_grouped_mm.default", "self, mat2, offs=None, !bias=None, -out_dtype=None", grouped_product),
)
"""Kinds of groups."""
