"""These are the Bessel functions of order 0 and 1: J, Y and the modified I and K; the last two also scaled by an
exponential.
"""

from __future__ import annotations

from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ops.bases import ArrayFunction
from mspc.ops.cpu.bessel import bessel_i, bessel_j, bessel_k, bessel_y
from mspc.ops.math.arithmetic import Add, Div, Mul, Neg, Sub
from mspc.ops.math.comparison import Equal, Select
from mspc.ops.math.elementwise import POSITIVE_INPUT, UNARY_SAMPLES, Gradients, Sign, constant
from mspc.ops.op import ArrayBackend


class _Bessel(ArrayFunction, abstract=True):
    """Computed in Float64."""

    def of(self, xp: Any, x: Any) -> Any:
        """The function of an array of Float64."""
        raise NotImplementedError

    def slope(self, b: Builder, x: Value, out: Value) -> Value:
        """The derivative, `out` being the function's value."""
        raise NotImplementedError

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), dout, self.slope(b, x, out)),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        return self.of(be.xp, x.astype(be.xp.float64)).astype(x.dtype)


def _over(b: Builder, out: Value, x: Value) -> Value:
    """out / x, and 1/2 at 0, to which I and J of order 1 divided by x tend there."""
    zero = b.emit(Equal(), x, constant(b, 0, x))
    quotient = b.emit(Div(), out, b.emit(Select(), zero, constant(b, 1, x), x))
    return b.emit(Select(), zero, constant(b, 0.5, x), quotient)


class BesselI0(_Bessel):
    """The modified Bessel function of the first kind, of order 0."""

    samples = UNARY_SAMPLES

    def of(self, xp: Any, x: Any) -> Any:
        return bessel_i(xp, x, 0, scaled=False)

    def slope(self, b: Builder, x: Value, out: Value) -> Value:
        return b.emit(BesselI1(), x)


class BesselI1(_Bessel):
    """The modified Bessel function of the first kind, of order 1."""

    samples = UNARY_SAMPLES

    def of(self, xp: Any, x: Any) -> Any:
        return bessel_i(xp, x, 1, scaled=False)

    def slope(self, b: Builder, x: Value, out: Value) -> Value:
        return b.emit(Sub(), b.emit(BesselI0(), x), _over(b, out, x))


class BesselI0e(_Bessel):
    """exp(-|x|) times the modified Bessel function of the first kind, of order 0."""

    samples = UNARY_SAMPLES

    def of(self, xp: Any, x: Any) -> Any:
        return bessel_i(xp, x, 0, scaled=True)

    def slope(self, b: Builder, x: Value, out: Value) -> Value:
        return b.emit(Sub(), b.emit(BesselI1e(), x), b.emit(Mul(), b.emit(Sign(), x), out))


class BesselI1e(_Bessel):
    """exp(-|x|) times the modified Bessel function of the first kind, of order 1."""

    samples = UNARY_SAMPLES

    def of(self, xp: Any, x: Any) -> Any:
        return bessel_i(xp, x, 1, scaled=True)

    def slope(self, b: Builder, x: Value, out: Value) -> Value:
        falling = b.emit(Add(), b.emit(Mul(), b.emit(Sign(), x), out), _over(b, out, x))
        return b.emit(Sub(), b.emit(BesselI0e(), x), falling)


class BesselK0(_Bessel):
    """The modified Bessel function of the second kind, of order 0: infinite at 0, not a number below."""

    samples = POSITIVE_INPUT

    def of(self, xp: Any, x: Any) -> Any:
        return bessel_k(xp, x, 0, scaled=False)

    def slope(self, b: Builder, x: Value, out: Value) -> Value:
        return b.emit(Neg(), b.emit(BesselK1(), x))


class BesselK1(_Bessel):
    """The modified Bessel function of the second kind, of order 1: infinite at 0, not a number below."""

    samples = POSITIVE_INPUT

    def of(self, xp: Any, x: Any) -> Any:
        return bessel_k(xp, x, 1, scaled=False)

    def slope(self, b: Builder, x: Value, out: Value) -> Value:
        return b.emit(Neg(), b.emit(Add(), b.emit(BesselK0(), x), b.emit(Div(), out, x)))


class BesselK0e(_Bessel):
    """exp(x) times the modified Bessel function of the second kind, of order 0."""

    samples = POSITIVE_INPUT

    def of(self, xp: Any, x: Any) -> Any:
        return bessel_k(xp, x, 0, scaled=True)

    def slope(self, b: Builder, x: Value, out: Value) -> Value:
        return b.emit(Sub(), out, b.emit(BesselK1e(), x))


class BesselK1e(_Bessel):
    """exp(x) times the modified Bessel function of the second kind, of order 1."""

    samples = POSITIVE_INPUT

    def of(self, xp: Any, x: Any) -> Any:
        return bessel_k(xp, x, 1, scaled=True)

    def slope(self, b: Builder, x: Value, out: Value) -> Value:
        return b.emit(Sub(), out, b.emit(Add(), b.emit(BesselK0e(), x), b.emit(Div(), out, x)))


class BesselJ0(_Bessel):
    """The Bessel function of the first kind, of order 0."""

    samples = UNARY_SAMPLES

    def of(self, xp: Any, x: Any) -> Any:
        return bessel_j(xp, x, 0)

    def slope(self, b: Builder, x: Value, out: Value) -> Value:
        return b.emit(Neg(), b.emit(BesselJ1(), x))


class BesselJ1(_Bessel):
    """The Bessel function of the first kind, of order 1."""

    samples = UNARY_SAMPLES

    def of(self, xp: Any, x: Any) -> Any:
        return bessel_j(xp, x, 1)

    def slope(self, b: Builder, x: Value, out: Value) -> Value:
        return b.emit(Sub(), b.emit(BesselJ0(), x), _over(b, out, x))


class BesselY0(_Bessel):
    """The Bessel function of the second kind, of order 0: minus infinity at 0, not a number below."""

    samples = POSITIVE_INPUT

    def of(self, xp: Any, x: Any) -> Any:
        return bessel_y(xp, x, 0)

    def slope(self, b: Builder, x: Value, out: Value) -> Value:
        return b.emit(Neg(), b.emit(BesselY1(), x))


class BesselY1(_Bessel):
    """The Bessel function of the second kind, of order 1: minus infinity at 0, not a number below."""

    samples = POSITIVE_INPUT

    def of(self, xp: Any, x: Any) -> Any:
        return bessel_y(xp, x, 1)

    def slope(self, b: Builder, x: Value, out: Value) -> Value:
        return b.emit(Sub(), b.emit(BesselY0(), x), b.emit(Div(), out, x))
