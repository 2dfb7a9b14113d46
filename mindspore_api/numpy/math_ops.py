"""`mindspore.numpy`: arithmetic, matmuls, reductions, comparisons and Fourier transforms."""

from __future__ import annotations

from typing import Any

from mspc.ir.types import BOOL, FLOAT32, INT32, INT64, UINT8
from mspc.mindspore_api import ops
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.numpy.array_ops import array, as_float, as_type, operand, pair
from mspc.mindspore_api.ops.checked import TensorLike
from mspc.mindspore_api.ops.function_arguments import axis_of, reduced_axes
from mspc.mindspore_api.ops.numpy_arguments import share

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


def hypot(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """sqrt(x1 * x1 + x2 * x2)."""
    left, right = pair(x1, x2)
    return as_type(ops.Hypot()(as_float(left), as_float(right)), dtype)


def logaddexp(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """log(exp(x1) + exp(x2)), without overflow."""
    left, right = pair(x1, x2)
    left, right = as_float(left), as_float(right)
    return as_type(ops.maximum(left, right) + ops.log1p(ops.exp(-ops.abs(left - right))), dtype)


def copysign(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """|x1| with the sign of x2, in the element type of x1."""
    left, right = operand(x1), operand(x2)
    size = ops.abs(left)
    return as_type(ops.where(ops.less(right, 0), -size, size), dtype)


def heaviside(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """0 below 0, x2 at 0, 1 above."""
    left, right = pair(x1, x2)
    above = ops.cast(ops.greater(left, 0), right.dtype)
    return as_type(ops.where(ops.equal(left, 0), right, above), dtype)


def bits_of(operator: Any, x1: Any, x2: Any) -> Any:
    left, right = pair(x1, x2)
    return operator(left, right)


# Of one operand -------------------------------------------------------------------------------------------


def reciprocal(x: Any, dtype: Any = None) -> Any:
    """Return 1 / x, for integers the whole part."""
    found = ops.reciprocal(as_float(x))
    return as_type(found if x.dtype.is_float else ops.cast(ops.trunc(found), x.dtype), dtype)


def dot(a: Any, b: Any) -> Any:
    """Return sums of products over the last dimension of a and the last but one of b, or its only one."""
    left, right = pair(a, b)
    if len(left.shape) == 0 or len(right.shape) == 0:
        return ops.mul(left, right)
    return ops.tensor_dot(left, right, ([len(left.shape) - 1], [len(right.shape) - 2 if len(right.shape) > 1 else 0]))


def inner(a: Any, b: Any) -> Any:
    """Return sums of products over the last dimensions."""
    left, right = pair(a, b)
    if len(left.shape) == 0 or len(right.shape) == 0:
        return ops.mul(left, right)
    return ops.tensor_dot(left, right, ([len(left.shape) - 1], [len(right.shape) - 1]))


def outer(a: Any, b: Any) -> Any:
    """Return every element of a times every element of b."""
    left, right = pair(a, b)
    return ops.mul(ops.reshape(left, (-1, 1)), ops.reshape(right, (1, -1)))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Return sums of products over the last `axes` dimensions of a and the first of b, or over those of a pair of
    lists."""
    left, right = pair(a, b)
    return ops.tensor_dot(left, right, axes)


def kron(a: Any, b: Any) -> Any:
    """Return every element of a times all of b."""
    left, right = pair(a, b)
    rank = len(left.shape) if len(left.shape) > len(right.shape) else len(right.shape)
    mine = (1,) * (rank - len(left.shape)) + left.shape
    theirs = (1,) * (rank - len(right.shape)) + right.shape
    wide = tuple([size for d in range(rank) for size in (mine[d], 1)])
    fine = tuple([size for d in range(rank) for size in (1, theirs[d])])
    product = ops.mul(ops.reshape(left, wide), ops.reshape(right, fine))
    return ops.reshape(product, tuple([mine[d] * theirs[d] for d in range(rank)]))


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


def var(x: Any, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:
    """Return the sum of squared differences from the mean, divided by n - ddof."""
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


def without_nan(a: Any, value: float) -> Any:
    return ops.where(ops.isnan(a), ops.full_like(a, value), a) if a.dtype.is_float else a


def nansum(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """Return the sum of the elements that are not NaN, in the element type of a; for Bool it is Int32."""
    summed_type = INT32 if a.dtype == BOOL else a.dtype
    return sum(without_nan(a, 0.0), axis, summed_type if dtype is None else dtype, keepdims)


def nanmean(a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    """Return the mean of the elements that are not NaN."""
    x = as_float(a)
    shown = ops.cast(ops.logical_not(ops.isnan(x)), x.dtype)
    axes = _axes("nanmean", a, axis)
    found = ops.reduce_sum(without_nan(x, 0.0), axes, keepdims) / ops.reduce_sum(shown, axes, keepdims)
    return as_type(found, dtype)


def nanvar(a: Any, axis: Any = None, dtype: Any = None, ddof: int = 0, keepdims: bool = False) -> Any:
    """Return the variance of the elements that are not NaN, divided by n - ddof."""
    x = as_float(a)
    shown = ops.cast(ops.logical_not(ops.isnan(x)), x.dtype)
    axes = _axes("nanvar", a, axis)
    count = ops.reduce_sum(shown, axes, True)
    middle = ops.reduce_sum(without_nan(x, 0.0), axes, True) / count
    squares = ops.reduce_sum(ops.square(without_nan(x - middle, 0.0)), axes, keepdims)
    return as_type(squares / (ops.reduce_sum(shown, axes, keepdims) - ddof), dtype)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the norm of vectors along `axis`, None for all: of order `ord`, 2 by default, infinity for the
    greatest."""
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
    """Return the area below a line through points, by trapezoids."""
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
    """Return the covariances of the rows of a matrix, of its columns without rowvar, and of those of y. fweights:
    repetition count of each observation; aweights: its weight."""
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
    """Return a matrix with a variable in each row; a vector is one."""
    m = as_type(array(m), FLOAT32)
    if len(m.shape) < 2:
        return ops.reshape(m, (1, -1))
    return m if rowvar or m.shape[0] == 1 else ops.transpose(m, (1, 0))


def corrcoef(x: Any, y: Any = None, rowvar: bool = True, dtype: Any = None) -> Any:
    """Return correlations of the rows of a matrix, of its columns without rowvar, and of those of y."""
    found = cov(x, y, rowvar)
    root = ops.sqrt(ops.diagonal(found))
    return as_type(found / ops.reshape(root, (-1, 1)) / ops.reshape(root, (1, -1)), dtype)


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    """Return the index at which v is inserted in a sorted vector, before equal elements, or after them for side
    "right", Int32. sorter: the indices that sort the vector."""
    a, v = pair(array(a), array(v))
    if sorter is not None:
        a = ops.gather(a, array(sorter), 0)
    behind = ops.expand_dims(v, -1)
    ahead = ops.less_equal(a, behind) if side == "right" else ops.less(a, behind)
    return ops.reduce_sum(ops.cast(ahead, INT32), -1)


def isclose(a: Any, b: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Any:
    """Return whether |a - b| <= atol + rtol |b|; NaN is near NaN with equal_nan."""
    left, right = pair(a, b)
    left, right = as_float(left), as_float(right)
    near = ops.less_equal(ops.abs(left - right), ops.abs(right) * rtol + atol)
    near = ops.logical_or(ops.logical_and(near, ops.isfinite(right)), ops.equal(left, right))
    if equal_nan:
        near = ops.logical_or(near, ops.logical_and(ops.isnan(left), ops.isnan(right)))
    return near


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


def fft(a: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """Return the transform of n elements along an axis."""
    return ops.fft(a, n, axis, norm)


def fft2(a: TensorLike, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """Return the transform of s elements along two axes."""
    return ops.fft2(a, s, axes, norm)


def fftn(a: TensorLike, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """Return the transform of s elements along axes, by default all."""
    return ops.fftn(a, s, axes, norm)


def ifft(a: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """Return the inverse transform of n elements along an axis."""
    return ops.ifft(a, n, axis, norm)


def ifft2(a: TensorLike, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """Return the inverse transform of s elements along two axes."""
    return ops.ifft2(a, s, axes, norm)


def ifftn(a: TensorLike, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """Return the inverse transform of s elements along axes, by default all."""
    return ops.ifftn(a, s, axes, norm)


def rfft(a: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """Return half of the transform of a real tensor, of n elements along an axis; the other half is its mirror
    image."""
    return ops.rfft(a, n, axis, norm)


def rfft2(a: TensorLike, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """Return half of the transform of a real tensor, of s elements along two axes; the other half is its mirror
    image."""
    return ops.rfft2(a, s, axes, norm)


def rfftn(a: TensorLike, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """Return half of the transform of a real tensor, of s elements along axes, by default all; the other half is its
    mirror image."""
    return ops.rfftn(a, s, axes, norm)


def irfft(a: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """Return the real tensor with this half transform, of n elements along an axis."""
    return ops.irfft(a, n, axis, norm)


def irfft2(a: TensorLike, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """Return the real tensor with this half transform, of s elements along two axes."""
    return ops.irfft2(a, s, axes, norm)


def irfftn(a: TensorLike, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """Return the real tensor with this half transform, of s elements along axes, by default all."""
    return ops.irfftn(a, s, axes, norm)


def hfft(a: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """Return the real transform of a tensor that is half of a symmetric one, of n elements along an axis."""
    return ops.hfft(a, n, axis, norm)


def hfft2(a: TensorLike, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """Return the real transform of a tensor that is half of a symmetric one, of s elements along two axes."""
    return ops.hfft2(a, s, axes, norm)


def hfftn(a: TensorLike, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """Return the real transform of a tensor that is half of a symmetric one, of s elements along axes, by default
    all."""
    return ops.hfftn(a, s, axes, norm)


def ihfft(a: TensorLike, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """Return half of the inverse transform of a real tensor, of n elements along an axis."""
    return ops.ihfft(a, n, axis, norm)


def ihfft2(a: TensorLike, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """Return half of the inverse transform of a real tensor, of s elements along two axes."""
    return ops.ihfft2(a, s, axes, norm)


def ihfftn(a: TensorLike, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """Return half of the inverse transform of a real tensor, of s elements along axes, by default all."""
    return ops.ihfftn(a, s, axes, norm)


def fftshift(x: TensorLike, axes: Any = None) -> Any:
    """Return the elements with those of frequency 0 in the middle, along axes, by default all."""
    return ops.fftshift(x, axes)


def ifftshift(x: TensorLike, axes: Any = None) -> Any:
    """Return the inverse of `fftshift`."""
    return ops.ifftshift(x, axes)


def fftfreq(n: int, d: float = 1.0, dtype: Any = None) -> Any:
    """Return the frequencies of `fft` of n elements at distance d."""
    return ops.fftfreq(n, d, dtype)


def rfftfreq(n: int, d: float = 1.0, dtype: Any = None) -> Any:
    """Return the frequencies of `rfft` of n elements at distance d."""
    return ops.rfftfreq(n, d, dtype)
