"""These operators take triangles of matrices, and fill places that a mask names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import BOOL, TensorType
from mspc.ops.bases import Elementwise
from mspc.ops.cuda.move import put_values
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.comparison import Select
from mspc.ops.op import ArrayBackend, Op, RankPlacement, sample
from mspc.ops.tensor.broadcast import sum_to_shape
from mspc.sharding.rules import broadcast_rule, factor_names

Gradients = Sequence[Value | None]


class _Triangle(Op, abstract=True):
    """Of the last two dimensions; on a rank the diagonal counts from its slice."""

    diagonal: int = 0
    linear_in = (0,)

    def rule(self, x: TensorType) -> str:
        if len(x.shape) < 2:
            raise MspcError(f"{self.name} needs at least 2 dimensions in input 0, whose shape is {x.shape}")
        names = " ".join(factor_names(len(x.shape)))
        return f"{names} -> {names}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(type(self)(self.diagonal), dout),)

    def localize(self, placement: RankPlacement) -> Op:
        rows, columns = placement.in_layouts[0].slices_for(placement.rank, placement.in_types[0].shape)[-2:]
        return replace(self, diagonal=self.diagonal + rows.start - columns.start)

    def masked_launch(self, device: Device, x: Array, out: Array, test: str) -> Launch | None:
        """Launch that keeps the elements whose column, counted from the row's number, meets `test`."""
        rows, columns = x.shape[-2:]
        text = f"(long long)(at % {columns}) - (long long)(at / {columns} % {rows}) {test} ? x[at] : narrow<R>(0)"
        return put_values(device, "triangle", out, text, [("x", x)])


class Tril(_Triangle):
    """x on and below the diagonal of the last two dimensions, 0 above; `diagonal` moves it up."""

    samples = (sample((8, 16)), sample((2, 8, 8), diagonal=-2), sample((8, 8), diagonal=3))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.tril(inputs[0], self.diagonal)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        return self.masked_launch(device, inputs[0], out, f"<= {self.diagonal}")


class Triu(_Triangle):
    """x on and above the diagonal of the last two dimensions, 0 below; `diagonal` moves it up."""

    samples = (sample((8, 16)), sample((2, 8, 8), diagonal=-2), sample((8, 8), diagonal=3))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.triu(inputs[0], self.diagonal)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        return self.masked_launch(device, inputs[0], out, f">= {self.diagonal}")


class MaskedFill(Elementwise):
    """value where the mask is true, x elsewhere; value is a scalar."""

    cuda = "{1} ? {2} : {0}"

    def rule(self, x: TensorType, mask: TensorType, value: TensorType) -> str:
        return broadcast_rule((x.shape, mask.shape, value.shape))

    def check(self, *types: TensorType) -> None:
        if types[1].dtype != BOOL:
            raise MspcError(f"MaskedFill: input 1 is {types[1].dtype}, not Bool", kind=TypeError)
        if types[2].dtype != types[0].dtype:
            raise MspcError(f"MaskedFill: input 0 is {types[0].dtype} and input 2 is {types[2].dtype}", kind=TypeError)

    def bprop(self, b: Builder, x: Value, mask: Value, value: Value, out: Value, dout: Value) -> Gradients:
        zero = b.constant(0, dout.tensor_type.dtype)
        dx = b.emit(Select(), mask, zero, dout)
        dvalue = b.emit(Select(), mask, dout, zero)
        return sum_to_shape(b, dx, x.shape), None, sum_to_shape(b, dvalue, value.shape)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, mask, value = inputs
        return be.xp.where(mask, value, x)

    samples = (
        sample((8, 16), (8, 16), (), dtypes=("Float64", "Bool", "Float64")),
        sample((2, 8, 8), (8, 8), (), dtypes=("Float64", "Bool", "Float64")),
    )
