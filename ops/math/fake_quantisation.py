"""These operators round numbers to quantised ones and read them again, for training networks that are quantised later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.bases import require_float
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.ops.operator_arguments import axis_in
from mspc.sharding.rules import factor_names

Gradients = Sequence[Value | None]


class _FakeQuant(Op, abstract=True):
    """x as it is after being written in `num_bits` bits between min and max, which are moved so that 0 is exact: what
    quantised networks are trained with. Jacob et al., arXiv 1712.05877. Gradients pass between min and max.

    symmetric: between -m and m, m the larger of |min| and |max|. narrow_range: without the lowest integer. ema,
    ema_decay, training say how others find min and max, and change nothing here; quant_delay must be 0.
    """

    num_bits: int = 8
    ema: bool = False
    ema_decay: float = 0.999
    quant_delay: int = 0
    symmetric: bool = False
    narrow_range: bool = False
    training: bool = True

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        if self.quant_delay:
            raise MspcError(f"{self.name}: quant_delay is {self.quant_delay}, not 0; steps are not counted here")
        if not 1 < self.num_bits <= 16:
            raise MspcError(f"{self.name}: num_bits is {self.num_bits}, not 2 to 16")
        return super().infer(*types)

    def limits(self, xp: Any, low: Any, high: Any) -> tuple[Any, Any, Any]:
        """(lowest, highest, distance of neighbours) of the numbers that can be written."""
        last = 2**self.num_bits - 1
        first = int(self.narrow_range)
        low, high = low.astype(np.float32), high.astype(np.float32)
        if self.symmetric:
            high = xp.maximum(xp.abs(low), xp.abs(high))
            low = -high
        low, high = xp.minimum(low, 0), xp.maximum(high, 0)
        step = (high - low) / (last - first)
        step = xp.where(step == 0, 1, step)
        zero = xp.clip(xp.rint(first - low / step), first, last)
        return (first - zero) * step, (last - zero) * step, step

    def across(self, x: Any) -> tuple[int, ...]:
        """The shape in which min and max are broadcast to x, an array or a type."""
        return (1,) * len(x.shape)

    def limits_of(self, xp: Any, x: Any, low: Any, high: Any) -> list[Any]:
        return [found.reshape(self.across(x)) for found in self.limits(xp, low, high)]

    def check(self, x: TensorType, low: TensorType, high: TensorType) -> None:
        """Raises MspcError where min and max do not fit x."""
        wanted = math.prod(self.across(x))
        for what, limit in (("min", low), ("max", high)):
            if limit.shape != (wanted,):
                raise MspcError(f"{self.name}: {what} must have the shape ({wanted},), not {limit.shape}")

    def sides(self, x: TensorType) -> tuple[str, str]:
        """The rule's texts of x and of its limits."""
        return " ".join(factor_names(len(x.shape))), "1"

    def rounded(self, be: ArrayBackend, inputs: Sequence[Any]) -> Any:
        xp, (x, *ends) = be.xp, inputs
        low, high, step = self.limits_of(xp, x, *ends)
        return (xp.floor((xp.clip(x, low, high) - low) / step + 0.5) * step + low).astype(x.dtype)

    def passed(self, be: ArrayBackend, inputs: Sequence[Any]) -> Any:
        xp, (dout, x, *ends) = be.xp, inputs
        low, high, _ = self.limits_of(xp, x, *ends)
        return dout * ((x >= low) & (x <= high))


class FakeQuantPerLayer(_FakeQuant):
    """One min and one max, each of shape (1,)."""

    samples = (
        sample((8, 4), (1,), (1,), low=0.5, gradient=False),
        sample((8, 4), (1,), (1,), low=0.5, gradient=False, num_bits=4, symmetric=True, narrow_range=True),
    )

    def rule(self, x: TensorType, min: TensorType, max: TensorType) -> str:
        self.check(x, min, max)
        side, small = self.sides(x)
        return f"{side}, {small}, {small} -> {side}"

    def bprop(self, b: Builder, x: Value, low: Value, high: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(FakeQuantPerLayerGrad(**self.attributes()), dout, x, low, high), None, None

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.rounded(be, inputs)


class FakeQuantPerLayerGrad(_FakeQuant):
    """dout where x lies between the numbers that can be written, else 0."""

    linear_in = (0,)
    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    samples = (sample((8, 4), (8, 4), (1,), (1,), low=0.5),)

    def rule(self, dout: TensorType, x: TensorType, min: TensorType, max: TensorType) -> str:
        self.check(x, min, max)
        side, small = self.sides(x)
        return f"{side}, {side}, {small}, {small} -> {side}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.passed(be, inputs)


class _PerChannel(_FakeQuant, abstract=True):
    """min and max of every channel, [channels]. channel_axis: the dimension of x that they are of."""

    channel_axis: int = 1

    def across(self, x: Any) -> tuple[int, ...]:
        axis = axis_in(self.name, self.channel_axis, len(x.shape))
        return tuple(n if d == axis else 1 for d, n in enumerate(x.shape))

    def sides(self, x: TensorType) -> tuple[str, str]:
        names = factor_names(len(x.shape))
        return " ".join(names), names[axis_in(self.name, self.channel_axis, len(names))]


class FakeQuantPerChannel(_PerChannel):
    """FakeQuantPerLayer with its own numbers for every channel."""

    samples = (
        sample((8, 4, 2), (4,), (4,), low=0.5, gradient=False),
        sample((4, 8), (4,), (4,), low=0.5, gradient=False, channel_axis=0, symmetric=True),
    )

    def rule(self, x: TensorType, min: TensorType, max: TensorType) -> str:
        self.check(x, min, max)
        side, small = self.sides(x)
        return f"{side}, {small}, {small} -> {side}"

    def bprop(self, b: Builder, x: Value, low: Value, high: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(FakeQuantPerChannelGrad(**self.attributes()), dout, x, low, high), None, None

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.rounded(be, inputs)


class FakeQuantPerChannelGrad(_PerChannel):
    """FakeQuantPerLayerGrad with its own numbers for every channel."""

    linear_in = (0,)
    bprop = NotDifferentiable("it is a gradient, and its second derivative is not built")
    samples = (sample((8, 4, 2), (8, 4, 2), (4,), (4,), low=0.5),)

    def rule(self, dout: TensorType, x: TensorType, min: TensorType, max: TensorType) -> str:
        self.check(x, min, max)
        side, small = self.sides(x)
        return f"{side}, {side}, {small}, {small} -> {side}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.passed(be, inputs)
