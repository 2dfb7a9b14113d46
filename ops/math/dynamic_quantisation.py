"""Rows become integers of 8 bits here, each with a scale of its own."""

from __future__ import annotations

from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, INT8, TensorType, TupleType, Type
from mspc.ops.bases import require_float, require_same
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.sharding.rules import factor_names


class DynamicQuantExt(Op):
    """(every row of x, times smooth_scales, divided by its scale and rounded to Int8; the scales, Float32: a row's
    largest magnitude over 127). Called as `DynamicQuantExt()(x, smooth_scales)`; smooth_scales, as long as a row, may
    be None. A row of zeros has scale 0 and stays zeros."""

    bprop = NotDifferentiable("it serves trained networks")
    samples = (
        sample((8, 4), gradient=False),
        sample((4, 8, 6), (6,), low=0.5, high=2.0, gradient=False),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) not in (1, 2):
            raise MspcError(f"{self.name} takes 1 or 2 arguments, not {len(args)}", kind=TypeError)
        return self, args[:1] if args[-1] is None else args

    def rule(self, *types: TensorType) -> str:
        require_float(self.name, *types)
        require_same(self.name, *types)
        x, *smooth = types
        if not x.shape or len(smooth) > 1:
            raise MspcError(f"{self.name} takes rows and smooth_scales, not {', '.join(str(t) for t in types)}")
        *rows, last = factor_names(len(x.shape))
        lead = " ".join(rows)
        return f"{lead} {last}!{f', {last}!' * len(smooth)} -> {lead} {last}!, {lead}"

    def infer(self, *types: Any) -> Type:
        quantised, rows = self.parsed_rule(*types).output_shapes()
        return TupleType((TensorType(INT8, quantised), TensorType(FLOAT32, rows)))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x, *smooth) = be.xp, inputs
        x = x.astype(xp.float32)
        if smooth:
            x = x * smooth[0].astype(xp.float32)
        scale = xp.abs(x).max(-1, initial=0) / xp.float32(127)
        rounded = xp.rint(x / xp.where(scale > 0, scale, xp.float32(1))[..., None])
        return rounded.astype(xp.int8), scale
