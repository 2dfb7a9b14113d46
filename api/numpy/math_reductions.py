"""These functions are sums, means, extrema and the like, along dimensions."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.numpy.array_creations import array
from mspc.api.numpy.promotion import as_float, as_type, pair
from mspc.api.ops.function_arguments import axis_of, reduced_axes
from mspc.api.ops.numpy_arguments import share
from mspc.ir.types import BOOL, FLOAT32, INT32, INT64, UINT8


def _axes(name: str, x: Any, axis: Any) -> Any:
    return reduced_axes(name, axis, len(x.shape))


def _count(x: Any, axes: Any) -> Any:
    found = 1
    for d in axes if len(axes) > 0 else range(len(x.shape)):
        found = found * x.shape[d]
    return found


def sum(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, initial: Any = None) -> Any:
    """The sum along `axis`, None for all; integers and truths add up to Int64."""
    x = as_type(a, dtype if dtype is not None else None if a.dtype.is_float else INT64)
    found = ops.reduce_sum(x, _axes("sum", x, axis), keepdims)
    return found if initial is None else found + initial


def prod(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, initial: Any = None) -> Any:
    """The product along `axis`, None for all."""
    found = ops.reduce_prod(as_type(a, dtype), _axes("prod", a, axis), keepdims)
    return found if initial is None else found * initial


def mean(a: Any, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Any:
    """The mean along `axis`, None for all, in the element type of a unless `dtype` is given."""
    found = ops.reduce_mean(as_float(a), _axes("mean", a, axis), keepdims)
    return as_type(found, a.dtype if dtype is None else dtype)


def average(x: Any, axis: Any = None, weights: Any = None, returned: bool = False) -> Any:
    """The mean along `axis`, None for all, of elements that count as often as weights say; and the sums of the
    weights, with `returned`."""
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


def var(x: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:
    """The mean of squares of differences from the mean, over n - ddof."""
    x = as_float(x)
    axes = _axes("var", x, axis)
    squares = ops.reduce_sum(ops.square(x - ops.reduce_mean(x, axes, True)), axes, keepdims)
    return squares * share(_count(x, axes) - ddof)


def _extreme(name: str, operator: Any, combine: Any, a: Any, axis: Any, initial: Any, where: Any) -> Any:
    x = a
    if where is not True:
        x = ops.where(where, x, ops.full_like(x, initial))
    found = operator(x, _axes(name, x, axis))
    return found if initial is None else combine(found, ops.full_like(found, initial))


def max(a: Any, axis: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True) -> Any:
    """The maximum along `axis`, None for all; not below `initial`, and only of elements where `where` holds."""
    return _extreme("max", ops.ReduceMax(keepdims), ops.maximum, a, axis, initial, where)


def min(a: Any, axis: Any = None, keepdims: bool = False, initial: Any = None, where: Any = True) -> Any:
    """The minimum along `axis`, None for all; not above `initial`, and only of elements where `where` holds."""
    return _extreme("min", ops.ReduceMin(keepdims), ops.minimum, a, axis, initial, where)


def count_nonzero(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """How many elements along `axis` are other than 0, Int32."""
    found = ops.cast(x if x.dtype == BOOL else ops.not_equal(x, 0), INT32)
    return ops.reduce_sum(found, _axes("count_nonzero", x, axis), keepdims)


def running_along(operator: Any, a: Any, axis: Any, dtype: Any, narrow: Any) -> Any:
    x = as_type(a, dtype if dtype is not None else narrow if a.dtype in (BOOL, UINT8) else None)
    return operator(ops.reshape(x, (-1,)), 0) if axis is None else operator(x, axis)


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Each element less the one ahead of it along `axis`, n times; prepend and append stand ahead and behind first."""
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
    """What is beside `a` along an axis: a tensor, or one row of a number."""
    found = as_type(array(value), a.dtype)
    if len(found.shape) == 0:
        found = ops.broadcast_to(found, tuple([1 if d == axis else size for d, size in enumerate(a.shape)]))
    return found


def _at(a: Any, axis: int, place: int) -> Any:
    return tuple([place if d == axis else 0 for d in range(len(a.shape))])


def _ends(a: Any, axis: int) -> Any:
    return tuple([a.shape[d] - 1 if d == axis else a.shape[d] for d in range(len(a.shape))])


def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """Differences of all elements in one dimension, with others ahead and behind."""
    found = diff(ops.reshape(ary, (-1,)))
    parts = [] if to_begin is None else [as_type(ops.reshape(array(to_begin), (-1,)), found.dtype)]
    parts = [*parts, found]
    parts = parts if to_end is None else [*parts, as_type(ops.reshape(array(to_end), (-1,)), found.dtype)]
    return ops.concat(parts, 0) if len(parts) > 1 else found


def without_nan(a: Any, value: float) -> Any:
    return ops.where(ops.isnan(a), ops.full_like(a, value), a) if a.dtype.is_float else a


def nansum(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """The sum of what is not NaN, in the element type of a; that of truths is Int32."""
    summed_type = INT32 if a.dtype == BOOL else a.dtype
    return sum(without_nan(a, 0.0), axis, summed_type if dtype is None else dtype, keepdims)


def nanmean(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """The mean of what is not NaN."""
    x = as_float(a)
    shown = ops.cast(ops.logical_not(ops.isnan(x)), x.dtype)
    axes = _axes("nanmean", a, axis)
    found = ops.reduce_sum(without_nan(x, 0.0), axes, keepdims) / ops.reduce_sum(shown, axes, keepdims)
    return as_type(found, dtype)


def nanvar(a: Any, axis: Any = None, dtype: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:
    """The variance of what is not NaN, over n - ddof."""
    x = as_float(a)
    shown = ops.cast(ops.logical_not(ops.isnan(x)), x.dtype)
    axes = _axes("nanvar", a, axis)
    count = ops.reduce_sum(shown, axes, True)
    middle = ops.reduce_sum(without_nan(x, 0.0), axes, True) / count
    squares = ops.reduce_sum(ops.square(without_nan(x - middle, 0.0)), axes, keepdims)
    return as_type(squares / (ops.reduce_sum(shown, axes, keepdims) - ddof), dtype)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The norm of vectors along `axis`, None for all: of the power `ord`, 2 by default, infinity for the greatest."""
    x = as_float(x)
    axes = _axes("norm", x, axis)
    if ord is None or ord == 2:
        return ops.sqrt(ops.reduce_sum(ops.square(x), axes, keepdims))
    if ord == float("inf"):
        return ops.reduce_max(ops.abs(x), axes, keepdims)
    if ord == -float("inf"):
        return ops.reduce_min(ops.abs(x), axes, keepdims)
    return ops.pow(ops.reduce_sum(ops.pow(ops.abs(x), ord), axes, keepdims), 1.0 / ord)


def trapz(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> Any:
    """The area below a line through points, by trapezoids."""
    y = as_float(y)
    axis = axis_of("trapz", axis, len(y.shape))
    later = ops.strided_slice(y, _at(y, axis, 1), y.shape, (1,) * len(y.shape))
    earlier = ops.strided_slice(y, (0,) * len(y.shape), _ends(y, axis), (1,) * len(y.shape))
    if x is None:
        return ops.reduce_sum((later + earlier) * (dx * 0.5), axis)
    width = diff(as_float(x), 1, axis if len(x.shape) == len(y.shape) else 0)
    if len(x.shape) != len(y.shape):
        width = ops.reshape(width, tuple([-1 if d == axis else 1 for d in range(len(y.shape))]))
    return ops.reduce_sum((later + earlier) * 0.5 * width, axis)


def cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None, fweights: Any = None,
    aweights: Any = None, dtype: Any = None,
) -> Any:  # fmt: skip
    """Covariances of the rows of a matrix, of its columns without rowvar, and of those of y. fweights: how often each
    observation counts; aweights: how much."""
    m = _variables(m, rowvar)
    if y is not None:
        m = ops.concat((m, _variables(y, rowvar)), 0)
    less = (0 if bias else 1) if ddof is None else ddof
    if fweights is None and aweights is None:
        m = m - ops.reduce_mean(m, 1, True)
        return as_type(ops.matmul(m, ops.transpose(m, (1, 0))) * share(m.shape[1] - less), dtype)
    often = as_type(array(1 if fweights is None else fweights), FLOAT32)
    weights = often if aweights is None else often * as_type(array(aweights), FLOAT32)
    weights = ops.broadcast_to(weights, (m.shape[1],))
    total = ops.reduce_sum(weights)
    taken = less if aweights is None else less * ops.reduce_sum(weights * as_type(array(aweights), FLOAT32)) / total
    m = m - ops.reduce_sum(m * weights, 1, True) / total
    return as_type(ops.matmul(m * weights, ops.transpose(m, (1, 0))) / (total - taken), dtype)


def _variables(m: Any, rowvar: bool) -> Any:
    """A matrix with a variable in each row; a vector is one."""
    m = as_type(array(m), FLOAT32)
    if len(m.shape) < 2:
        return ops.reshape(m, (1, -1))
    return m if rowvar or m.shape[0] == 1 else ops.transpose(m, (1, 0))


def corrcoef(x: Any, y: Any = None, rowvar: bool = True, dtype: Any = None) -> Any:
    """Correlations of the rows of a matrix, of its columns without rowvar, and of those of y."""
    found = cov(x, y, rowvar)
    root = ops.sqrt(ops.diagonal(found))
    return as_type(found / ops.reshape(root, (-1, 1)) / ops.reshape(root, (1, -1)), dtype)


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    """Where v could stand in a vector in order, ahead of what equals it, or behind for side "right", Int32. sorter: the
    places that bring the vector into order."""
    a, v = pair(array(a), array(v))
    if sorter is not None:
        a = ops.gather(a, array(sorter), 0)
    behind = ops.expand_dims(v, -1)
    ahead = ops.less_equal(a, behind) if side == "right" else ops.less(a, behind)
    return ops.reduce_sum(ops.cast(ahead, INT32), -1)
