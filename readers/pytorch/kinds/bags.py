"""Kinds of bags of embeddings: sums, means or maxima of rows of a table, bag by bag."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiValueError
from mspc.ir.types import INT64
from mspc.readers.pytorch.kinds.kind import row


def bags(
    weight: Any, indices: Any, offsets: Any, scaled: Any, mode: Any, per_sample_weights: Any, include_last_offset: Any,
    padding_idx: Any,
) -> Any:  # fmt: skip
    """Rows of a table, bag by bag: what is made of them; of what is for PyTorch's gradient nothing. Bags begin at
    `offsets`; mode 0 is their sum, 1 their mean."""
    if mode not in (0, 1) or scaled:
        raise ApiValueError("embedding_bag: sums and means are read, and neither maxima nor gradients by frequency")
    count = offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]
    places = ops.cast(ops.arange(indices.shape[0]), offsets.dtype)
    begun = ops.LessEqual()(ops.ExpandDims()(offsets[:count], 0), ops.ExpandDims()(places, 1))
    bag = ops.ReduceSum()(ops.cast(begun, INT64), 1) - 1
    rows = ops.Gather()(weight, indices, 0)
    if per_sample_weights is not None:
        rows = rows * ops.ExpandDims()(per_sample_weights, 1)
    counted = ops.ones_like(bag)
    if padding_idx is not None:
        counted = ops.cast(ops.NotEqual()(indices, padding_idx % weight.shape[0]), INT64)
        rows = rows * ops.ExpandDims()(ops.cast(counted, rows.dtype), 1)
    sums = ops.UnsortedSegmentSum()(rows, bag, count)
    if mode == 1:
        sizes = ops.UnsortedSegmentSum()(counted, bag, count)
        sums = sums / ops.ExpandDims()(ops.cast(ops.Maximum()(sizes, ops.ones_like(sizes)), rows.dtype), 1)
    return sums, None, None, None


_REST = "mode=0, -sparse=False, per_sample_weights=None, include_last_offset=False"
BAGS = (
    row("embedding_bag.padding_idx",
        "weight, indices, offsets, scale_grad_by_freq, mode, -sparse, per_sample_weights, include_last_offset, "
        "padding_idx", bags),
    row("embedding_bag.default", f"weight, indices, offsets, scale_grad_by_freq=False, {_REST}",
        lambda *given: bags(*given, None)),
)  # fmt: skip
"""Kinds of bags."""
