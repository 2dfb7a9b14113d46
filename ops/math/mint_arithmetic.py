"""These operators of arithmetic and creation have the arguments of `mindspore.mint`: scale factors and ranges given at
the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.bases import Binary, Elementwise, Unary
from mspc.ops.cuda.math import number
from mspc.ops.math.arithmetic import Div, Mul
from mspc.ops.math.comparison import IsFinite
from mspc.ops.math.elementwise import UNARY_SAMPLES, scaled
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.ops.operator_arguments import int_of, split_call
from mspc.ops.tensor.broadcast import sum_to_shape
from mspc.ops.tensor.cast import Cast
from mspc.ops.tensor.creation import LinSpace, Range, number_of
from mspc.ops.tensor.one_hot import OneHot
from mspc.ops.tensor.slicing import StridedSlice
from mspc.sharding.factors import Rule
from mspc.sharding.rules import broadcast_rule

Gradients = Sequence[Value | None]


class _ScaledBinary(Binary, abstract=True):
    """x + sign * alpha * y. Called as `Op()(x, y, alpha)`."""

    alpha: int | float = 1
    sign: ClassVar[int] = 1
    additive = True
    samples = (sample((8, 16), (8, 16)), sample((8, 16), (16,), alpha=0.5))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 2, ("alpha",), optional=1)
        return replace(self, alpha=number_of(self.name, "alpha", found.get("alpha", 1))), tensors

    def bprop(self, b: Builder, x: Value, y: Value, out: Value, dout: Value) -> Gradients:
        factor = self.sign * self.alpha
        dy = dout if factor == 1 else scaled(b, factor, dout)
        return sum_to_shape(b, dout, x.shape), sum_to_shape(b, dy, y.shape)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on alpha
        return f"{{0}} + {{1}} * {_factor(self.sign * self.alpha)}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, y = inputs
        return (x + y * (self.sign * self.alpha)).astype(x.dtype)


def _factor(value: int | float) -> str:
    """A factor in an expression; integers stay integers."""
    return f"T({value})" if isinstance(value, int) else number(value)


class AddExt(_ScaledBinary):
    """x + alpha * y. Called as `AddExt()(x, y, alpha)`."""

    samples = _ScaledBinary.samples


class SubExt(_ScaledBinary):
    """x - alpha * y. Called as `SubExt()(x, y, alpha)`."""

    sign = -1
    samples = _ScaledBinary.samples


class Muls(Unary):
    """x times a number, in the element type of x. Called as `Muls()(x, other)`."""

    other: int | float = 1
    additive = True
    samples = (sample((8, 16), other=0.5), sample((8, 16), other=3))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("other",))
        return replace(self, other=number_of(self.name, "other", found["other"])), tensors

    def rule(self, x: TensorType) -> str:
        if x.dtype.is_integer and isinstance(self.other, float):
            raise MspcError(f"{self.name}: {self.other} is no integer, as the elements of x are; cast x first")
        return super().rule(x)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (dout if self.other == 1 else scaled(b, self.other, dout),)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on other
        return f"{{0}} * {_factor(self.other)}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        (x,) = inputs
        return (x * self.other).astype(x.dtype)


class AddcmulExt(Elementwise):
    """x + value * y * z. Called as `AddcmulExt()(x, y, z, value)`."""

    value: int | float = 1
    promotes = "common"
    samples = (sample((8, 16), (8, 16), (8, 16)), sample((8, 16), (2, 8, 16), (16,), value=0.5))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 3, ("value",), optional=1)
        return replace(self, value=number_of(self.name, "value", found.get("value", 1))), tensors

    def rule(self, x: TensorType, y: TensorType, z: TensorType) -> str:
        return broadcast_rule((x.shape, y.shape, z.shape))

    def bprop(self, b: Builder, x: Value, y: Value, z: Value, out: Value, dout: Value) -> Gradients:
        share = scaled(b, self.value, dout)
        dy = sum_to_shape(b, b.emit(Mul(), share, z), y.shape)
        return sum_to_shape(b, dout, x.shape), dy, sum_to_shape(b, b.emit(Mul(), share, y), z.shape)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on value
        return f"{{0}} + T({{1}} * {{2}}) * {_factor(self.value)}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, y, z = inputs
        return (x + y * z * self.value).astype(x.dtype)


class AddcdivExt(AddcmulExt):
    """x + value * y / z. Called as `AddcdivExt()(x, y, z, value)`."""

    samples = (
        sample((8, 16), (8, 16), (8, 16), low=0.5),
        sample((8, 16), (8, 16), (16,), low=0.5, value=0.5),
    )

    def bprop(self, b: Builder, x: Value, y: Value, z: Value, out: Value, dout: Value) -> Gradients:
        share = b.emit(Div(), scaled(b, self.value, dout), z)
        dz = scaled(b, -1, b.emit(Mul(), share, b.emit(Div(), y, z)))
        return sum_to_shape(b, dout, x.shape), sum_to_shape(b, share, y.shape), sum_to_shape(b, dz, z.shape)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on value
        return f"{{0}} + real<T>({{1}}) / real<T>({{2}}) * {number(self.value)}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, y, z = inputs
        return (x + y / z * self.value).astype(x.dtype)


class NanToNum(Unary):
    """x with other numbers in place of NaN and the infinities. Called as `NanToNum()(x, nan, posinf, neginf)`.

    None stands for 0 and for the greatest and least numbers of the element type.
    """

    nan: float | None = None
    posinf: float | None = None
    neginf: float | None = None
    float_only = True
    samples = UNARY_SAMPLES

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("nan", "posinf", "neginf"), optional=3)
        numbers = {key: float(number_of(self.name, key, v)) for key, v in found.items() if v is not None}
        return replace(self, **numbers), tensors

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(Mul(), dout, b.emit(Cast(dst_type=x.tensor_type.dtype), b.emit(IsFinite(), x))),)

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on the numbers
        return (
            f"{{0}} != {{0}} ? {number(self.nan or 0.0)} : {{0}} - {{0}} == T(0) ? {{0}} : {{0}} > T(0) ? "
            f"{'real<T>(greatest<E>())' if self.posinf is None else number(self.posinf)} : "
            f"{'real<T>(-greatest<E>())' if self.neginf is None else number(self.neginf)}"
        )

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.nan_to_num(inputs[0], nan=self.nan or 0.0, posinf=self.posinf, neginf=self.neginf)


class SliceExt(StridedSlice):
    """The elements start, start + step, ... below end of one dimension.

    Called as `SliceExt()(x, dim, start, end, step)`.
    """

    samples = (sample((8, 16), begin=(0, 4), end=(8, 12), strides=(1, 1), begin_mask=1, end_mask=1),)

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("dim", "start", "end", "step"), optional=1)
        dim, start, end = (int_of(self.name, key, found[key]) for key in ("dim", "start", "end"))
        step = int_of(self.name, "step", found.get("step", 1))
        rank = len(tensors[0].shape)
        if not -rank <= dim < rank:
            raise MspcError(f"SliceExt: dim {dim} is out of range for {rank} dimensions")
        lead = dim % rank
        lead_mask = (1 << lead) - 1
        made = replace(
            self,
            begin_mask=lead_mask,
            end_mask=lead_mask,
            begin=(*(0,) * lead, start),
            end=(*(0,) * lead, end),
            strides=(*(1,) * lead, step),
        )
        return made, tensors


class OneHotExt(OneHot):
    """OneHot with the axis at the call. Called as `OneHotExt()(indices, depth, on_value, off_value, axis)`."""

    samples = OneHot.samples

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        op, operands = super().call(*args[:4])
        return (replace(op, axis=int_of(self.name, "axis", args[4])) if len(args) == 5 else op), operands  # type: ignore[call-arg]  # has axis


class LinSpaceExt(LinSpace):
    """steps numbers from start to end, both included. Called as `LinSpaceExt()(start, end, steps, dtype)`."""

    samples = LinSpace.samples

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) == 4 and args[3] not in (None, FLOAT32):
            raise MspcError(f"{self.name}: dtype {args[3]} is not supported, only Float32", notes=["cast the result"])
        return super().call(*args[:3])

    def strategy_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """MindSpore's strategy shards the result."""
        return rule.outputs


class Arange(Range):
    """start, start + step, ... below end. Called as `Arange()(start, end, step, dtype)`."""

    samples = Range.samples

    def strategy_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """MindSpore's strategy shards the result."""
        return rule.outputs


