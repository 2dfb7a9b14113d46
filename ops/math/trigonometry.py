"""These are trigonometric and hyperbolic functions and their inverses; angles are in radians."""

from __future__ import annotations

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ops.bases import Binary
from mspc.ops.math.arithmetic import Add, Div, Mul, Neg, Sub, gradients
from mspc.ops.math.elementwise import UNARY_SAMPLES, Gradients, Smooth, Sqrt, Square, constant
from mspc.ops.op import sample

_INSIDE = (sample((8, 16), low=-0.9, high=0.9),)


class Sin(Smooth):
    """Sine, x in radians."""

    array_function = "sin"
    cuda = "sin({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), dout, b.emit(Cos(), x)),)

    samples = UNARY_SAMPLES


class Cos(Smooth):
    """Cosine, x in radians."""

    array_function = "cos"
    cuda = "cos({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Neg(), b.emit(Mul(), dout, b.emit(Sin(), x))),)

    samples = UNARY_SAMPLES


class Tan(Smooth):
    """Tangent, x in radians."""

    array_function = "tan"
    cuda = "tan({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, b.emit(Square(), b.emit(Cos(), x))),)

    samples = _INSIDE


def _root_of_one_minus_square(b: Builder, x: Value) -> Value:
    return b.emit(Sqrt(), b.emit(Sub(), constant(b, 1, x), b.emit(Square(), x)))


class Asin(Smooth):
    """Inverse sine, in radians."""

    array_function = "arcsin"
    cuda = "asin({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, _root_of_one_minus_square(b, x)),)

    samples = _INSIDE


class ACos(Smooth):
    """Inverse cosine, in radians."""

    array_function = "arccos"
    cuda = "acos({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Neg(), b.emit(Div(), dout, _root_of_one_minus_square(b, x))),)

    samples = _INSIDE


class Atan(Smooth):
    """Inverse tangent, in radians."""

    array_function = "arctan"
    cuda = "atan({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, b.emit(Add(), b.emit(Square(), x), constant(b, 1, x))),)

    samples = UNARY_SAMPLES


class Sinh(Smooth):
    """Hyperbolic sine."""

    array_function = "sinh"
    cuda = "sinh({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), dout, b.emit(Cosh(), x)),)

    samples = UNARY_SAMPLES


class Cosh(Smooth):
    """Hyperbolic cosine."""

    array_function = "cosh"
    cuda = "cosh({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), dout, b.emit(Sinh(), x)),)

    samples = UNARY_SAMPLES


class Asinh(Smooth):
    """Inverse hyperbolic sine."""

    array_function = "arcsinh"
    cuda = "asinh({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, b.emit(Cosh(), out)),)

    samples = UNARY_SAMPLES


class Acosh(Smooth):
    """Inverse hyperbolic cosine of x above 1."""

    array_function = "arccosh"
    cuda = "acosh({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, b.emit(Sinh(), out)),)

    samples = (sample((8, 16), low=1.5, high=4.0),)


class Atanh(Smooth):
    """Inverse hyperbolic tangent of x between -1 and 1."""

    array_function = "arctanh"
    cuda = "atanh({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Div(), dout, b.emit(Sub(), constant(b, 1, x), b.emit(Square(), x))),)

    samples = _INSIDE


class Atan2(Binary):
    """The angle of the point (y, x), of the first operand over the second."""

    array_function = "arctan2"
    float_only = True
    promotes = "float"
    cuda = "atan2({0}, {1})"

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        share = b.emit(Div(), dout, b.emit(Add(), b.emit(Square(), x), b.emit(Square(), y)))
        return gradients(b, x, y, b.emit(Mul(), share, y), b.emit(Neg(), b.emit(Mul(), share, x)))

    samples = (sample((8, 16), (8, 16), low=0.3), sample((8, 16), (16,), low=0.3))
