"""`mindspore.numpy`: arithmetic, matmuls, reductions, comparisons and Fourier transforms."""

from __future__ import annotations

from typing import Any

from mspc.ir.types import BOOL, INT32, INT64, UINT8
from mspc.mindspore_api import ops
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.numpy.array_ops import array, as_float, as_type, pair
from mspc.mindspore_api.ops.function_arguments import axis_of, reduced_axes

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


def reciprocal(x: Any, dtype: Any = None) -> Any:
    """Return 1 / x, for integers the whole part."""
    found = ops.reciprocal(as_float(x))
    return as_type(found if x.dtype.is_float else ops.cast(ops.trunc(found), x.dtype), dtype)


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: Any = None) -> Any:
    """Return the cross product of vectors of three elements, or of two, along axisa of a and axisb of b; the result's
    vectors are along axisc. axis: replaces all three. For vectors of two elements each it is only their third
    component."""
    if axis is not None:
        axisa = axisb = axisc = axis
    left, right = pair(a, b)
    left, right = _last("cross", left, axisa), _last("cross", right, axisb)
    if left.shape[-1] not in (2, 3) or right.shape[-1] not in (2, 3):
        raise ApiValueError(f"cross(): vectors have 2 or 3 elements, not {left.shape[-1]} and {right.shape[-1]}")
    flat = left.shape[-1] == 2 and right.shape[-1] == 2
    left, right = _three(left), _three(right)
    found = ops.sub(
        ops.mul(ops.roll(left, -1, -1), ops.roll(right, -2, -1)),
        ops.mul(ops.roll(left, -2, -1), ops.roll(right, -1, -1)),
    )
    if flat:
        return found[..., 2]
    return ops.movedim(found, -1, axis_of("cross", axisc, len(found.shape)))


def _last(name: str, x: Any, axis: int) -> Any:
    return ops.movedim(x, axis_of(name, axis, len(x.shape)), -1)


def _three(x: Any) -> Any:
    """Append a third element, 0, to vectors of two elements."""
    if x.shape[-1] == 3:
        return x
    return ops.concat((x, ops.zeros_like(x[..., :1])), -1)


# Element types --------------------------------------------------------------------------------------------


def _axes(name: str, x: Any, axis: Any) -> Any:
    return reduced_axes(name, axis, len(x.shape))


def _count(x: Any, axes: Any) -> Any:
    found = 1
    for d in axes if len(axes) > 0 else range(len(x.shape)):
        found = found * x.shape[d]
    return found


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


def average(x: Any, axis: Any = None, weights: Any = None, returned: bool = False) -> Any:
    """Return the weighted mean along `axis`, None for all; and the sums of the weights, with `returned`."""
    if weights is None:
        found = mean(x, axis)
        return (found, ops.full_like(found, _count(x, _axes("average", x, axis)))) if returned else found
    x, weights = pair(x, array(weights))
    if weights.shape != x.shape:
        place = axis_of("average", axis, len(x.shape))
        weights = ops.reshape(weights, tuple([-1 if d == place else 1 for d in range(len(x.shape))]))
        weights = ops.broadcast_to(weights, x.shape)
    axes = _axes("average", x, axis)
    total = ops.reduce_sum(as_float(weights), axes)
    found = ops.reduce_sum(as_float(x) * as_float(weights), axes) / total
    return (found, total) if returned else found


def _extreme(name: str, operator: Any, combine: Any, a: Any, axis: Any, initial: Any, where: Any) -> Any:
    x = a
    if where is not True:
        x = ops.where(where, x, ops.full_like(x, initial))
    found = operator(x, _axes(name, x, axis))
    return found if initial is None else combine(found, ops.full_like(found, initial))


def max(a: Any, axis: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True) -> Any:
    """Return the maximum along `axis`, None for all; at least `initial`, and only of elements for which `where` is
    true."""
    return _extreme("max", ops.ReduceMax(keepdims), ops.maximum, a, axis, initial, where)


def min(a: Any, axis: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True) -> Any:
    """Return the minimum along `axis`, None for all; at most `initial`, and only of elements for which `where` is
    true."""
    return _extreme("min", ops.ReduceMin(keepdims), ops.minimum, a, axis, initial, where)


def count_nonzero(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the number of nonzero elements along `axis`, Int32."""
    found = ops.cast(x if x.dtype == BOOL else ops.not_equal(x, 0), INT32)
    return ops.reduce_sum(found, _axes("count_nonzero", x, axis), keepdims)


def running_along(operator: Any, a: Any, axis: Any, dtype: Any, narrow: Any) -> Any:
    x = as_type(a, dtype if dtype is not None else narrow if a.dtype in (BOOL, UINT8) else None)
    return operator(ops.reshape(x, (-1,)), 0) if axis is None else operator(x, axis)


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Subtract from each element the previous one along `axis`, n times; prepend and append are first added at the
    ends."""
    axis = axis_of("diff", axis, len(a.shape))
    if prepend is not None:
        a = ops.concat((_beside(a, prepend, axis), a), axis)
    if append is not None:
        a = ops.concat((a, _beside(a, append, axis)), axis)
    for _ in range(n):
        later = ops.strided_slice(a, _at(a, axis, 1), a.shape, (1,) * len(a.shape))
        earlier = ops.strided_slice(a, (0,) * len(a.shape), _ends(a, axis), (1,) * len(a.shape))
        a = ops.not_equal(later, earlier) if a.dtype == BOOL else later - earlier
    return a


def _beside(a: Any, value: Any, axis: int) -> Any:
    found = as_type(array(value), a.dtype)
    if len(found.shape) == 0:
        found = ops.broadcast_to(found, tuple([1 if d == axis else size for d, size in enumerate(a.shape)]))
    return found


def _at(a: Any, axis: int, place: int) -> Any:
    return tuple([place if d == axis else 0 for d in range(len(a.shape))])


def _ends(a: Any, axis: int) -> Any:
    return tuple([a.shape[d] - 1 if d == axis else a.shape[d] for d in range(len(a.shape))])


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Return whether shapes and all elements are the same."""
    left, right = pair(array(a1), array(a2))
    if left.shape != right.shape:
        return array(False)
    same = ops.equal(left, right)
    if equal_nan and left.dtype.is_float:
        same = ops.logical_or(same, ops.logical_and(ops.isnan(left), ops.isnan(right)))
    return ops.reduce_all(same)


def isin(element: Any, test_elements: Any, invert: bool = False) -> Any:
    """Return whether each element equals one of the test elements."""
    left, right = pair(array(element), array(test_elements))
    found = ops.reduce_any(ops.equal(ops.expand_dims(left, -1), ops.reshape(right, (-1,))), -1)
    return ops.logical_not(found) if invert else found
