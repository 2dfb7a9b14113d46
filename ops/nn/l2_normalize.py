"""These operators make tensors as long as 1 along an axis, which must not be sharded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.cuda.row_kernels import RowPass, normalise
from mspc.ops.cuda.source import Operand
from mspc.ops.device import Array, Device, Launch
from mspc.ops.nn.norm import NO_SECOND, Gradients, Norm
from mspc.ops.op import ArrayBackend, sample
from mspc.ops.operator_arguments import axes_in, ints_of
from mspc.ops.tensor.broadcast import Axis
from mspc.sharding.rules import factor_names


def normalised_rule(name: str, shape: Sequence[int], axis: Axis, inputs: int) -> str:
    """`inputs` tensors of one shape; the dimensions `axis` must not be sharded."""
    if not shape:
        raise MspcError(f"{name}: a number has no axis {axis}", kind=ValueError)
    axes = axes_in(name, ints_of(name, "axis", axis), len(shape))
    side = " ".join(n + "!" * (d in axes) for d, n in enumerate(factor_names(len(shape))))
    return f"{', '.join([side] * inputs)} -> {side}"


class L2Normalize(Norm):
    """x over the root of the larger of `epsilon` and the sum of its squares along `axis`."""

    axis: Axis = 0
    epsilon: float = 1e-4
    samples = (
        sample((8, 16)),
        sample((8, 16), axis=-1),
        sample((8, 16), axis=1, epsilon=1e3),
        sample((8, 4, 4), axis=(1, 2)),
    )

    def rule(self, x: TensorType) -> str:
        return normalised_rule(self.name, x.shape, self.axis, 1)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(L2NormalizeGrad(self.axis, self.epsilon), x, out, dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        total = xp.sum(x * x, axis=self.axis, keepdims=True)
        return x / xp.sqrt(xp.maximum(total, self.epsilon))

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        least = f"(A){self.epsilon}"
        root = f"total = 1 / sqrt_of(total < {least} ? {least} : total);"
        stages = (RowPass((("total", "Sum", "x * x"),), then=root),)
        return normalise(device, "l2_normalize", self.axis, [Operand("x", inputs[0])], out, stages, "x * total")


class L2NormalizeGrad(Norm):
    """Gradient of L2Normalize, of (x, its result, dout)."""

    axis: Axis = 0
    epsilon: float = 1e-4
    linear_in = (2,)
    bprop = NO_SECOND
    samples = (sample((8, 16), (8, 16), (8, 16)), sample((8, 4), (8, 4), (8, 4), axis=-1))

    def rule(self, x: TensorType, out: TensorType, dout: TensorType) -> str:
        return normalised_rule(self.name, x.shape, self.axis, 3)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        x, out, dout = inputs
        total = xp.sum(x * x, axis=self.axis, keepdims=True)
        along = xp.sum(out * dout, axis=self.axis, keepdims=True) * (total > self.epsilon)
        return (dout - out * along) / xp.sqrt(xp.maximum(total, self.epsilon))

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        least = f"(A){self.epsilon}"
        then = f"along = total > {least} ? along : 0; total = 1 / sqrt_of(total < {least} ? {least} : total);"
        stages = (RowPass((("total", "Sum", "x * x"), ("along", "Sum", "y * g")), then=then),)
        operands = [Operand(name, array) for name, array in zip("xyg", inputs, strict=True)]
        result = "(g - y * along) * total"
        return normalise(device, "l2_normalize_gradient", self.axis, operands, out, stages, result)
