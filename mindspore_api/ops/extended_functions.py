"""Functions of MindSpore's `ops.auto_generate` with positional parameters that are keyword-only in `mint`; compiled
like those."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import mint
from mspc.mindspore_api.mint.nn import functional


def add_ext(input: Any, other: Any, alpha: Any = 1) -> Any:
    """Call `mint.add`."""
    return mint.add(input, other, alpha=alpha)


def sub_ext(input: Any, other: Any, alpha: Any = 1) -> Any:
    """Call `mint.sub`."""
    return mint.sub(input, other, alpha=alpha)


def mean_ext(input: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Call `mint.mean`."""
    return mint.mean(input, dim, keepdim, dtype=dtype)


def sum_ext(input: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Call `mint.sum`."""
    return mint.sum(input, dim, keepdim, dtype=dtype)


def prod_ext(input: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Call `mint.prod`."""
    return mint.prod(input, dim, keepdim, dtype=dtype)


def sort_ext(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    """Call `mint.sort`."""
    return mint.sort(input, dim=dim, descending=descending, stable=stable)


def log_softmax_ext(input: Any, dim: int | None = None, dtype: Any = None) -> Any:
    """Call `mint.nn.functional.log_softmax`."""
    return functional.log_softmax(input, dim, dtype=dtype)
