"""Local response normalisation divides a place by a power of the squares of the channels around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.bases import require_float
from mspc.ops.math.arithmetic import Add, Mul, Sub
from mspc.ops.math.elementwise import Pow, constant, scaled
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.sharding.rules import factor_names

Gradients = Sequence[Value | None]


class _OfChannels(Op, abstract=True):
    """depth_radius: channels on each side of a place's own."""

    depth_radius: int = 5

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        return super().infer(*types)

    def rule(self, x: TensorType) -> str:
        radius: Any = self.depth_radius
        if isinstance(radius, bool) or not isinstance(radius, int) or radius < 0:
            raise MspcError(f"{self.name}: depth_radius must be an integer of at least 0, not {radius!r}")
        if len(x.shape) < 2:
            raise MspcError(f"{self.name}: the input must have at least 2 dimensions, but its shape is {x.shape}")
        names = factor_names(len(x.shape))
        side = " ".join(name + "!" * (d == 1) for d, name in enumerate(names))
        return f"{side} -> {side}"


class ChannelWindowSum(_OfChannels):
    """The sum over each channel and those around it."""

    linear_in = (0,)
    samples = (sample((4, 6, 4), depth_radius=2), sample((4, 3), depth_radius=5))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(ChannelWindowSum(self.depth_radius), dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        found = xp.array(x)
        for step in range(1, min(self.depth_radius, x.shape[1] - 1) + 1):
            found[:, step:] += x[:, :-step]
            found[:, :-step] += x[:, step:]
        return found


class LRN(_OfChannels):
    """x / (bias + alpha * (the sum of the squares of the channels around))**beta; the channels are not sharded.

    norm_region: "ACROSS_CHANNELS" alone.
    """

    bias: float = 1.0
    alpha: float = 1.0
    beta: float = 0.5
    norm_region: str = "ACROSS_CHANNELS"
    samples = (
        sample((4, 6, 2, 4), depth_radius=2, alpha=0.3, beta=0.75),
        sample((4, 3, 4), depth_radius=5, bias=2.0),
    )

    def rule(self, x: TensorType) -> str:
        if self.norm_region != "ACROSS_CHANNELS":
            raise MspcError(f"LRN: norm_region must be 'ACROSS_CHANNELS', not {self.norm_region!r}")
        return super().rule(x)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        around = b.emit(ChannelWindowSum(self.depth_radius), b.emit(Mul(), x, x))
        scale = b.emit(Add(), scaled(b, self.alpha, around), constant(b, self.bias, x))
        power = b.emit(Pow(), scale, constant(b, -self.beta - 1, x))
        own = b.emit(Mul(), dout, b.emit(Mul(), power, scale))
        others = b.emit(ChannelWindowSum(self.depth_radius), b.emit(Mul(), b.emit(Mul(), dout, x), power))
        return (b.emit(Sub(), own, b.emit(Mul(), scaled(b, 2 * self.alpha * self.beta, x), others)),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        around = ChannelWindowSum(self.depth_radius).run(be, x * x)
        return x * (self.bias + self.alpha * around) ** -self.beta
