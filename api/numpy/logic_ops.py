"""Comparisons and truths."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.numpy.array_creations import array
from mspc.api.numpy.promotion import as_float, as_type, operand, pair
from mspc.ir.types import BOOL


def equal(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """x1 == x2."""
    return as_type(ops.equal(*pair(x1, x2)), dtype)


def not_equal(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """x1 != x2."""
    return as_type(ops.not_equal(*pair(x1, x2)), dtype)


def less(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """x1 < x2."""
    return as_type(ops.less(*pair(x1, x2)), dtype)


def less_equal(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """x1 <= x2."""
    return as_type(ops.less_equal(*pair(x1, x2)), dtype)


def greater(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """x1 > x2."""
    return as_type(ops.greater(*pair(x1, x2)), dtype)


def greater_equal(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """x1 >= x2."""
    return as_type(ops.greater_equal(*pair(x1, x2)), dtype)


def _truth(x: Any) -> Any:
    return as_type(operand(x), BOOL)


def logical_and(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """Whether both are other than 0."""
    return as_type(ops.logical_and(_truth(x1), _truth(x2)), dtype)


def logical_or(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """Whether one is other than 0."""
    return as_type(ops.logical_or(_truth(x1), _truth(x2)), dtype)


def logical_xor(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """Whether just one is other than 0."""
    return as_type(ops.logical_xor(_truth(x1), _truth(x2)), dtype)


def logical_not(a: Any, dtype: Any = None) -> Any:
    """Whether it is 0."""
    return as_type(ops.logical_not(_truth(a)), dtype)


def isfinite(x: Any, dtype: Any = None) -> Any:
    """Whether it is neither infinite nor NaN."""
    return as_type(ops.isfinite(as_float(x)), dtype)


def isinf(x: Any, dtype: Any = None) -> Any:
    """Whether it is infinite."""
    return as_type(ops.isinf(as_float(x)), dtype)


def isnan(x: Any, dtype: Any = None) -> Any:
    """Whether it is NaN."""
    return as_type(ops.isnan(as_float(x)), dtype)


def isneginf(x: Any) -> Any:
    """Whether it is infinite and below 0."""
    return as_float(x) == -float("inf")


def isposinf(x: Any) -> Any:
    """Whether it is infinite and above 0."""
    return as_float(x) == float("inf")


def signbit(x: Any, dtype: Any = None) -> Any:
    """Whether it is below 0."""
    return as_type(ops.less(x, 0) if x.dtype != BOOL else ops.zeros_like(x), dtype)


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


def in1d(ar1: Any, ar2: Any, invert: bool = False) -> Any:
    """`isin` of all elements in one dimension."""
    return isin(ops.reshape(array(ar1), (-1,)), ar2, invert)


def isscalar(element: Any) -> Any:
    """Whether it is a number, a truth or a string of Python."""
    return isinstance(element, (bool, int, float, complex, str))


def sometrue(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Whether an element along `axis` is other than 0, None for all."""
    return ops.reduce_any(_truth(a), () if axis is None else axis, keepdims)


def any(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """As `sometrue`."""
    return sometrue(a, axis, keepdims)


def all(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Whether all elements along `axis` are other than 0, None for all."""
    return ops.reduce_all(_truth(a), () if axis is None else axis, keepdims)
