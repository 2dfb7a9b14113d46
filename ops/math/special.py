"""These are special functions: the error function and its relatives, and products with a logarithm."""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import FLOAT32, FLOAT64, TensorType
from mspc.ops.bases import Binary
from mspc.ops.cpu.erf import erf
from mspc.ops.math.arithmetic import Div, Mul, Neg, gradients
from mspc.ops.math.comparison import NotEqual, Select
from mspc.ops.math.elementwise import UNARY_SAMPLES, Exp, Gradients, Log, Smooth, Square, constant, scaled
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.ops.tensor.broadcast import sum_to_shape
from mspc.sharding.rules import broadcast_rule


class Erf(Smooth):
    """The error function."""

    cuda = "erf({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        bell = b.emit(Exp(), b.emit(Neg(), b.emit(Square(), x)))
        return (b.emit(Mul(), dout, scaled(b, 2 / math.sqrt(math.pi), bell)),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return erf(be.xp, inputs[0])

    samples = (*UNARY_SAMPLES, sample((8, 16), low=-7, high=7))


class Erfc(Smooth):
    """1 minus the error function; for large x relative accuracy is lost."""

    cuda = "erfc({0})"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        bell = b.emit(Exp(), b.emit(Neg(), b.emit(Square(), x)))
        return (b.emit(Mul(), dout, scaled(b, -2 / math.sqrt(math.pi), bell)),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return (1 - erf(be.xp, inputs[0].astype(be.xp.float64))).astype(inputs[0].dtype)

    samples = UNARY_SAMPLES


class _WithZero(Binary, abstract=True):
    """0 where x is 0, whatever y is."""

    float_only = True
    promotes = "float"
    linear_in = (0,)
    samples = (
        sample((8, 16), (8, 16), low=0.5),
        sample((8, 16), (16,), low=0.5),
        sample((), (8, 16), low=0.5),
    )

    def safe(self, b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
        """(where x is not 0, y with 1 where x is 0)."""
        some = b.emit(NotEqual(), x, constant(b, 0, x))
        return some, b.emit(Select(), some, y, constant(b, 1, y))


class NextAfter(Op):
    """The number that follows x on the way to y, in Float32 or Float64."""

    samples = (
        sample((8, 16), (8, 16)),
        sample((8, 16), (16,), dtypes=("Float32", "Float32"), gradient=False),
    )

    def rule(self, x: TensorType, y: TensorType) -> str:
        if x.dtype != y.dtype or x.dtype not in (FLOAT32, FLOAT64):
            what = f"inputs are {x.dtype} and {y.dtype}, not both Float32 or Float64"
            raise MspcError(f"{self.name}: {what}", kind=TypeError)
        return broadcast_rule((x.shape, y.shape))

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        return sum_to_shape(b, dout, x.shape), None

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.nextafter(*inputs)


class Xlogy(_WithZero):
    """x * log(y), and 0 where x is 0."""

    cuda = "{0} * log({0} == T(0) ? T(1) : {1})"
    samples = _WithZero.samples

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        some, safe = self.safe(b, x, y)
        dx = b.emit(Select(), some, b.emit(Mul(), dout, b.emit(Log(), safe)), constant(b, 0, x))
        return gradients(b, x, y, dx, b.emit(Div(), b.emit(Mul(), dout, x), safe))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        x, y = inputs
        return x * xp.log(xp.where(x == 0, xp.ones_like(y), y))


class Xdivy(_WithZero):
    """x / y, and 0 where x is 0."""

    cuda = "{0} / ({0} == T(0) ? T(1) : {1})"
    samples = _WithZero.samples

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        some, safe = self.safe(b, x, y)
        dx = b.emit(Select(), some, b.emit(Div(), dout, safe), constant(b, 0, x))
        return gradients(b, x, y, dx, b.emit(Neg(), b.emit(Mul(), dout, b.emit(Div(), out, safe))))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        x, y = inputs
        return x / xp.where(x == 0, xp.ones_like(y), y)


class MulNoNan(Binary):
    """x * y, and 0 where y is 0, even when x is infinite or not a number."""

    float_only = True
    cuda = "({1} == T(0) ? T(0) : {0}) * {1}"

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        return gradients(b, x, y, b.emit(MulNoNan(), dout, y), b.emit(MulNoNan(), x, dout))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, y = inputs
        return be.xp.where(y == 0, be.xp.zeros_like(x), x) * y

    samples = (sample((8, 16), (8, 16)), sample((8, 16), (16,)))
