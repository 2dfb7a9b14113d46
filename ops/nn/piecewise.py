"""These activation functions are defined piece by piece; their gradients choose by comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ops.cuda.math import number
from mspc.ops.math.arithmetic import Add, Div, Mul, Sub
from mspc.ops.math.comparison import Greater, LogicalAnd, Select
from mspc.ops.math.elementwise import UNARY_SAMPLES, Abs, Square, constant, scaled
from mspc.ops.nn.activation import Activation, ReluGrad, Sigmoid, Softplus, Tanh
from mspc.ops.op import ArrayBackend, sample

Gradients = Sequence[Value | None]
_WIDE = (sample((8, 16), low=-8, high=8), sample((), low=-8, high=8))


def between(b: Builder, low: float, x: Value, high: float) -> Value:
    """Where low < x < high."""
    return b.emit(
        LogicalAnd(), b.emit(Greater(), x, constant(b, low, x)), b.emit(Greater(), constant(b, high, x), x)
    )


class ReLU6(Activation):
    """min(max(x, 0), 6)."""

    cuda = "clip({0}, T(0), T(6))"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        inside = b.emit(Select(), b.emit(Greater(), constant(b, 6, x), x), dout, constant(b, 0, x))
        return (b.emit(ReluGrad(), inside, x),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        clip = be.xp.clip

        def kernel(x: Any) -> Any:
            return clip(x, 0, 6)

        return kernel

    samples = (sample((8, 16), low=-8, high=8),)


class Elu(Activation):
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""

    alpha: float = 1.0

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        slope = b.emit(Add(), out, constant(b, self.alpha, x))
        positive = b.emit(Greater(), x, constant(b, 0, x))
        return (b.emit(Select(), positive, dout, b.emit(Mul(), dout, slope)),)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on alpha
        return f"{{0}} > T(0) ? {{0}} : expm1({{0}}) * {number(self.alpha)}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        return be.xp.where(x > 0, x, be.xp.expm1(be.xp.minimum(x, 0)) * self.alpha)

    samples = (*UNARY_SAMPLES, sample((8, 16), alpha=0.5))


class SeLU(Activation):
    """scale * x above 0, scale * alpha * (exp(x) - 1) elsewhere; Klambauer et al., arXiv 1706.02515."""

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        positive = b.emit(Greater(), x, constant(b, 0, x))
        slope = b.emit(Add(), out, constant(b, _SELU_SCALE * _SELU_ALPHA, x))
        return (b.emit(Select(), positive, scaled(b, _SELU_SCALE, dout), b.emit(Mul(), dout, slope)),)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # made once its constants are known
        return f"({{0}} > T(0) ? {{0}} : expm1({{0}}) * {number(_SELU_ALPHA)}) * {number(_SELU_SCALE)}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        low = be.xp.expm1(be.xp.minimum(x, 0)) * _SELU_ALPHA
        return be.xp.where(x > 0, x, low) * _SELU_SCALE

    samples = UNARY_SAMPLES


_SELU_SCALE = 1.0507009873554805
_SELU_ALPHA = 1.6732632423543772


class HSigmoid(Activation):
    """x / 6 + 1 / 2, clipped to [0, 1]."""

    cuda = "clip({0} * T(1.0 / 6.0) + T(0.5), T(0), T(1))"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        inside = between(b, -3, x, 3)
        return (b.emit(Select(), inside, scaled(b, 1 / 6, dout), constant(b, 0, x)),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.clip(inputs[0] * (1 / 6) + 0.5, 0, 1)

    samples = _WIDE


class HSwish(Activation):
    """x * HSigmoid(x)."""

    cuda = "{0} * clip({0} * T(1.0 / 6.0) + T(0.5), T(0), T(1))"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        gate = b.emit(HSigmoid(), x)
        middle = b.emit(Select(), between(b, -3, x, 3), scaled(b, 1 / 6, x), constant(b, 0, x))
        return (b.emit(Mul(), dout, b.emit(Add(), gate, middle)),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        return x * be.xp.clip(x * (1 / 6) + 0.5, 0, 1)

    samples = _WIDE


class HShrink(Activation):
    """x where its absolute value is above lambd, else 0."""

    lambd: float = 0.5

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        outside = b.emit(Greater(), b.emit(Abs(), x), constant(b, self.lambd, x))
        return (b.emit(Select(), outside, dout, constant(b, 0, x)),)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on lambd
        return f"{{0}} * T(absolute({{0}}) > {number(self.lambd)})"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        return x * (be.xp.abs(x) > self.lambd)

    samples = (sample((8, 16)), sample((8, 16), lambd=1.0))


class SoftShrink(Activation):
    """x moved towards 0 by lambd, and 0 where it would pass it."""

    lambd: float = 0.5

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        outside = b.emit(Greater(), b.emit(Abs(), x), constant(b, self.lambd, x))
        return (b.emit(Select(), outside, dout, constant(b, 0, x)),)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on lambd
        return f"{{0}} - clip({{0}}, {number(-self.lambd)}, {number(self.lambd)})"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        return x - be.xp.clip(x, -self.lambd, self.lambd)

    samples = (sample((8, 16)), sample((8, 16), lambd=1.0))


class Softsign(Activation):
    """x / (1 + |x|)."""

    cuda = "{0} / (absolute({0}) + T(1))"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        bottom = b.emit(Add(), b.emit(Abs(), x), constant(b, 1, x))
        return (b.emit(Div(), dout, b.emit(Square(), bottom)),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        return x / (be.xp.abs(x) + 1)

    samples = UNARY_SAMPLES


class Mish(Activation):
    """x * tanh(log(1 + exp(x))); Misra, arXiv 1908.08681."""

    cuda = "{0} * tanh(softplus({0}))"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        tanh = b.emit(Tanh(), b.emit(Softplus(), x))
        steep = b.emit(Sub(), constant(b, 1, x), b.emit(Square(), tanh))
        slope = b.emit(Add(), tanh, b.emit(Mul(), b.emit(Mul(), x, b.emit(Sigmoid(), x)), steep))
        return (b.emit(Mul(), dout, slope),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        return x * xp.tanh(xp.log1p(xp.exp(-xp.abs(x))) + xp.maximum(x, 0))

    samples = UNARY_SAMPLES
