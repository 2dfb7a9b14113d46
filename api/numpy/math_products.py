"""These functions are products of tensors, values of functions by points or coefficients, and types of results."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiValueError
from mspc.api.numpy.array_creations import array
from mspc.api.numpy.promotion import as_float, pair
from mspc.api.ops.function_arguments import axis_of
from mspc.ir.types import FLOAT32, INT64


def dot(a: Any, b: Any) -> Any:
    """Sums of products over the last dimension of a and the last but one of b, or its only one."""
    left, right = pair(a, b)
    if len(left.shape) == 0 or len(right.shape) == 0:
        return ops.mul(left, right)
    return ops.tensor_dot(left, right, ([len(left.shape) - 1], [max([len(right.shape) - 2, 0])]))


def inner(a: Any, b: Any) -> Any:
    """Sums of products over the last dimensions."""
    left, right = pair(a, b)
    if len(left.shape) == 0 or len(right.shape) == 0:
        return ops.mul(left, right)
    return ops.tensor_dot(left, right, ([len(left.shape) - 1], [len(right.shape) - 1]))


def outer(a: Any, b: Any) -> Any:
    """Every element of a times every element of b."""
    left, right = pair(a, b)
    return ops.mul(ops.reshape(left, (-1, 1)), ops.reshape(right, (1, -1)))


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Sums of products over the last `axes` dimensions of a and the first of b, or over those of a pair of lists."""
    left, right = pair(a, b)
    return ops.tensor_dot(left, right, axes)


def multi_dot(arrays: Any) -> Any:
    """The product of matrices, one after another."""
    found = arrays[0]
    for matrix in arrays[1:]:
        found = dot(found, matrix)
    return found


def kron(a: Any, b: Any) -> Any:
    """Every element of a times all of b."""
    left, right = pair(a, b)
    rank = max([len(left.shape), len(right.shape)])
    mine = (1,) * (rank - len(left.shape)) + left.shape
    theirs = (1,) * (rank - len(right.shape)) + right.shape
    wide = tuple([size for d in range(rank) for size in (mine[d], 1)])
    fine = tuple([size for d in range(rank) for size in (1, theirs[d])])
    product = ops.mul(ops.reshape(left, wide), ops.reshape(right, fine))
    return ops.reshape(product, tuple([mine[d] * theirs[d] for d in range(rank)]))


def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: Any = None) -> Any:
    """The cross product of vectors of three elements, or of two, along axisa of a and axisb of b; the result's stand
    along axisc. axis: in the place of all three. Of vectors of two elements each it is their third component alone."""
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
    """Vectors of two elements with a third, which is 0."""
    if x.shape[-1] == 3:
        return x
    return ops.concat((x, ops.zeros_like(x[..., :1])), -1)


# Element types --------------------------------------------------------------------------------------------


def polyval(p: Any, x: Any) -> Any:
    """The polynomial with coefficients p, that of the highest power first, at x."""
    coefficients, x = pair(array(p), array(x))
    found = ops.zeros_like(x)
    for i in range(coefficients.shape[0]):
        found = ops.add(ops.mul(found, x), coefficients[i])
    return found


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None) -> Any:
    """Values at x of the line through the points (xp, fp), of which xp rises; left and right stand outside of it."""
    x, xp, fp = as_float(array(x)), as_float(array(xp)), as_float(array(fp))
    above = ops.reduce_sum(ops.cast(ops.greater_equal(ops.expand_dims(x, -1), xp), FLOAT32), -1)
    first = ops.cast(ops.clip_by_value(above - 1.0, 0.0, max([xp.shape[0] - 2.0, 0.0])), INT64)
    last = ops.minimum(first + 1, xp.shape[0] - 1)
    low, high = ops.gather(xp, first, 0), ops.gather(xp, last, 0)
    at_low, at_high = ops.gather(fp, first, 0), ops.gather(fp, last, 0)
    width = ops.where(ops.equal(high, low), ops.ones_like(high), high - low)
    found = at_low + (at_high - at_low) * ops.clip_by_value((x - low) / width, 0.0, 1.0)
    if left is not None:
        found = ops.where(ops.less(x, xp[0]), ops.full_like(found, left), found)
    if right is not None:
        found = ops.where(ops.greater(x, xp[xp.shape[0] - 1]), ops.full_like(found, right), found)
    return found
