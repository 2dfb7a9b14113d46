"""These operators round numbers to integers of 8 bits, and read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT16, INT8, DType, TensorType
from mspc.ops.bases import require_float
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, sample
from mspc.ops.operator_arguments import dtype_arg, split_call
from mspc.sharding.rules import broadcast_rule, factor_names

ROUNDINGS = {"ROUND": "rint", "FLOOR": "floor", "CEIL": "ceil", "TRUNC": "trunc"}


def _check_rounding(operator: str, mode: str) -> None:
    if mode.upper() not in ROUNDINGS:
        raise MspcError(f"{operator}: the rounding mode is {mode!r}, not one of Round, Floor, Ceil, Trunc")


def _rounded(xp: Any, mode: str, x: Any) -> Any:
    """x as Int8."""
    return xp.clip(getattr(xp, ROUNDINGS[mode.upper()])(x), -128, 127).astype(xp.int8)


def scale_of(xp: Any, scale: Any) -> Any:
    """Scales as Float32; of integers of 64 bits the low 32 are one."""
    if scale.dtype.kind in "iu":
        return scale.astype(xp.uint32).view(xp.float32)
    return scale.astype(xp.float32)


class _Written(Op, abstract=True):
    """Computes in Float32, whatever its operands are."""

    widens = False
    bprop = NotDifferentiable("it serves trained networks")


class Quant(_Written):
    """scale * x + offset rounded to Int8, what lies outside at its ends; scale counts twice with `sqrt_mode`."""

    scale: float
    offset: float
    sqrt_mode: bool = False
    round_mode: str = "Round"
    samples = (
        sample((8, 4), scale=3.0, offset=1.5, gradient=False),
        sample((8,), scale=9.0, offset=0.0, sqrt_mode=True, round_mode="Floor", gradient=False),
    )

    def rule(self, x: TensorType) -> str:
        require_float(self.name, x)
        _check_rounding(self.name, self.round_mode)
        return broadcast_rule((x.shape,))

    def result_dtype(self, *types: TensorType) -> DType:
        return INT8

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x = inputs[0].astype(be.xp.float32) * self.scale
        return _rounded(be.xp, self.round_mode, (x * self.scale if self.sqrt_mode else x) + self.offset)


class QuantV2(_Written):
    """As Quant, with tensors `scale` and `offset`. Called as `QuantV2()(x, scale, offset, sqrt_mode, rounding_mode,
    dst_type)`, of which the last three may be left out; scales of 64 bits hold those of a Float32."""

    sqrt_mode: bool = False
    rounding_mode: str = "ROUND"
    dst_type: DType = INT8
    samples = (sample((8, 4), (4,), (4,), gradient=False),)

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 3, ("sqrt_mode", "rounding_mode", "dst_type"), optional=3)
        if "dst_type" in found:
            found["dst_type"] = dtype_arg(self.name, "dst_type", found["dst_type"])
        return replace(self, **found), tensors

    def rule(self, x: TensorType, scale: TensorType, offset: TensorType) -> str:
        _check_rounding(self.name, self.rounding_mode)
        if self.dst_type != INT8:
            raise MspcError(f"{self.name}: dst_type must be int8, not {self.dst_type}", kind=TypeError)
        return broadcast_rule((x.shape, scale.shape, offset.shape))

    def result_dtype(self, *types: TensorType) -> DType:
        return INT8

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x, scale, offset) = be.xp, inputs
        scale = scale_of(xp, scale)
        x = x.astype(xp.float32) * scale
        return _rounded(xp, self.rounding_mode, (x * scale if self.sqrt_mode else x) + offset)


class _Read(_Written, abstract=True):
    """Integers as numbers of the type `dtype`."""

    def result_dtype(self, *types: TensorType) -> DType:
        return dtype_arg(self.name, "dtype", self.dtype)  # type: ignore[attr-defined]  # a field of both classes below it


class AntiQuant(_Read):
    """scale * (x + offset) for Int8; scale counts twice with `sqrt_mode`."""

    sqrt_mode: bool = False
    dtype: DType = FLOAT16
    samples = (
        sample((8, 4), (4,), (1,), dtypes=("Int8", "Float32", "Float32"), low=-9, high=9, gradient=False),
        sample((8, 4), (1,), (4,), dtypes=("Int8", "Float16", "Float32"), low=-9, high=9, gradient=False,
               sqrt_mode=True),
    )  # fmt: skip

    def rule(self, x: TensorType, scale: TensorType, offset: TensorType) -> str:
        if x.dtype != INT8:
            raise MspcError(f"{self.name}: input 0 is {x.dtype}, not Int8", kind=TypeError)
        return broadcast_rule((x.shape, scale.shape, offset.shape))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x, scale, offset) = be.xp, inputs
        scale = scale_of(xp, scale)
        y = scale * (x.astype(xp.float32) + offset.astype(xp.float32))
        return (y * scale if self.sqrt_mode else y).astype(self.result_dtype().numpy)


class Dequant(_Read):
    """x * deq_scale, twice with `sqrt_mode`, and 0 in the place of what is negative with `relu_flag`. A scale of 64
    bits holds those of a Float32."""

    sqrt_mode: bool = False
    relu_flag: bool = False
    dtype: DType = FLOAT16
    samples = (
        sample((8, 4), (4,), dtypes=("Int32", "Float16"), low=-9, high=9, gradient=False),
        sample((8, 4), (1,), dtypes=("Int32", "Float32"), low=-9, high=9, gradient=False, sqrt_mode=True,
               relu_flag=True),
    )  # fmt: skip

    def rule(self, x: TensorType, deq_scale: TensorType) -> str:
        if not x.dtype.is_integer:
            raise MspcError(f"{self.name}: input 0 is {x.dtype}, not an integer tensor", kind=TypeError)
        return broadcast_rule((x.shape, deq_scale.shape))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x, scale) = be.xp, inputs
        scale = scale_of(xp, scale)
        y = x.astype(xp.float32) * scale
        y = y * scale if self.sqrt_mode else y
        return (xp.maximum(y, 0) if self.relu_flag else y).astype(self.result_dtype().numpy)


class WeightAntiQuant(_Read):
    """scale * (weight + offset) for the Int8 matrices of the last two dimensions, [k, n], or [n, k] with `transposed`.
    scale and offset are [n], one number, or [groups, n] ([n, groups]) for as many equal parts of k; before them may
    stand what stands before the matrices."""

    transposed: bool = False
    dtype: DType = FLOAT16
    samples = (
        sample((8, 4), (4,), (4,), dtypes=("Int8", "Float32", "Float32"), low=-9, high=9, gradient=False),
        sample((4, 8), (4, 2), (4, 2), dtypes=("Int8", "Float32", "Float32"), low=-9, high=9, gradient=False,
               transposed=True),
        sample((2, 8, 4), (2, 4), (2, 4), dtypes=("Int8", "Float32", "Float32"), low=-9, high=9, gradient=False),
    )  # fmt: skip

    def rule(self, weight: TensorType, scale: TensorType, offset: TensorType) -> str:
        if weight.dtype != INT8:
            raise MspcError(f"{self.name}: the weight is {weight.dtype}, not Int8", kind=TypeError)
        rank = len(weight.shape)
        if scale.shape != offset.shape or rank < 2:
            raise MspcError(f"{self.name}: scale {scale.shape} and offset {offset.shape} must have one shape")
        *batch, row, part, column = factor_names(rank + 1)
        groups = self._groups(weight.shape, scale.shape)
        rows = f"({row}={groups} {part}!)" if groups > 1 else row
        sides = [column, rows] if self.transposed else [rows, column]
        if scale.shape in ((1,), ()):
            small = " ".join("1" for _ in scale.shape)
        elif groups == 0:
            small = f"{batch[-1]} {column}"
        elif len(scale.shape) == 1:
            small = column
        else:
            group = row if groups > 1 else "1"
            small = " ".join([column, group] if self.transposed else [group, column])
        side = " ".join([*batch, *sides])
        return f"{side}, {small}, {small} -> {side}"

    def _sizes(self, shape: Sequence[int]) -> tuple[int, int]:
        return (shape[-1], shape[-2]) if self.transposed else (shape[-2], shape[-1])

    def _groups(self, weight: Sequence[int], scale: Sequence[int]) -> int:
        """How many parts k has; 0: scales differ by the batch instead. Raises MspcError where the shapes do not fit."""
        k, n = self._sizes(weight)
        if tuple(scale) in ((1,), (), (n,)):
            return 1
        if len(scale) == 2:
            columns, groups = (scale[0], scale[1]) if self.transposed else (scale[1], scale[0])
            if len(weight) == 3 and tuple(scale) == (weight[0], n):
                return 0
            if columns == n and groups and k % groups == 0:
                return groups
        parts = f"[{n}, parts]" if self.transposed else f"[parts, {n}]"
        raise MspcError(
            f"{self.name}: a scale of shape {tuple(scale)} fits no weight of shape {tuple(weight)}",
            notes=[f"it is [{n}], or {parts} for equal parts of {k}"],
        )

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (weight, scale, offset) = be.xp, inputs
        k = self._sizes(weight.shape)[0]
        groups = self._groups(weight.shape, scale.shape)
        axis = -1 if self.transposed else -2

        def spread(values: Any) -> Any:
            if groups == 0 or values.ndim < 2:
                return values if values.shape in ((1,), ()) else xp.expand_dims(values, axis)
            return xp.repeat(values, k // groups, axis=axis)

        y = spread(scale_of(xp, scale)) * (weight.astype(xp.float32) + spread(offset.astype(xp.float32)))
        return y.astype(self.result_dtype().numpy)
