"""`mindspore.numpy`: arithmetic, matmuls, reductions, comparisons and Fourier transforms."""

from __future__ import annotations

from typing import Any

from mspc.ir.types import BOOL, INT64, UINT8
from mspc.mindspore_api import ops
from mspc.mindspore_api.numpy.array_ops import array, as_float, as_type, pair
from mspc.mindspore_api.ops.function_arguments import reduced_axes

# Of two operands ------------------------------------------------------------------------------------------


def divide(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """x1 / x2; integers are Float32."""
    left, right = pair(x1, x2)
    return as_type(ops.div(as_float(left), as_float(right)), dtype)


def _like_tensor(x1: Any, x2: Any) -> Any:
    """Convert a number to the element type of the other operand."""
    if isinstance(x1, (bool, int, float)) and hasattr(x2, "shape"):
        return ops.scalar_to_tensor(x1, x2.dtype), x2
    if isinstance(x2, (bool, int, float)) and hasattr(x1, "shape"):
        return x1, ops.scalar_to_tensor(x2, x1.dtype)
    return pair(x1, x2)


def maximum(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """Return the greater operand; a number gets the element type of the other operand."""
    left, right = _like_tensor(x1, x2)
    if left.dtype == BOOL:
        return as_type(ops.logical_or(left, right), dtype)
    return as_type(ops.maximum(left, right), dtype)


def minimum(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """Return the smaller operand; a number gets the element type of the other operand."""
    left, right = _like_tensor(x1, x2)
    if left.dtype == BOOL:
        return as_type(ops.logical_and(left, right), dtype)
    return as_type(ops.minimum(left, right), dtype)


def clip(x: Any, xmin: Any, xmax: Any, dtype: Any = None) -> Any:
    """Return x, or xmin if it is smaller, xmax if it is greater; None for no bound."""
    found = x if xmin is None else maximum(x, xmin)
    return as_type(found if xmax is None else minimum(found, xmax), dtype)


def arctan2(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """Return the angle of the point (x2, x1)."""
    left, right = pair(x1, x2)
    return as_type(ops.Atan2()(as_float(left), as_float(right)), dtype)


def bits_of(operator: Any, x1: Any, x2: Any) -> Any:
    left, right = pair(x1, x2)
    return operator(left, right)


# Of one operand -------------------------------------------------------------------------------------------


# Element types --------------------------------------------------------------------------------------------


def _axes(name: str, x: Any, axis: Any) -> Any:
    return reduced_axes(name, axis, len(x.shape))


def sum(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, initial: Any = None) -> Any:
    """Return the sum along `axis`, None for all; integers and Bool add up to Int64."""
    x = as_type(a, dtype if dtype is not None else None if a.dtype.is_float else INT64)
    found = ops.reduce_sum(x, _axes("sum", x, axis), keepdims)
    return found if initial is None else found + initial


def prod(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, initial: Any = None) -> Any:
    """Return the product along `axis`, None for all."""
    found = ops.reduce_prod(as_type(a, dtype), _axes("prod", a, axis), keepdims)
    return found if initial is None else found * initial


def mean(a: Any, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Any:
    """Return the mean along `axis`, None for all, in the element type of a unless `dtype` is given."""
    found = ops.reduce_mean(as_float(a), _axes("mean", a, axis), keepdims)
    return as_type(found, a.dtype if dtype is None else dtype)


def extreme(name: str, operator: Any, combine: Any, a: Any, axis: Any, initial: Any, where: Any) -> Any:
    x = a
    if where is not True:
        x = ops.where(where, x, ops.full_like(x, initial))
    found = operator(x, _axes(name, x, axis))
    return found if initial is None else combine(found, ops.full_like(found, initial))


def running_along(operator: Any, a: Any, axis: Any, dtype: Any, narrow: Any) -> Any:
    x = as_type(a, dtype if dtype is not None else narrow if a.dtype in (BOOL, UINT8) else None)
    return operator(ops.reshape(x, (-1,)), 0) if axis is None else operator(x, axis)


def isin(element: Any, test_elements: Any, invert: bool = False) -> Any:
    """Return whether each element equals one of the test elements."""
    left, right = pair(array(element), array(test_elements))
    found = ops.reduce_any(ops.equal(ops.expand_dims(left, -1), ops.reshape(right, (-1,))), -1)
    return ops.logical_not(found) if invert else found
