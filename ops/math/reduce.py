"""Reductions, and running sums, products and extrema."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.layout import Layout
from mspc.ir.types import BOOL, INT64, TensorType, dtype_of
from mspc.ops import gpu
from mspc.ops.bases import operator
from mspc.ops.collective.collectives import AllGather
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Add, Div, Equal, Mul, TruncateDiv
from mspc.ops.op import (
    ArrayBackend,
    Gradients,
    NotDifferentiable,
    Op,
    RankPlacement,
    RequestedSharding,
    require_float,
    sample,
)
from mspc.ops.operator_arguments import axis_in, int_of, require_elements
from mspc.ops.tensor.broadcast import REDUCE_SAMPLES, ReduceSum, ReductionOp, broadcast_to
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.reshape import Cast
from mspc.ops.tensor.selection import GatherDGrad, along
from mspc.ops.tensor.slicing import StridedSlice
from mspc.sharding.rules import factor_names


class ReduceMean(ReductionOp):
    """Mean along `axis`, of integers truncated to one; partial means of equal parts combine by their mean, those of
    integers do not."""

    reduction = "mean"
    closes_chains = True
    linear_in = (0,)

    def check(self, *types: TensorType) -> None:
        super().check(*types)
        if types[0].dtype == BOOL:
            require_float(self.name, *types)

    def rule(self, x: TensorType) -> str:
        names, arrow, out = super().rule(x).partition(" ->")
        if x.dtype.is_float:
            return f"{names}{arrow}{out}"
        axes = self.axes(len(x.shape))
        held = [f"{name}!" if d in axes and name != "1" else name for d, name in enumerate(names.split())]
        return f"{' '.join(held)}{arrow}{out}"

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        (x,) = inputs
        if x.tensor_type.dtype.is_float:
            return None
        total = b.emit(ReduceSum(self.keep_dims, self.axis), b.emit(Cast(dst_type=INT64), x))
        total.in_strategy, total.out_strategy = asked.in_strategy, asked.out_strategy
        mean = b.emit(TruncateDiv(), total, b.constant(self.count(x.shape), INT64))
        return (b.emit(Cast(dst_type=x.tensor_type.dtype), mean),)

    def count(self, shape: Sequence[int]) -> int:
        """Return the number of elements per result; 1 if there are none."""
        return math.prod(shape[d] for d in self.axes(len(shape))) or 1

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        share = b.emit(Mul(), self.keep(b, x, dout), b.constant(1 / self.count(x.shape), dout.tensor_type.dtype))
        return (broadcast_to(b, share, x.shape),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        mean, axis, keep = be.xp.mean, self.numpy_axis(), self.keep_dims

        def kernel(x: Any) -> Any:
            if x.dtype.kind in "iu":
                total = be.xp.sum(x, axis, be.xp.int64, None, keep)
                count = self.count(x.shape)
                return ((total - be.xp.fmod(total, count)) // count).astype(x.dtype)
            return mean(x, axis, None, None, keepdims=keep)

        return kernel

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        return None if x.dtype.kind in "iu" else super().launch(device, out, x)

    samples = REDUCE_SAMPLES


class _ReduceExtremum(ReductionOp, abstract=True):
    """The gradient is shared equally among equal extrema."""

    def rule(self, x: TensorType) -> str:
        require_elements(self.name, x.shape, self.axes(len(x.shape)), "extremum")
        return super().rule(x)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        dtype = dout.tensor_type.dtype
        winners = b.emit(Cast(dst_type=dtype), b.emit(Equal(), x, self.keep(b, x, out)))
        count = b.emit(ReduceSum(True, self.axes(len(x.shape))), winners)
        return (b.emit(Mul(), winners, b.emit(Div(), self.keep(b, x, dout), count)),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        extremum, axis, keep = getattr(be.xp, self.reduction), self.numpy_axis(), self.keep_dims
        return lambda x: extremum(x, axis, None, keepdims=keep)


_EXTREMUM_SAMPLES = (*REDUCE_SAMPLES, sample((8, 16), axis=(1,), dtypes=("Int32",), gradient=False))
ReduceMax = operator(
    "ReduceMax", "Maximum along `axis`; its gradient is shared equally among equal maxima.", _ReduceExtremum,
    reduction="max", closes_chains=True, samples=_EXTREMUM_SAMPLES,
)  # fmt: skip
ReduceMin = operator(
    "ReduceMin", "Minimum along `axis`; its gradient is shared equally among equal minima.", _ReduceExtremum,
    reduction="min", samples=_EXTREMUM_SAMPLES,
)  # fmt: skip


class ReduceProd(ReductionOp):
    """Product along `axis`."""

    reduction = "prod"
    samples = REDUCE_SAMPLES

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        axes = self.axes(len(x.shape))
        return (b.emit(ReduceProdGrad(axes), x, self.keep(b, x, dout)),)

    def compute(self, xp: Any, x: Any) -> Any:
        return xp.prod(x, self.numpy_axis(), x.dtype, None, self.keep_dims)


class ReduceProdGrad(Op):
    """Gradient of ReduceProd: dout times the product of all other elements, which may be zero. dout has size 1 along
    `axis`, which must not be sharded."""

    axis: tuple[int, ...] = ()
    linear_in = (1,)
    bprop = NotDifferentiable(
        "it is a gradient, and second derivatives of products are not built"
    )
    samples = (sample((8, 16), (8, 1), axis=(1,)), sample((4, 8, 2), (1, 8, 1), axis=(0, 2)))

    def rule(self, x: TensorType, dout: TensorType) -> str:
        names = factor_names(len(x.shape))
        full = " ".join(f"{name}!" if d in self.axis else name for d, name in enumerate(names))
        remaining = " ".join("1" if d in self.axis else name for d, name in enumerate(names))
        return f"{full}, {remaining} -> {full}"

    def compute(self, xp: Any, x: Any, dout: Any) -> Any:
        zero = x == 0
        zeros = xp.sum(zero, axis=self.axis, keepdims=True)
        filled = xp.where(zero, 1, x).astype(x.dtype)
        others = xp.prod(filled, axis=self.axis, keepdims=True, dtype=x.dtype)
        at_plain = xp.where(zeros == 0, others / filled, 0)
        at_zero = xp.where(zeros == 1, others, 0)
        return (dout * xp.where(zero, at_zero, at_plain)).astype(x.dtype)


class _ReduceLogical(ReductionOp, abstract=True):
    bprop = NotDifferentiable("its result is Bool")

    def check(self, *types: TensorType) -> None:
        if types[0].dtype != BOOL:
            raise MspcError(f"{self.name}: input 0 is {types[0].dtype}, not Bool", kind=TypeError, code="E0304")

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return getattr(xp, self.reduction)(inputs[0], axis=self.numpy_axis(), keepdims=self.keep_dims)


_BOOL_SAMPLES = tuple(sample(*s.shapes, dtypes=("Bool",), gradient=False, **s.fields) for s in REDUCE_SAMPLES)
ReduceAll = operator(
    "ReduceAll", "Whether all elements along `axis` are true.", _ReduceLogical, reduction="all", samples=_BOOL_SAMPLES
)
ReduceAny = operator(
    "ReduceAny", "Whether any element along `axis` is true.", _ReduceLogical, reduction="any", samples=_BOOL_SAMPLES
)


class _Running(Op, abstract=True):
    """exclusive leaves an element's own value out; reverse runs from the end."""

    takes_bool = False
    exclusive: bool = False
    reverse: bool = False
    axis: int = 0
    settings = (("axis", int_of),)
    samples = (
        sample((8, 16)),
        sample((8, 16), axis=-1, reverse=True),
        sample((8, 16), axis=1, exclusive=True),
        sample((8, 4), axis=1, exclusive=True, reverse=True),
    )

    def rule(self, x: TensorType) -> str:
        names = " ".join(along(self.name, len(x.shape), self.axis)[0])
        return f"{names} -> {names}"

    def forward(self, xp: Any, x: Any) -> Any:
        """Return the result for an array that is run through from its beginning."""
        raise NotImplementedError

    def compute(self, xp: Any, x: Any) -> Any:
        total = self.forward(xp, xp.flip(x, self.axis) if self.reverse else x)
        return xp.flip(total, self.axis) if self.reverse else total


class CumSum(_Running):
    """Running sums along an axis. Called as `CumSum(exclusive, reverse)(x, axis)`.

    The axis may be sharded: ranks exchange the sums of their slices, and add those of the slices before their own.
    """

    linear_in = (0,)

    def rule(self, x: TensorType) -> str:
        return super().rule(x).replace("!", "")

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        (x,), axis = types, axis_in(self.name, self.axis, len(types[0].shape))
        group = layouts[0].size_of(layouts[0].dims[axis])
        lines = math.prod(layouts[0].local_shape(x.shape)[:axis] + layouts[0].local_shape(x.shape)[axis + 1 :])
        return AllGather.sent_bytes(lines * x.dtype.itemsize, group)

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        (x,), layout, shape = inputs, placement.in_layouts[0], placement.in_types[0].shape
        axis = axis_in(self.name, self.axis, len(shape))
        if not layout.dims[axis] or 0 in shape:
            return None
        ranks, place = layout.group(layout.dims[axis], placement.rank), layout.slice_index(placement.rank)[axis]
        sums = b.emit(AllGather(axis=axis).with_ranks(ranks), b.emit(ReduceSum(True, (axis,)), x))
        sums.attrs["reason"] = "the sums of the slices ahead"
        totals = b.emit(CumSum(False, self.reverse, axis), sums)
        none = b.constant(np.zeros([1 if d == axis else n for d, n in enumerate(totals.shape)]), x.tensor_type.dtype)
        ahead = b.emit(Concat(axis=axis), *((totals, none) if self.reverse else (none, totals)))
        first = place + self.reverse
        begin = tuple(first if d == axis else 0 for d in range(len(shape)))
        end = tuple(first + 1 if d == axis else n for d, n in enumerate(ahead.shape))
        own = b.emit(StridedSlice(begin=begin, end=end, strides=(1,) * len(shape)), ahead)
        return b.emit(Add(), b.emit(self, x), own)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(CumSum(self.exclusive, not self.reverse, self.axis), dout),)

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        if not x.ndim or dtype_of(x.dtype).is_complex:
            return None
        return gpu.scans.running_sum(device, self.axis % x.ndim, self.exclusive, self.reverse, x, out)

    def forward(self, xp: Any, x: Any) -> Any:
        total = xp.cumsum(x, axis=self.axis, dtype=x.dtype)
        return total - x if self.exclusive else total


class CumProd(_Running):
    """Running products along an axis. Called as `CumProd(exclusive, reverse)(x, axis)`."""

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(CumProdGrad(self.exclusive, self.reverse, self.axis), x, dout),)

    def forward(self, xp: Any, x: Any) -> Any:
        return xp.cumprod(_exclusive(xp, x, self.axis) if self.exclusive else x, self.axis, x.dtype)


def _exclusive(xp: Any, x: Any, axis: int) -> Any:
    """Return x moved on by one place, 1 at the first."""
    rolled = xp.roll(x, 1, axis)
    xp.moveaxis(rolled, axis, 0)[:1] = 1
    return rolled


class CumProdGrad(Op):
    """Gradient of CumProd, without a division, so that factors may be 0."""

    exclusive: bool = False
    reverse: bool = False
    axis: int = 0
    linear_in = (1,)
    bprop = NotDifferentiable(
        "it is a gradient, and second derivatives of running products are not built"
    )
    samples = tuple(sample(*s.shapes * 2, **s.fields) for s in CumProd.samples)

    def rule(self, x: TensorType, dout: TensorType) -> str:
        names = " ".join(along(self.name, len(x.shape), self.axis)[0])
        return f"{names}, {names} -> {names}"

    def compute(self, xp: Any, *inputs: Any) -> Any:
        x, dout = (xp.moveaxis(array, self.axis, 0) for array in inputs)
        if self.reverse:
            x, dout = x[::-1], dout[::-1]
        # Elements after a factor depend on it through the product of the factors between: a recurrence from the end.
        behind = xp.zeros_like(dout)
        for i in range(len(x) - 1, -1, -1):
            last = i + 1 == len(x)
            if self.exclusive:
                behind[i] = 0 if last else dout[i + 1] + x[i + 1] * behind[i + 1]
            else:
                behind[i] = dout[i] if last else dout[i] + x[i + 1] * behind[i + 1]
        found = xp.cumprod(_exclusive(xp, x, 0), 0, x.dtype) * behind
        return xp.ascontiguousarray(xp.moveaxis(found[::-1] if self.reverse else found, 0, self.axis))


class _Extreme(Op, abstract=True):
    """Along `axis` the extreme element so far and its place, the last one of several, Int64: a tuple of two. From a NaN
    on the element is NaN."""

    axis: int = 0
    replaces: ClassVar[str] = "greater_equal"
    result_dtypes = (None, INT64)
    samples = (sample((8, 16)), sample((4, 2, 8), axis=-2))

    def rule(self, x: TensorType) -> str:
        names = " ".join(along(self.name, len(x.shape), self.axis)[0])
        return f"{names} -> {names}, {names}"

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        if dout[0] is None:
            return (None,)
        axis = axis_in(self.name, self.axis, len(x.shape))
        return (b.emit(GatherDGrad(axis, x.shape[axis]), b.emit(TupleGetItem(1), out), dout[0]),)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        x = xp.moveaxis(inputs[0], self.axis, 0)
        values, places = xp.array(x), xp.zeros(x.shape, xp.int64)
        for i in range(1, len(x)):
            taken = getattr(xp, self.replaces)(x[i], values[i - 1]) | (x[i] != x[i])
            values[i] = xp.where(taken, x[i], values[i - 1])
            places[i] = xp.where(taken, i, places[i - 1])
        back = [xp.ascontiguousarray(xp.moveaxis(array, 0, self.axis)) for array in (values, places)]
        return back[0], back[1]


Cummax = operator(
    "Cummax", "The greatest element so far along `axis` and its place: a tuple of two. Called as `Cummax(axis)(x)`.",
    _Extreme,
)  # fmt: skip
Cummin = operator(
    "Cummin", "The smallest element so far along `axis` and its place: a tuple of two. Called as `Cummin(axis)(x)`.",
    _Extreme, replaces="less_equal",
)  # fmt: skip
