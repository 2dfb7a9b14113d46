"""Activation functions and the operators of their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.types import TensorType
from mspc.ops import gpu
from mspc.ops.bases import Binary, Elementwise, Unary
from mspc.ops.cpu.blocks import written
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Add, Greater, LogicalAnd, Mul, Select, Term, binary, constant, select, unary
from mspc.ops.math.elementwise import UNARY_SAMPLES, Abs, Square
from mspc.ops.op import ArrayBackend, Gradients, sample
from mspc.ops.tensor.reshape import Reshape, as_shape, sum_to_shape
from mspc.sharding.rules import factor_names, same_rule

_PAIR = (sample((8, 16), (8, 16)), sample((), ()))
_TRIPLE = (sample((8, 16), (8, 16), (8, 16)),)


class Activation(Unary, abstract=True):
    """A function of floating-point numbers."""

    float_only = True
    samples = UNARY_SAMPLES


class _Gradient(Binary, abstract=True):
    """Base of gradients of dout and one more tensor, of one shape."""

    promotes = ""


class ReLU(Unary):
    """max(x, 0); its derivative at 0 is 0."""

    cuda = "{0} < T(0) ? T(0) : {0}"
    fills = True

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(ReluGrad(), dout, out),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        maximum = be.xp.maximum
        return lambda x, out=None: maximum(x, x.dtype.type(0), out=out)

    samples = (*UNARY_SAMPLES, sample((8,), dtypes=("Int32",), gradient=False))


class ReluGrad(_Gradient):
    """dout if y, the result of ReLU, is positive, else 0."""

    linear_in = (0,)
    cuda = "{1} > T(0) ? {0} : T(0)"
    fills = True
    samples = _PAIR

    def bprop(self, b: Builder, dy: Value, y: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(ReluGrad(), dout, y), None

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        xp = be.xp

        def kernel(dy: Any, y: Any, out: Any = None) -> Any:
            found = xp.where(y > 0, dy, dy.dtype.type(0))
            return found if out is None else written(found, out)

        return kernel


class PReLU(Elementwise):
    """x if it is positive, else weight * x; one weight, or one per channel (dimension 1)."""

    float_only = True
    broadcasts = False  # the second operand is aligned with dimension 1
    cuda = "{0} > T(0) ? {0} : {0} * {1}"

    def rule(self, x: TensorType, weight: TensorType) -> str:
        return prelu_rule(x, weight)

    def bprop(self, b: Builder, x: Value, weight: Value, out: Value, dout: Value) -> Gradients:
        slope = channel_shaped(b, weight, len(x.shape))
        positive = b.emit(Greater(), x, constant(b, 0, x))
        dx = b.emit(Select(), positive, dout, b.emit(Mul(), dout, slope))
        product = b.emit(Select(), positive, constant(b, 0, x), b.emit(Mul(), dout, x))
        total = sum_to_shape(b, product, slope.shape)
        return dx, as_shape(b, total, weight.shape)

    def as_reductions(self, b: Builder, x: Value, weight: Value) -> Sequence[Value]:
        scaled = b.emit(Mul(), x, channel_shaped(b, weight, len(x.shape)))
        return (b.emit(Select(), b.emit(Greater(), x, constant(b, 0, x)), x, scaled),)

    def compute(self, xp: Any, x: Any, weight: Any) -> Any:
        return xp.where(x > 0, x, x * weight.reshape(self._along_channels(x)))

    def launch(self, device: Device, out: Any, x: Array, weight: Array) -> Launch | None:
        return gpu.elementwise.launch_elementwise(device, self, (x, weight.reshape(self._along_channels(x))), out)

    def _along_channels(self, x: Any) -> tuple[int, ...]:
        return (-1,) + (1,) * max(0, x.ndim - 2)

    samples = (sample((8, 16), (16,)), sample((8, 4, 2, 2), (4,)), sample((8, 16), (1,)))


Sigmoid = unary(
    "Sigmoid", "1 / (1 + exp(-x)), without overflow.", Activation, lambda x, y, d: y.into(SigmoidGrad(), d),
    lambda xp, x: sigmoid(xp, x), cuda="sigmoid({0})",
    samples=(*UNARY_SAMPLES, sample((8,), low=-800, high=800, gradient=False)),
)  # fmt: skip


def sigmoid(xp: Any, x: Any) -> Any:
    """Return the logistic function of an array, from the exponential of -|x| so that nothing overflows."""
    small = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1, small) / (1 + small)


def _slopes_of_sigmoid(y: Term, dy: Term, out: Term, d: Term) -> tuple[Term, Term]:
    slope = 1 - y * 2
    return d * dy * slope, y.into(SigmoidGrad(), d)


SigmoidGrad = binary(
    "SigmoidGrad", "dout * y * (1 - y) for y, the result of Sigmoid.", _Gradient, _slopes_of_sigmoid,
    lambda xp, y, dy: dy * y * (1 - y), linear_in=(1,), cuda="{1} * {0} * (T(1) - {0})", samples=_PAIR,
)  # fmt: skip


Tanh = unary(
    "Tanh", "Hyperbolic tangent.", Activation, lambda x, y, d: y.into(TanhGrad(), d),
    array_function="tanh", cuda="tanh({0})",
)  # fmt: skip


def _slopes_of_tanh(y: Term, dy: Term, out: Term, d: Term) -> tuple[Term, Term]:
    slope = y * -2
    return d * dy * slope, y.into(TanhGrad(), d)


TanhGrad = binary(
    "TanhGrad", "dout * (1 - y * y) for y, the result of Tanh.", _Gradient, _slopes_of_tanh,
    lambda xp, y, dy: dy * (1 - y * y), linear_in=(1,), cuda="{1} * (T(1) - {0} * {0})", samples=_PAIR,
)  # fmt: skip


_GELU_SCALE = math.sqrt(2 / math.pi)
_GELU_CUBE = 0.044715


class GeLU(Activation):
    """x * P(X <= x) for a normal X, by the tanh formula: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).

    Hendrycks and Gimpel, arXiv 1606.08415.
    """

    cuda = "gelu({0})"
    fills = True

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(GeLUGrad(), dout, x, out),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        xp = be.xp
        return lambda x, out=None: xp.multiply((_gelu_tanh(xp, x) + 1) * x, 0.5, out=out)


class GeLUGrad(Elementwise):
    """dout times the derivative of GeLU at x; y, its result, is not needed but part of the signature."""

    linear_in = (0,)
    cuda = "{0} * gelu_slope({1})"
    fills = True
    samples = _TRIPLE

    def bprop(self, b: Builder, dy: Value, x: Value, y: Value, out: Value, dout: Value) -> tuple[Value | None, ...]:
        """With t = tanh(u(x)) the second derivative of GeLU is (1 - t^2) (u' + x u'' / 2 - x t u'^2)."""
        z, cube = Term(b, x), 3 * _GELU_CUBE
        t = (z * (z * z * _GELU_CUBE + 1) * _GELU_SCALE).into(Tanh())
        slope = (z * z * cube + 1) * _GELU_SCALE
        second = (1 - t * t) * (slope + z * z * (cube * _GELU_SCALE) - z * t * slope * slope)
        return b.emit(GeLUGrad(), dout, x, y), (Term(b, dout) * Term(b, dy) * second).value, None

    def rule(self, dy: TensorType, x: TensorType, y: TensorType) -> str:
        return same_rule(dy.shape, 3)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        xp = be.xp

        def kernel(dy: Any, x: Any, y: Any, out: Any = None) -> Any:
            """Return dy (1 + t) (1/2 + (1 - t) slope); 2 slope is the derivative of the argument of the tanh t, times
            x."""
            t = _gelu_tanh(xp, x)
            slope = (x * x * (1.5 * _GELU_CUBE * _GELU_SCALE) + 0.5 * _GELU_SCALE) * x
            return xp.multiply((slope * (1 - t) + 0.5) * (1 + t), dy, out=out)

        return kernel


def _gelu_tanh(xp: Any, x: Any) -> Any:
    """Return tanh(sqrt(2 / pi) (x + 0.044715 x^3))."""
    return xp.tanh((x * x * (_GELU_CUBE * _GELU_SCALE) + _GELU_SCALE) * x)


SiLU = unary(
    "SiLU", "x * sigmoid(x).", Activation, lambda x, y, d: d.into(SiLUGrad(), x), lambda xp, x: x * sigmoid(xp, x),
    cuda="{0} * sigmoid({0})",
)  # fmt: skip


def _slopes_of_silu(dy: Term, x: Term, out: Term, d: Term) -> tuple[Term, Term]:
    s = x.into(Sigmoid())
    second = s * (1 - s) * (x * (1 - s * 2) + 2)
    return d.into(SiLUGrad(), x), d * dy * second


def _silu_gradient(xp: Any, dy: Any, x: Any) -> Any:
    s = sigmoid(xp, x)
    return dy * (s * (1 + x * (1 - s)))


SiLUGrad = binary(
    "SiLUGrad", "dout times the derivative of SiLU at x.", _Gradient, _slopes_of_silu, _silu_gradient, linear_in=(0,),
    cuda="{0} * sigmoid({1}) * (T(1) + {1} * (T(1) - sigmoid({1})))", samples=(sample((8, 16), (8, 16)),),
)  # fmt: skip


FastGeLU = unary(
    "FastGeLU", "x * sigmoid(1.702 x).", Activation, lambda x, y, d: d.into(SiLUGrad(), x * 1.702),
    lambda xp, x: x * sigmoid(xp, x * 1.702), cuda="{0} * sigmoid(T(1.702) * {0})",
)  # fmt: skip
Softplus = unary(
    "Softplus", "log(1 + exp(x)), without overflow.", Activation, lambda x, y, d: d * x.into(Sigmoid()),
    lambda xp, x: xp.log1p(xp.exp(-xp.abs(x))) + xp.maximum(x, 0), cuda="softplus({0})",
)  # fmt: skip


def prelu_rule(x: TensorType, weight: TensorType) -> str:
    """Return the rule: channels are dimension 1, or the whole of a vector; one weight serves all."""
    if len(weight.shape) != 1 or not x.shape:
        raise MspcError(
            f"PReLU needs one dimension in input 1 and at least one in input 0; the shapes are "
            f"{x.shape} and {weight.shape}", code="E0303"
        )
    names = factor_names(len(x.shape))
    channel = "1" if weight.shape == (1,) else names[min(1, len(names) - 1)]
    return f"{' '.join(names)}, {channel} -> {' '.join(names)}"


def channel_shaped(b: Builder, weight: Value, rank: int) -> Value:
    """Return a weight per channel in the shape that broadcasts along dimension 1 of `rank` dimensions."""
    if rank <= 2:
        return weight
    return b.emit(Reshape((weight.shape[0], *(1,) * (rank - 2))), weight)

_WIDE = (sample((8, 16), low=-8, high=8), sample((), low=-8, high=8))


def _between(low: float, x: Term, high: float) -> Term:
    above = x.into(Greater(), low)
    return above.into(LogicalAnd(), Term(x.b, constant(x.b, high, x.value)).into(Greater(), x))


class ReLU6(Activation):
    """min(max(x, 0), 6)."""

    cuda = "clip({0}, T(0), T(6))"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        inside = b.emit(Select(), b.emit(Greater(), constant(b, 6, x), x), dout, constant(b, 0, x))
        return (b.emit(ReluGrad(), inside, x),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        clip = be.xp.clip
        return lambda x: clip(x, 0, 6)

    samples = (sample((8, 16), low=-8, high=8),)


class Elu(Activation):
    """x if it is positive, else alpha * (exp(x) - 1)."""

    alpha: float = 1.0

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        slope = b.emit(Add(), out, constant(b, self.alpha, x))
        positive = b.emit(Greater(), x, constant(b, 0, x))
        return (b.emit(Select(), positive, dout, b.emit(Mul(), dout, slope)),)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on alpha
        return f"{{0}} > T(0) ? {{0}} : expm1({{0}}) * {gpu.text.number(self.alpha)}"

    def compute(self, xp: Any, x: Any) -> Any:
        return xp.where(x > 0, x, xp.expm1(xp.minimum(x, 0)) * self.alpha)

    samples = (*UNARY_SAMPLES, sample((8, 16), alpha=0.5))


_SELU_SCALE = 1.0507009873554805
_SELU_ALPHA = 1.6732632423543772


def _slope_of_selu(x: Term, y: Term, d: Term) -> Term:
    positive, slope = x.into(Greater(), 0), y + _SELU_SCALE * _SELU_ALPHA
    return select(positive, d * _SELU_SCALE, d * slope)


SeLU = unary(
    "SeLU", "scale * x above 0, scale * alpha * (exp(x) - 1) elsewhere; Klambauer et al., arXiv 1706.02515.",
    Activation, _slope_of_selu,
    lambda xp, x: xp.where(x > 0, x, xp.expm1(xp.minimum(x, 0)) * _SELU_ALPHA) * _SELU_SCALE,
    cuda=f"({{0}} > T(0) ? {{0}} : expm1({{0}}) * real<T>({_SELU_ALPHA})) * real<T>({_SELU_SCALE})",
)  # fmt: skip
HSigmoid = unary(
    "HSigmoid", "x / 6 + 1 / 2, clipped to [0, 1].", Activation,
    lambda x, y, d: select(_between(-3, x, 3), d * (1 / 6), 0), lambda xp, x: xp.clip(x * (1 / 6) + 0.5, 0, 1),
    cuda="clip({0} * T(1.0 / 6.0) + T(0.5), T(0), T(1))", samples=_WIDE,
)  # fmt: skip
HSwish = unary(
    "HSwish", "x * HSigmoid(x).", Activation,
    lambda x, y, d: d * (x.into(HSigmoid()) + select(_between(-3, x, 3), x * (1 / 6), 0)),
    lambda xp, x: x * xp.clip(x * (1 / 6) + 0.5, 0, 1),
    cuda="{0} * clip({0} * T(1.0 / 6.0) + T(0.5), T(0), T(1))", samples=_WIDE,
)  # fmt: skip


class _Shrink(Activation, abstract=True):
    """The result is 0 if the absolute value of x is below lambd; elsewhere its slope is 1."""

    lambd: float = 0.5
    samples = (sample((8, 16)), sample((8, 16), lambd=1.0))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        outside = b.emit(Greater(), b.emit(Abs(), x), constant(b, self.lambd, x))
        return (b.emit(Select(), outside, dout, constant(b, 0, x)),)


class HShrink(_Shrink):
    """x if its absolute value is above lambd, else 0."""

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on lambd
        return f"{{0}} * T(absolute({{0}}) > {gpu.text.number(self.lambd)})"

    def compute(self, xp: Any, x: Any) -> Any:
        return x * (xp.abs(x) > self.lambd)


class SoftShrink(_Shrink):
    """x moved towards 0 by lambd, and 0 if its absolute value is below lambd."""

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on lambd
        return f"{{0}} - clip({{0}}, {gpu.text.number(-self.lambd)}, {gpu.text.number(self.lambd)})"

    def compute(self, xp: Any, x: Any) -> Any:
        return x - xp.clip(x, -self.lambd, self.lambd)


Softsign = unary(
    "Softsign", "x / (1 + |x|).", Activation, lambda x, y, d: d / (x.into(Abs()) + 1).into(Square()),
    lambda xp, x: x / (xp.abs(x) + 1), cuda="{0} / (absolute({0}) + T(1))",
)  # fmt: skip


def _slope_of_mish(x: Term, y: Term, d: Term) -> Term:
    tanh = x.into(Softplus()).into(Tanh())
    steep = 1 - tanh.into(Square())
    return d * (tanh + x * x.into(Sigmoid()) * steep)


Mish = unary(
    "Mish", "x * tanh(log(1 + exp(x))); Misra, arXiv 1908.08681.", Activation, _slope_of_mish,
    lambda xp, x: x * xp.tanh(xp.log1p(xp.exp(-xp.abs(x))) + xp.maximum(x, 0)), cuda="{0} * tanh(softplus({0}))",
)  # fmt: skip
