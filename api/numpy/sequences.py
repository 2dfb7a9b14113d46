"""These functions take polynomials and functions as values in a row: convolutions, slopes, powers of matrices."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiValueError
from mspc.api.numpy.array_creations import array
from mspc.api.numpy.promotion import as_float, as_type, pair
from mspc.api.ops.function_arguments import axis_of

TURN = math.tau


def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """Sums of products of two vectors, the shorter one turned round and moved along: "full" wherever they touch, "same"
    as many as the longer has, "valid" where the shorter lies within."""
    a, v = _vectors("convolve", a, v)
    if a.shape[0] < v.shape[0]:
        a, v = v, a
    return _moved_along("convolve", a, ops.flip(v, (0,)), mode)


def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    """Sums of products of two vectors, the second moved along the first; mode as of `convolve`."""
    a, v = _vectors("correlate", a, v)
    if a.shape[0] < v.shape[0]:
        return ops.flip(_moved_along("correlate", v, a, mode), (0,))
    return _moved_along("correlate", a, v, mode)


def _vectors(name: str, a: Any, v: Any) -> Any:
    a, v = pair(array(a, ndmin=1), array(v, ndmin=1))
    if len(a.shape) != 1 or len(v.shape) != 1 or 0 in (*a.shape, *v.shape):
        raise ApiValueError(f"{name}(): a and v must be vectors with elements, not of shapes {a.shape} and {v.shape}")
    return a, v


def _moved_along(name: str, a: Any, v: Any, mode: str) -> Any:
    """Sums of products of v and every stretch of a, which is as long at least."""
    long, short = a.shape[0], v.shape[0]
    if mode == "full":
        ahead, behind = short - 1, short - 1
    elif mode == "same":
        ahead, behind = short // 2, short - 1 - short // 2
    elif mode == "valid":
        ahead, behind = 0, 0
    else:
        raise ApiValueError(f"{name}(): mode must be 'full', 'same' or 'valid', not {mode!r}")
    a = ops.Pad(((ahead, behind),))(a)
    count = long + ahead + behind - short + 1
    places = array([[i + j for j in range(short)] for i in range(count)])
    return ops.reduce_sum(ops.gather(a, places, 0) * v, 1)


def polyadd(a1: Any, a2: Any) -> Any:
    """The sum of polynomials, the highest power first."""
    left, right = _coefficients(a1, a2)
    return left + right


def polysub(a1: Any, a2: Any) -> Any:
    """The difference of polynomials, the highest power first."""
    left, right = _coefficients(a1, a2)
    return left - right


def _coefficients(a1: Any, a2: Any) -> Any:
    """Both of one length."""
    left, right = pair(array(a1, ndmin=1), array(a2, ndmin=1))
    size = max([left.shape[0], right.shape[0]])
    return ops.Pad(((size - left.shape[0], 0),))(left), ops.Pad(((size - right.shape[0], 0),))(right)


def polyder(p: Any, m: int = 1) -> Any:
    """The m-th derivative of a polynomial, the highest power first."""
    p = array(p, ndmin=1)
    _check_count("polyder", "m", m)
    for _ in range(m):
        powers = array([p.shape[0] - 1 - i for i in range(p.shape[0] - 1)])
        p = p[:-1] * as_type(powers, p.dtype) if p.shape[0] > 1 else p[:0]
    return p


def polyint(p: Any, m: int = 1, k: Any = None) -> Any:
    """The m-th integral of a polynomial, the highest power first. k: the constants, 0 without; one holds for all."""
    p = as_float(array(p, ndmin=1))
    _check_count("polyint", "m", m)
    constants = as_type(array(0.0 if k is None else k, ndmin=1), p.dtype)
    if constants.shape[0] not in (1, m):
        raise ApiValueError(f"polyint(): k must have 1 or {m} numbers, not {constants.shape[0]}")
    for i in range(m):
        powers = array([float(p.shape[0] - j) for j in range(p.shape[0])])
        constant = constants[i : i + 1] if constants.shape[0] > 1 else constants
        p = ops.concat((p / as_type(powers, p.dtype), constant), 0)
    return p


def _check_count(name: str, what: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ApiValueError(f"{name}(): {what} must be a number from 0 on, not {value!r}")


def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Slopes of f along its dimensions, or those that `axis` names: half of the difference of both neighbours, at the
    ends the difference to the one. varargs: the distance of neighbours, one number, or one for each dimension."""
    if edge_order != 1:
        raise ApiValueError(f"gradient(): edge_order {edge_order!r} is not supported, 1 is")
    f = as_float(array(f))
    given = range(len(f.shape)) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = [axis_of("gradient", d, len(f.shape)) for d in given]
    steps = varargs if len(varargs) > 1 else (varargs[0] if len(varargs) == 1 else 1.0,) * len(axes)
    if len(steps) != len(axes):
        raise ApiValueError(f"gradient(): {len(steps)} distances for {len(axes)} dimensions")
    found = [_slope(f, d, step) for d, step in zip(axes, steps, strict=True)]
    return found[0] if len(found) == 1 else found


def _slope(f: Any, axis: int, step: Any) -> Any:
    size = f.shape[axis]
    if size < 2:
        raise ApiValueError(f"gradient(): dimension {axis} of {f.shape} has fewer than 2 elements")
    turned = ops.movedim(f, axis, 0)
    parts = [turned[1:2] - turned[0:1]]
    if size > 2:
        parts = [*parts, (turned[2:] - turned[:-2]) / 2.0]
    parts = [*parts, turned[size - 1 :] - turned[size - 2 : size - 1]]
    return ops.movedim(ops.concat(tuple(parts), 0), 0, axis) / step


def unwrap(p: Any, discont: Any = TURN / 2, axis: int = -1) -> Any:
    """Angles without jumps: what is further from the one ahead of it than `discont` is moved by whole turns."""
    p = as_float(array(p))
    axis = axis_of("unwrap", axis, len(p.shape))
    turned = ops.movedim(p, axis, -1)
    steps = turned[..., 1:] - turned[..., :-1]
    half = TURN / 2
    within = steps + half - ops.floor((steps + half) / TURN) * TURN - half
    within = ops.select(ops.logical_and(within == -half, steps > 0), ops.full_like(within, half), within)
    moved = ops.select(ops.abs(steps) < discont, ops.zeros_like(steps), within - steps)
    found = ops.concat((turned[..., :1], turned[..., 1:] + ops.cumsum(moved, -1)), -1)
    return ops.movedim(found, -1, axis)


def matrix_power(a: Any, n: int) -> Any:
    """Square matrices multiplied n times by themselves; n from 0 on."""
    a = array(a)
    if len(a.shape) < 2 or a.shape[-1] != a.shape[-2]:
        raise ApiValueError(f"matrix_power(): a must hold square matrices, and its shape is {a.shape}")
    _check_count("matrix_power", "n", n)
    if n == 0:
        return ops.broadcast_to(ops.eye(a.shape[-1], a.shape[-1], a.dtype), a.shape)
    found = a
    for _ in range(n - 1):
        found = ops.matmul(found, a)
    return found
