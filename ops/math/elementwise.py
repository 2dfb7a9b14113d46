"""Functions of one tensor, element by element: powers, exponentials, signs, rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import DType, TensorType, real_of
from mspc.ops.bases import Binary, Unary
from mspc.ops.math.arithmetic import Add, Div, Mul, Neg, Sub, gradients
from mspc.ops.math.comparison import Greater, Select
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

    float_only: ClassVar[bool] = True
    promotes: ClassVar[str] = "float"


class Square(Unary):
    """x * x."""

    takes_bool: ClassVar[bool] = False
    array_function: ClassVar[str] = "square"
    cuda: ClassVar[str] = "{0} * {0}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), scaled(b, 2, x), dout),)

    samples: ClassVar[Any] = _INTEGERS


class Sqrt(Smooth):
    """The square root of x."""

    array_function: ClassVar[str] = "sqrt"
    cuda: ClassVar[str] = "sqrt({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), scaled(b, 0.5, dout), out),)

    samples: ClassVar[Any] = POSITIVE_INPUT


class Rsqrt(Smooth):
    """1 over the square root of x."""

    cuda: ClassVar[str] = "rsqrt({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), scaled(b, -0.5, dout), b.emit(Div(), out, x)),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        sqrt, reciprocal = be.xp.sqrt, be.xp.reciprocal

        def kernel(x: Any) -> Any:
            return reciprocal(sqrt(x))

        return kernel

    samples: ClassVar[Any] = POSITIVE_INPUT


class Reciprocal(Smooth):
    """1 / x."""

    array_function: ClassVar[str] = "reciprocal"
    cuda: ClassVar[str] = "T(1) / {0}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Neg(), b.emit(Mul(), dout, b.emit(Square(), out))),)

    samples: ClassVar[Any] = POSITIVE_INPUT


class Inv(Reciprocal):
    """1 / x."""

    samples: ClassVar[Any] = POSITIVE_INPUT


class Pow(Binary):
    """x to the power y."""

    takes_bool: ClassVar[bool] = False
    array_function: ClassVar[str] = "power"
    cuda: ClassVar[str] = "power({0}, {1})"

    def rule(self, input: TensorType, exponent: TensorType) -> str:  # type: ignore[override]  # named as in scripts
        return super().rule(input, exponent)

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        lower = b.emit(Pow(), x, b.emit(Sub(), y, constant(b, 1, y)))
        dx = b.emit(Mul(), b.emit(Mul(), dout, y), lower)
        one = constant(b, 1, x)
        base = b.emit(
            Select(), b.emit(Greater(), x, constant(b, 0, x)), x, one
        )  # 0 ** y has derivative 0 in y
        dy = b.emit(Mul(), b.emit(Mul(), dout, out), b.emit(Log(), base))
        return gradients(b, x, y, dx, dy)

    samples: ClassVar[Any] = (
        sample((8, 16), (8, 16), low=0.5),
        sample((8, 16), (), low=0.5),
        sample((8, 16), (8, 1), low=1, high=4, dtypes=("Int32", "Int32"), gradient=False),
    )


class Exp(Smooth):
    """e to the power x."""

    array_function: ClassVar[str] = "exp"
    cuda: ClassVar[str] = "exp({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), dout, out),)

    samples: ClassVar[Any] = UNARY_SAMPLES


class Expm1(Smooth):
    """e to the power x, minus 1, accurate for small x."""

    array_function: ClassVar[str] = "expm1"
    cuda: ClassVar[str] = "expm1({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), dout, b.emit(Exp(), x)),)

    samples: ClassVar[Any] = UNARY_SAMPLES


class Log(Smooth):
    """The natural logarithm of x."""

    array_function: ClassVar[str] = "log"
    cuda: ClassVar[str] = "log({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, x),)

    samples: ClassVar[Any] = POSITIVE_INPUT


class Log1p(Smooth):
    """The natural logarithm of 1 + x, accurate for small x."""

    array_function: ClassVar[str] = "log1p"
    cuda: ClassVar[str] = "log1p({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, b.emit(Add(), x, constant(b, 1, x))),)

    samples: ClassVar[Any] = POSITIVE_INPUT


class Abs(Unary):
    """The absolute value, of complex numbers a real one; its derivative at 0 is 0."""

    takes_complex: ClassVar[bool] = True
    array_function: ClassVar[str] = "abs"
    cuda: ClassVar[str] = "absolute({0})"

    def result_dtype(self, *types: TensorType) -> DType:
        return real_of(types[0].dtype)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        if x.tensor_type.dtype.is_complex:
            raise MspcError(f"{self.name} has no gradient of complex numbers; ComplexAbs has one")
        return (b.emit(Mul(), dout, b.emit(Sign(), x)),)

    samples: ClassVar[Any] = _INTEGERS


class _Step(Unary, abstract=True):
    """A function that is constant between jumps: its derivative is 0."""

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (None,)


class Sign(_Step):
    """-1, 0 or 1; 0 for NaN."""

    takes_bool: ClassVar[bool] = False
    cuda: ClassVar[str] = "sign_of({0})"
    samples: ClassVar[Any] = (sample((8, 16)), sample((8,), dtypes=("Int32",), gradient=False))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        found = be.xp.sign(x)
        return be.xp.where(x == x, found, be.xp.zeros((), x.dtype)) if x.dtype.kind == "f" else found


class Floor(_Step):
    """The largest whole number not above x."""

    float_only: ClassVar[bool] = True
    array_function: ClassVar[str] = "floor"
    cuda: ClassVar[str] = "floor({0})"
    samples: ClassVar[Any] = (sample((8, 16)),)


class Ceil(_Step):
    """The smallest whole number not below x."""

    float_only: ClassVar[bool] = True
    array_function: ClassVar[str] = "ceil"
    cuda: ClassVar[str] = "ceil({0})"
    samples: ClassVar[Any] = (sample((8, 16)),)


class Round(_Step):
    """The nearest whole number, halves to the even one."""

    float_only: ClassVar[bool] = True
    array_function: ClassVar[str] = "rint"
    cuda: ClassVar[str] = "rint({0})"
    samples: ClassVar[Any] = (sample((8, 16)),)


class Rint(_Step):
    """The nearest whole number, halves to the even one."""

    float_only: ClassVar[bool] = True
    array_function: ClassVar[str] = "rint"
    cuda: ClassVar[str] = "rint({0})"
    samples: ClassVar[Any] = (sample((8, 16)),)


class Trunc(_Step):
    """x without its fraction."""

    float_only: ClassVar[bool] = True
    array_function: ClassVar[str] = "trunc"
    cuda: ClassVar[str] = "trunc({0})"
    samples: ClassVar[Any] = (sample((8, 16)),)


class Identity(Unary):
    """x itself."""

    linear_in: ClassVar[tuple[int, ...]] = (0,)
    cuda: ClassVar[str] = "{0}"
    is_view: ClassVar[bool] = True

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (dout,)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return inputs[0]

    samples: ClassVar[Any] = UNARY_SAMPLES
