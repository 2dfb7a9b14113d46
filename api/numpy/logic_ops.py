"""These functions compare elements and combine truths."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.numpy.array_creations import array
from mspc.api.numpy.promotion import as_float, pair


def isclose(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """Whether |a - b| <= atol + rtol |b|; NaN is near NaN with equal_nan."""
    left, right = pair(a, b)
    left, right = as_float(left), as_float(right)
    near = ops.less_equal(ops.abs(left - right), ops.abs(right) * rtol + atol)
    near = ops.logical_or(ops.logical_and(near, ops.isfinite(right)), ops.equal(left, right))
    if equal_nan:
        near = ops.logical_or(near, ops.logical_and(ops.isnan(left), ops.isnan(right)))
    return near


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Whether shapes and all elements are the same."""
    left, right = pair(array(a1), array(a2))
    if left.shape != right.shape:
        return array(False)
    same = ops.equal(left, right)
    if equal_nan and left.dtype.is_float:
        same = ops.logical_or(same, ops.logical_and(ops.isnan(left), ops.isnan(right)))
    return ops.reduce_all(same)


def isin(element: Any, test_elements: Any, invert: bool = False) -> Any:
    """Whether each element is among some others."""
    left, right = pair(array(element), array(test_elements))
    found = ops.reduce_any(ops.equal(ops.expand_dims(left, -1), ops.reshape(right, (-1,))), -1)
    return ops.logical_not(found) if invert else found
