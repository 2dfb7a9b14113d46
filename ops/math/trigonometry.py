"""Trigonometric and hyperbolic functions and their inverses; angles are in radians."""

from __future__ import annotations

from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ops.bases import Binary
from mspc.ops.math.arithmetic import Add, Div, Mul, Neg, Sub, gradients
from mspc.ops.math.elementwise import UNARY_SAMPLES, Gradients, Smooth, Sqrt, Square, constant
from mspc.ops.op import sample

_INSIDE = (sample((8, 16), low=-0.9, high=0.9),)


class Sin(Smooth):
    """Sine, x in radians."""

    array_function: ClassVar[str] = "sin"
    cuda: ClassVar[str] = "sin({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), dout, b.emit(Cos(), x)),)

    samples: ClassVar[Any] = UNARY_SAMPLES


class Cos(Smooth):
    """Cosine, x in radians."""

    array_function: ClassVar[str] = "cos"
    cuda: ClassVar[str] = "cos({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Neg(), b.emit(Mul(), dout, b.emit(Sin(), x))),)

    samples: ClassVar[Any] = UNARY_SAMPLES


class Tan(Smooth):
    """Tangent, x in radians."""

    array_function: ClassVar[str] = "tan"
    cuda: ClassVar[str] = "tan({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, b.emit(Square(), b.emit(Cos(), x))),)

    samples: ClassVar[Any] = _INSIDE


def _root_of_one_minus_square(b: Builder, x: Value) -> Value:
    return b.emit(Sqrt(), b.emit(Sub(), constant(b, 1, x), b.emit(Square(), x)))


class Asin(Smooth):
    """Inverse sine, in radians."""

    array_function: ClassVar[str] = "arcsin"
    cuda: ClassVar[str] = "asin({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, _root_of_one_minus_square(b, x)),)

    samples: ClassVar[Any] = _INSIDE


class ACos(Smooth):
    """Inverse cosine, in radians."""

    array_function: ClassVar[str] = "arccos"
    cuda: ClassVar[str] = "acos({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Neg(), b.emit(Div(), dout, _root_of_one_minus_square(b, x))),)

    samples: ClassVar[Any] = _INSIDE


class Atan(Smooth):
    """Inverse tangent, in radians."""

    array_function: ClassVar[str] = "arctan"
    cuda: ClassVar[str] = "atan({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, b.emit(Add(), b.emit(Square(), x), constant(b, 1, x))),)

    samples: ClassVar[Any] = UNARY_SAMPLES


class Sinh(Smooth):
    """Hyperbolic sine."""

    array_function: ClassVar[str] = "sinh"
    cuda: ClassVar[str] = "sinh({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), dout, b.emit(Cosh(), x)),)

    samples: ClassVar[Any] = UNARY_SAMPLES


class Cosh(Smooth):
    """Hyperbolic cosine."""

    array_function: ClassVar[str] = "cosh"
    cuda: ClassVar[str] = "cosh({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), dout, b.emit(Sinh(), x)),)

    samples: ClassVar[Any] = UNARY_SAMPLES


class Asinh(Smooth):
    """Inverse hyperbolic sine."""

    array_function: ClassVar[str] = "arcsinh"
    cuda: ClassVar[str] = "asinh({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, b.emit(Cosh(), out)),)

    samples: ClassVar[Any] = UNARY_SAMPLES


class Acosh(Smooth):
    """Inverse hyperbolic cosine of x above 1."""

    array_function: ClassVar[str] = "arccosh"
    cuda: ClassVar[str] = "acosh({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, b.emit(Sinh(), out)),)

    samples: ClassVar[Any] = (sample((8, 16), low=1.5, high=4.0),)


class Atanh(Smooth):
    """Inverse hyperbolic tangent of x between -1 and 1."""

    array_function: ClassVar[str] = "arctanh"
    cuda: ClassVar[str] = "atanh({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, b.emit(Sub(), constant(b, 1, x), b.emit(Square(), x))),)

    samples: ClassVar[Any] = _INSIDE


class Atan2(Binary):
    """The angle of the point (y, x), of the first operand over the second."""

    array_function: ClassVar[str] = "arctan2"
    float_only: ClassVar[bool] = True
    promotes: ClassVar[str] = "float"
    cuda: ClassVar[str] = "atan2({0}, {1})"

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        share = b.emit(Div(), dout, b.emit(Add(), b.emit(Square(), x), b.emit(Square(), y)))
        return gradients(b, x, y, b.emit(Mul(), share, y), b.emit(Neg(), b.emit(Mul(), share, x)))

    samples: ClassVar[Any] = (sample((8, 16), (8, 16), low=0.3), sample((8, 16), (16,), low=0.3))
