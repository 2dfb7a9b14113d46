"""Functions element by element that are made of others: signs, extrema beside NaN, exponents and gamma functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.ops.arguments import axis_of, least, part_of, real_type
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.method_table import tensor_method
from mspc.ir.types import BOOL

_EPSILONS = {"Float16": 2.0**-10, "BFloat16": 2.0**-7, "Float32": 2.0**-23, "Float64": 2.0**-52}


def _float(name: str, x: Any) -> Any:
    dtype = real_type(name, x.dtype)
    return x if x.dtype == dtype else ops.cast(x, dtype)


@tensor_method()
def positive(input: TensorLike) -> Any:
    """The input as it is."""
    return input


@tensor_method()
def bitwise_not(input: TensorLike) -> Any:
    """Every bit turned over; of Bool the opposite."""
    return ops.LogicalNot()(input) if input.dtype == BOOL else ops.Invert()(input)


@tensor_method()
def signbit(input: TensorLike) -> Any:
    """Where the input is below 0, or is -0."""
    below = ops.Less()(input, 0)
    return ops.LogicalOr()(below, ops.Less()(ops.Reciprocal()(input), 0)) if input.dtype.is_float else below


@tensor_method()
def sgn(input: TensorLike) -> Any:
    """The sign: -1, 0 or 1; of complex numbers the one of length 1 in their direction."""
    if not input.dtype.is_complex:
        return ops.Sign()(input)
    length = ops.Abs()(input)
    zero = ops.Equal()(length, 0)
    return input / ops.cast(ops.Select()(zero, ops.ones_like(length), length), input.dtype)


@tensor_method()
def copysign(x: TensorLike, other: Any) -> Any:
    """|x| with the sign of the other, a tensor or a number; integers as Float32."""
    size = ops.Abs()(_float("copysign", x))
    if isinstance(other, int | float):
        return -size if math.copysign(1.0, other) < 0 else size
    return ops.Select()(signbit(other), -size, size)


@tensor_method()
def heaviside(input: TensorLike, values: TensorLike) -> Any:
    """0 below 0, 1 above, `values` at 0."""
    above = ops.cast(ops.Greater()(input, 0), input.dtype)
    return ops.Select()(ops.Equal()(input, 0), values, above)


@tensor_method()
def fmax(input: TensorLike, other: TensorLike) -> Any:
    """The greater of both, the other one where one is NaN."""
    return _extremum(ops.Maximum(), input, other)


@tensor_method()
def fmin(input: TensorLike, other: TensorLike) -> Any:
    """The smaller of both, the other one where one is NaN."""
    return _extremum(ops.Minimum(), input, other)


def _extremum(kind: Any, x: Any, y: Any) -> Any:
    found = kind(x, y)
    if not found.dtype.is_float:
        return found
    x, y = ops.cast(x, found.dtype), ops.cast(y, found.dtype)
    return ops.Select()(ops.IsNan()(x), y, ops.Select()(ops.IsNan()(y), x, found))


@tensor_method()
def ldexp(x: TensorLike, other: TensorLike) -> Any:
    """x times 2 to the power of the other."""
    return ops.Mul()(x, ops.Pow()(2.0, other))


@tensor_method()
def lcm(input: TensorLike, other: TensorLike) -> Any:
    """The least common multiple of integers, 0 where one of them is 0."""
    common = ops.Gcd()(input, other)
    shared = ops.Select()(ops.Equal()(common, 0), ops.ones_like(common), common)
    return ops.Abs()(ops.Mul()(ops.FloorDiv()(input, shared), other))


@tensor_method()
def logit(input: TensorLike, eps: float | None = None) -> Any:
    """The logarithm of x / (1 - x), of x kept between eps and 1 - eps where eps is given; of integers as Float32."""
    x = _float("logit", input)
    x = x if eps is None else ops.clamp(x, eps, 1 - eps)
    return ops.Log()(x / (1 - x))


@tensor_method()
def isreal(input: TensorLike) -> Any:
    """Where the imaginary part is 0: everywhere, of what is not complex."""
    return ops.Equal()(ops.Imag()(input), 0) if input.dtype.is_complex else ops.ones_like(input, dtype=BOOL)


@tensor_method()
def is_complex(input: TensorLike) -> Any:
    """Whether the elements are complex numbers, True or False."""
    return input.dtype.is_complex


@tensor_method()
def is_floating_point(input: TensorLike) -> Any:
    """Whether the elements are floating-point numbers, True or False."""
    return input.dtype.is_float


@tensor_method()
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


@tensor_method()
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


@tensor_method()
def aminmax(input: TensorLike, *, axis: Any = 0, keepdims: bool = False) -> Any:
    """(minimum, maximum) along `axis`, None for all."""
    return ops.amin(input, axis, keepdims), ops.amax(input, axis, keepdims)


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


def accumulate_n(x: Sequence[Any]) -> Any:
    """The sum of a tuple of tensors of one shape."""
    return ops.AddN()(x)


def print_(*input_x: Any) -> Any:
    """Prints tensors and texts every time that it runs: `Print()(*input_x)`."""
    return ops.Print()(*input_x)
