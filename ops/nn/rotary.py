"""These operators give queries and keys their rotary position embedding."""

from __future__ import annotations

from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.types import TensorType
from mspc.ops.math.arithmetic import Mul, Neg
from mspc.ops.op import Gradients, Op, sample
from mspc.ops.operator_arguments import int_of
from mspc.ops.tensor.creation import OnesLike
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.reshape import sum_to_shape, zeros
from mspc.ops.tensor.slicing import take_part


class RotaryPositionEmbedding(Op):
    """x * cos + rotated(x) * sin; rotated(x) is the second half of the last dimension, negated, before the first; cos
    and sin broadcast to x. mode must be 0: pairs of neighbours, 1, are not built. Called as
    `RotaryPositionEmbedding()(x, cos, sin, mode)`."""

    mode: int = 0
    float_only = True
    one_type = True
    settings = (("mode", int_of),)
    optional_settings = 1
    samples = (
        sample((4, 8, 2, 6), (4, 8, 1, 6), (4, 8, 1, 6)),
        sample((4, 2, 8, 4), (1, 1, 8, 4), (1, 1, 8, 4)),
    )

    def rule(self, x: TensorType, cos: TensorType, sin: TensorType) -> str:
        if self.mode:
            raise MspcError(f"{self.name}: mode is {self.mode}, not 0; pairs of neighbours are not built")
        fits = len(x.shape) == len(cos.shape) == 4 and cos.shape == sin.shape and x.shape[3:] == cos.shape[3:]
        if not fits or x.shape[3] % 2 or any(n not in (1, m) for n, m in zip(cos.shape, x.shape, strict=True)):
            raise MspcError(
                f"{self.name}: x {x.shape}, cos {cos.shape} and sin {sin.shape} must have 4 dimensions, the last one "
                "of one even size, and cos and sin broadcast to x"
            )
        table = " ".join("1" if n == 1 else name for n, name in zip(cos.shape[:3], "bsn", strict=True))
        return f"b s n d!, {table} d!, {table} d! -> b s n d!"

    def bprop(self, b: Builder, x: Value, cos: Value, sin: Value, out: Value, dout: Value) -> Gradients:
        half = sin.shape[3] // 2
        halves = [take_part(b, sin, 3, half, 2 * half), take_part(b, sin, 3, 0, half)]
        back = b.emit(Neg(), b.emit(Concat(axis=3), *halves))
        none, one = zeros(b, cos.tensor_type), b.emit(OnesLike(), cos)
        turned = b.emit(self, x, none, one)
        dcos, dsin = (sum_to_shape(b, b.emit(Mul(), dout, factor), cos.shape) for factor in (x, turned))
        return b.emit(self, dout, cos, back), dcos, dsin

    def compute(self, xp: Any, x: Any, cos: Any, sin: Any) -> Any:
        half = x.shape[3] // 2
        turned = xp.concatenate((-x[..., half:], x[..., :half]), axis=-1)
        return x * cos + turned * sin
