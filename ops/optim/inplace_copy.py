"""This operator writes a tensor into a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType, Type
from mspc.ops.bases import require_same
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.ops.tensor.broadcast import sum_to_shape
from mspc.sharding.rules import broadcast_rule


class InplaceCopy(Op):
    """input = src, broadcast to its shape, for a parameter `input`; the result is its new value."""

    has_side_effect = True
    mutates = (0,)
    samples = (
        sample((8, 16), (8, 16), gradient=False),
        sample((8, 16), (16,), gradient=False),
        sample((4, 8), (4, 1), gradient=False),
    )

    def rule(self, input: TensorType, src: TensorType) -> str:
        text = broadcast_rule((input.shape, src.shape))
        if len(src.shape) > len(input.shape) or any(
            n not in (1, m) for n, m in zip(reversed(src.shape), reversed(input.shape), strict=False)
        ):
            raise MspcError(f"{self.name}: src of shape {src.shape} does not fit input of shape {input.shape}")
        return text

    def infer(self, *types: Any) -> Type:
        require_same(self.name, *types)
        return super().infer(*types)

    def bprop(self, b: Builder, input: Value, src: Value, out: Value, dout: Value) -> Sequence[Value | None]:
        return None, sum_to_shape(b, dout, src.shape)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        variable, value = inputs
        variable[...] = value
        return variable
