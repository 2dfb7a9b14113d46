"""This module takes step by step what a data set hands out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.api.common.tensor import Tensor

__all__: tuple[str, ...] = ()


def as_row(given: Any) -> Sequence[Any]:
    """The columns of a step; a data set of one column may hand out its tensor alone, as in MindSpore."""
    return (given,) if isinstance(given, Tensor) else given
