"""These functions work element by element and are made of others: signs, extrema beside NaN, gamma functions."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.function_arguments import axis_of, least, part_of, real_type

_EPSILONS = {"Float16": 2.0**-10, "BFloat16": 2.0**-7, "Float32": 2.0**-23, "Float64": 2.0**-52}


def _float(name: str, x: Any) -> Any:
    dtype = real_type(name, x.dtype)
    return x if x.dtype == dtype else ops.cast(x, dtype)


def signbit(input: TensorLike) -> Any:
    """Where the input is below 0, or is -0."""
    below = ops.Less()(input, 0)
    return ops.LogicalOr()(below, ops.Less()(ops.Reciprocal()(input), 0)) if input.dtype.is_float else below


def sgn(input: TensorLike) -> Any:
    """The sign: -1, 0 or 1; of complex numbers the one of length 1 in their direction."""
    if not input.dtype.is_complex:
        return ops.Sign()(input)
    length = ops.Abs()(input)
    zero = ops.Equal()(length, 0)
    return input / ops.cast(ops.Select()(zero, ops.ones_like(length), length), input.dtype)


def copysign(x: TensorLike, other: Any) -> Any:
    """|x| with the sign of the other, a tensor or a number; integers as Float32."""
    size = ops.Abs()(_float("copysign", x))
    if isinstance(other, int | float):
        return -size if math.copysign(1.0, other) < 0 else size
    return ops.Select()(signbit(other), -size, size)


def heaviside(input: TensorLike, values: TensorLike) -> Any:
    """0 below 0, 1 above, `values` at 0."""
    above = ops.cast(ops.Greater()(input, 0), input.dtype)
    return ops.Select()(ops.Equal()(input, 0), values, above)


def extremum(kind: Any, x: Any, y: Any) -> Any:
    found = kind(x, y)
    if not found.dtype.is_float:
        return found
    x, y = ops.cast(x, found.dtype), ops.cast(y, found.dtype)
    return ops.Select()(ops.IsNan()(x), y, ops.Select()(ops.IsNan()(y), x, found))


def lcm(input: TensorLike, other: TensorLike) -> Any:
    """The least common multiple of integers, 0 where one of them is 0."""
    common = ops.Gcd()(input, other)
    shared = ops.Select()(ops.Equal()(common, 0), ops.ones_like(common), common)
    return ops.Abs()(ops.Mul()(ops.FloorDiv()(input, shared), other))


def logit(input: TensorLike, eps: float | None = None) -> Any:
    """The logarithm of x / (1 - x), of x clipped to [eps, 1 - eps] where eps is given; of integers as Float32."""
    x = _float("logit", input)
    x = x if eps is None else ops.clamp(x, eps, 1 - eps)
    return ops.Log()(x / (1 - x))


def mvlgamma(input: TensorLike, p: int) -> Any:
    """The logarithm of the gamma function of p dimensions; of integers as Float32. Its inputs are above (p - 1) / 2.

    Raises:
        ValueError: p is below 1.
    """
    least("mvlgamma", "p", p, 1)
    x = _float("mvlgamma", input)
    total = ops.Lgamma()(x)
    for i in range(1, p):
        total = total + ops.Lgamma()(x - 0.5 * i)
    return total + 0.25 * p * (p - 1) * math.log(math.pi)


def polygamma(n: int, input: TensorLike) -> Any:
    """The n-th derivative of the digamma function, of inputs above 0; n is known when a network is compiled.

    Raises:
        ValueError: n is below 0.
    """
    order = least("polygamma", "n", n, 0)
    x = _float("polygamma", input)
    if order == 0:
        return ops.Digamma()(x)
    return ops.Zeta()(ops.full_like(x, order + 1.0), x) * float((-1) ** (order + 1) * math.factorial(order))


def logcumsumexp(input: TensorLike, axis: int) -> Any:
    """The logarithm of running sums of exponentials along `axis`, without overflow. Hillis and Steele 1986."""
    axis = axis_of("logcumsumexp", axis, len(input.shape))
    size, step = input.shape[axis], 1
    while step < size:
        front = ops.StridedSlice()(input, *part_of(input.shape, (step, size - step), axis, 0))
        later = ops.StridedSlice()(input, *part_of(input.shape, (step, size - step), axis, 1))
        before = ops.StridedSlice()(input, *part_of(input.shape, (size - step, step), axis, 0))
        input = ops.Concat(axis)((front, ops.logaddexp(later, before)))
        step = 2 * step
    return input


def eps(x: TensorLike) -> Any:
    """The least number whose sum with 1 differs from 1 in the type of x, a tensor of floats, in x's shape.

    Raises:
        TypeError: x holds no floats.
    """
    if not x.dtype.is_float:
        raise ApiTypeError(f"eps(): x must be a tensor of floats, not of {x.dtype}")
    return ops.full_like(x, _EPSILONS[x.dtype.name])


def is_nonzero(input: TensorLike) -> Any:
    """Whether the only element of a tensor is not 0, Bool of shape (). Raises ValueError where there are more."""
    if input.size != 1:
        raise ApiValueError(f"is_nonzero(): input must have one element, not {input.size}")
    return ops.not_equal(ops.reshape(input, ()), 0)
