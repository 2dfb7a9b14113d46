"""These operators multiply matrices of integers, or numbers by such a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT16, FLOAT32, INT8, INT32, DType, Type
from mspc.ops.composite_op import Cuts, Emit, WithOptionalOperands, dtype_in, together
from mspc.ops.math.arithmetic import Add
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.math.quantisation import Dequant, Quant, QuantV2, WeightAntiQuant
from mspc.ops.op import sample
from mspc.ops.operator_arguments import dtype_arg
from mspc.ops.tensor.cast import Cast
from mspc.ops.tensor.creation import ZerosLike


def product(
    emit: Emit, transposed: tuple[bool, bool], operands: tuple[Any, Any], cuts: tuple[Cuts | None, Cuts | None]
) -> tuple[Any, Cuts | None]:
    """(the product of matrices, how its strategy shards it)."""
    kind = MatMul if all(len(x.shape) == 2 for x in operands) else BatchMatMul
    found = emit(kind(*transposed), *operands, cuts=together(*cuts))
    x, y = cuts
    if x is None or y is None:
        return found, None
    batch = max(x[:-2], y[:-2], key=len) if len(x) != len(y) else tuple(map(max, x[:-2], y[:-2]))
    return found, (*batch, x[-1] if transposed[0] else x[-2], y[-2] if transposed[1] else y[-1])


class QuantBatchMatmul(WithOptionalOperands):
    """(x1 @ x2 + bias) * scale + offset of Int8 matrices, summed in Int32. Called as `QuantBatchMatmul(...)(x1, x2,
    scale, offset, bias, pertokenScaleOptional)`: scale is [n] or one number (of 64 bits: those of a Float32), offset
    and bias are [n] or None, and pertokenScaleOptional must be None. With dtype Int8 the result is rounded."""

    transpose_x1: bool = False
    transpose_x2: bool = False
    dtype: DType = FLOAT16
    given: tuple[str, ...] = ("x1", "x2", "scale")
    order = ("x1", "x2", "scale", "offset", "bias", "pertokenScaleOptional")
    needed = 3
    samples = (
        sample((4, 8), (8, 6), (6,), dtypes=("Int8", "Int8", "Float32"), low=-9, high=9, gradient=False),
        sample((2, 4, 8), (6, 8), (1,), (6,), (6,), dtypes=("Int8", "Int8", "Float32", "Float32", "Int32"), low=-9,
               high=9, gradient=False, transpose_x2=True, dtype=INT8, given=order[:5]),
    )  # fmt: skip

    def infer(self, *types: Any) -> Type:
        for name, operand in list(self.named(types).items())[:2]:
            if operand.dtype != INT8:
                raise MspcError(f"{self.name}: {name} is {operand.dtype}, not Int8", kind=TypeError)
        return super().infer(*types)

    def compose(self, emit: Emit, cuts: Sequence[Cuts] | None, operands: Sequence[Any]) -> Any:
        found, shards = self.named(operands), self.named(cuts)
        if found["pertokenScaleOptional"] is not None:
            raise MspcError(f"{self.name}: pertokenScaleOptional must be None; scales of rows are not built")
        left, right = (emit(Cast(dst_type=INT32), found[name], cuts=together(shards[name])) for name in ("x1", "x2"))
        sums, at = product(emit, (self.transpose_x1, self.transpose_x2), (left, right), (shards["x1"], shards["x2"]))
        if found["bias"] is not None:
            bias = emit(Cast(dst_type=INT32), found["bias"], cuts=together(shards["bias"]))
            sums = emit(Add(), sums, bias, cuts=together(at, shards["bias"]))
        kind = dtype_arg(self.name, "dtype", self.dtype)
        y = emit(Dequant(dtype=FLOAT32), sums, found["scale"], cuts=together(at, shards["scale"]))
        if found["offset"] is not None:
            offset = emit(Cast(dst_type=FLOAT32), found["offset"], cuts=together(shards["offset"]))
            y = emit(Add(), y, offset, cuts=together(at, shards["offset"]))
        last = Quant(1.0, 0.0) if kind == INT8 else Cast(dst_type=kind)
        return emit(last, y, cuts=together(at))


class WeightQuantBatchMatmul(WithOptionalOperands):
    """x @ (antiquant_scale * (weight + antiquant_offset)) + bias for an Int8 weight; see WeightAntiQuant for shapes.

    Called as `WeightQuantBatchMatmul(...)(x, weight, antiquant_scale, antiquant_offset, quant_scale, quant_offset,
    bias)`, of which the last four may be None; with quant_scale the result is rounded to Int8, as QuantV2 does.
    antiquant_group_size follows from the shapes and changes nothing.
    """

    transpose_x: bool = False
    transpose_weight: bool = False
    antiquant_group_size: int = 0
    given: tuple[str, ...] = ("x", "weight", "antiquant_scale")
    order = (
        "x", "weight", "antiquant_scale", "antiquant_offset", "quant_scale", "quant_offset", "bias"
    )  # fmt: skip
    needed = 3
    samples = (
        sample((4, 8), (8, 6), (6,), dtypes=("Float32", "Int8", "Float32"), low=-3, high=3, gradient=False),
        sample((2, 8, 4), (6, 8), (6, 2), (6, 2), (6,), (6,), dtypes=("Float32", "Int8", *("Float32",) * 4), low=-3,
               high=3, gradient=False, transpose_x=True, transpose_weight=True, given=(*order[:5], "bias")),
    )  # fmt: skip

    def compose(self, emit: Emit, cuts: Sequence[Cuts] | None, operands: Sequence[Any]) -> Any:
        found, shards = self.named(operands), self.named(cuts)
        weight = read_weight(
            emit, WeightAntiQuant(self.transpose_weight, dtype_in(found["x"])), found, shards, *self.order[1:4]
        )
        transposed = (self.transpose_x, self.transpose_weight)
        y, at = product(emit, transposed, (found["x"], weight), (shards["x"], shards["weight"]))
        if found["bias"] is not None:
            y = emit(Add(), y, found["bias"], cuts=together(at, shards["bias"]))
        scale, offset = found["quant_scale"], found["quant_offset"]
        if scale is None:
            return y
        if offset is None:
            offset = emit(ZerosLike(), scale, cuts=together(shards["quant_scale"]))
        ends = (shards["quant_scale"], shards["quant_offset"] or shards["quant_scale"])
        return emit(QuantV2(), y, scale, offset, cuts=together(at, *ends))


def read_weight(
    emit: Emit, op: WeightAntiQuant, found: dict[str, Any], shards: dict[str, Any], weight: str, scale: str, offset: str
) -> Any:
    """The weight of this name as numbers; without an offset it is 0."""
    values = found[offset]
    if values is None:
        values = emit(ZerosLike(), found[scale], cuts=together(shards[scale]))
    entries = together(shards[weight], shards[scale], shards[offset] or shards[scale])
    return emit(op, found[weight], found[scale], values, cuts=entries)
