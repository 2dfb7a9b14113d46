"""These are functions of one tensor, element by element: powers, exponentials, signs, rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Value
from mspc.ir.types import DType, TensorType, real_of
from mspc.ops.bases import Binary, Unary
from mspc.ops.math.arithmetic import Add, Div, Mul, Neg, Sub, gradients
from mspc.ops.math.comparison import Equal, Greater, Select
from mspc.ops.op import ArrayBackend, sample

UNARY_SAMPLES = (sample((8, 16)), sample((2, 4, 8)), sample(()))
POSITIVE_INPUT = (sample((8, 16), low=0.25), sample((), low=0.25))
_INTEGERS = (*UNARY_SAMPLES, sample((8,), dtypes=("Int32",), gradient=False))

Gradients = Sequence[Value | None]


def constant(b: Builder, number: float, like: Value) -> Value:
    """A scalar of the element type of `like`."""
    return b.constant(number, like.tensor_type.dtype)


def scaled(b: Builder, number: float, value: Value) -> Value:
    return b.emit(Mul(), value, constant(b, number, value))


class Smooth(Unary, abstract=True):
    """A function of floating-point numbers; integers and Bool become Float32."""

    float_only = True
    promotes = "float"


class Square(Unary):
    """x * x."""

    takes_bool = False
    array_function = "square"
    cuda = "{0} * {0}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), scaled(b, 2, x), dout),)

    samples = _INTEGERS


class Sqrt(Smooth):
    """The square root of x."""

    array_function = "sqrt"
    cuda = "sqrt({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), scaled(b, 0.5, dout), out),)

    samples = POSITIVE_INPUT


class Rsqrt(Smooth):
    """1 over the square root of x."""

    cuda = "rsqrt({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), scaled(b, -0.5, dout), b.emit(Div(), out, x)),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        sqrt, reciprocal = be.xp.sqrt, be.xp.reciprocal

        def kernel(x: Any) -> Any:
            return reciprocal(sqrt(x))

        return kernel

    samples = POSITIVE_INPUT


class Reciprocal(Smooth):
    """1 / x."""

    array_function = "reciprocal"
    cuda = "T(1) / {0}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Neg(), b.emit(Mul(), dout, b.emit(Square(), out))),)

    samples = POSITIVE_INPUT


class Inv(Reciprocal):
    """1 / x."""

    samples = POSITIVE_INPUT


class Pow(Binary):
    """x to the power y."""

    takes_bool = False
    array_function = "power"
    cuda = "power({0}, {1})"

    def rule(self, input: TensorType, exponent: TensorType) -> str:  # type: ignore[override]  # named as in scripts
        return super().rule(input, exponent)

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        lower = b.emit(Pow(), x, b.emit(Sub(), _or_one(b, y), constant(b, 1, y)))
        dx = b.emit(Mul(), b.emit(Mul(), dout, y), lower)
        one = constant(b, 1, x)
        base = b.emit(
            Select(), b.emit(Greater(), x, constant(b, 0, x)), x, one
        )  # 0 ** y has derivative 0 in y
        dy = b.emit(Mul(), b.emit(Mul(), dout, out), b.emit(Log(), base))
        return gradients(b, x, y, dx, dy)

    samples = (
        sample((8, 16), (8, 16), low=0.5),
        sample((8, 16), (), low=0.5),
        sample((8, 16), (8, 1), low=1, high=4, dtypes=("Int32", "Int32"), gradient=False),
    )


def _or_one(b: Builder, exponent: Value) -> Value:
    """The exponent, and 1 where it is 0: x ** 0 has derivative 0, and 0 * x ** -1 is none where x is 0."""
    if isinstance(exponent, Constant) and np.all(exponent.value):
        return exponent
    return b.emit(Select(), b.emit(Equal(), exponent, constant(b, 0, exponent)), constant(b, 1, exponent), exponent)


class Exp(Smooth):
    """e to the power x."""

    array_function = "exp"
    cuda = "exp({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), dout, out),)

    samples = UNARY_SAMPLES


class Expm1(Smooth):
    """e to the power x, minus 1, accurate for small x."""

    array_function = "expm1"
    cuda = "expm1({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), dout, b.emit(Exp(), x)),)

    samples = UNARY_SAMPLES


class Log(Smooth):
    """The natural logarithm of x."""

    array_function = "log"
    cuda = "log({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, x),)

    samples = POSITIVE_INPUT


class Log1p(Smooth):
    """The natural logarithm of 1 + x, accurate for small x."""

    array_function = "log1p"
    cuda = "log1p({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, b.emit(Add(), x, constant(b, 1, x))),)

    samples = POSITIVE_INPUT


class Abs(Unary):
    """The absolute value, of complex numbers a real one; its derivative at 0 is 0."""

    takes_complex = True
    array_function = "abs"
    cuda = "absolute({0})"

    def result_dtype(self, *types: TensorType) -> DType:
        return real_of(types[0].dtype)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        if x.tensor_type.dtype.is_complex:
            raise MspcError(f"{self.name} has no gradient of complex numbers; ComplexAbs has one")
        return (b.emit(Mul(), dout, b.emit(Sign(), x)),)

    samples = _INTEGERS


class _Step(Unary, abstract=True):
    """A function that is constant between jumps: its derivative is 0."""

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (None,)


class Sign(_Step):
    """-1, 0 or 1; 0 for NaN."""

    takes_bool = False
    cuda = "sign_of({0})"
    samples = (sample((8, 16)), sample((8,), dtypes=("Int32",), gradient=False))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        found = be.xp.sign(x)
        return be.xp.where(x == x, found, be.xp.zeros((), x.dtype)) if x.dtype.kind == "f" else found


class Floor(_Step):
    """The largest integer not above x."""

    float_only = True
    array_function = "floor"
    cuda = "floor({0})"
    samples = (sample((8, 16)),)


class Ceil(_Step):
    """The smallest integer not below x."""

    float_only = True
    array_function = "ceil"
    cuda = "ceil({0})"
    samples = (sample((8, 16)),)


class Round(_Step):
    """The nearest integer, halves to the even one."""

    float_only = True
    array_function = "rint"
    cuda = "rint({0})"
    samples = (sample((8, 16)),)


class Rint(_Step):
    """The nearest integer, halves to the even one."""

    float_only = True
    array_function = "rint"
    cuda = "rint({0})"
    samples = (sample((8, 16)),)


class Trunc(_Step):
    """x without its fraction."""

    float_only = True
    array_function = "trunc"
    cuda = "trunc({0})"
    samples = (sample((8, 16)),)


class Identity(Unary):
    """x itself."""

    linear_in = (0,)
    cuda = "{0}"
    is_view = True

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (dout,)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return inputs[0]

    samples = UNARY_SAMPLES
