"""These operators compute running sums and products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.collective.collectives import AllGather
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Add
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, RankPlacement, sample
from mspc.ops.operator_arguments import axis_in, int_of, split_call
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.selection import along
from mspc.ops.tensor.slicing import StridedSlice

Gradients = Sequence[Value | None]


class _Running(Op, abstract=True):
    """exclusive leaves an element's own value out; reverse runs from the end."""

    takes_bool = False
    exclusive: bool = False
    reverse: bool = False
    axis: int = 0
    samples = (
        sample((8, 16)),
        sample((8, 16), axis=-1, reverse=True),
        sample((8, 16), axis=1, exclusive=True),
        sample((8, 4), axis=1, exclusive=True, reverse=True),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("axis",))
        return replace(self, axis=int_of(self.name, "axis", found["axis"])), tensors

    def rule(self, x: TensorType) -> str:
        names = " ".join(along(self.name, len(x.shape), self.axis)[0])
        return f"{names} -> {names}"

    def forward(self, xp: Any, x: Any) -> Any:
        """The result for an array that is run through from its beginning."""
        raise NotImplementedError

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        total = self.forward(xp, xp.flip(x, self.axis) if self.reverse else x)
        return xp.flip(total, self.axis) if self.reverse else total


class CumSum(_Running):
    """Running sums along an axis. Called as `CumSum(exclusive, reverse)(x, axis)`.

    The axis may be sharded: ranks tell each other the sums of their slices, and add those of the slices ahead.
    """

    linear_in = (0,)
    samples = _Running.samples

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

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.running import running_sum  # late: only a GPU needs it

        (x,) = inputs
        if not x.ndim or dtype_of(x.dtype).is_complex:
            return None
        return running_sum(device, self.axis % x.ndim, self.exclusive, self.reverse, x, out)

    def forward(self, xp: Any, x: Any) -> Any:
        total = xp.cumsum(x, axis=self.axis, dtype=x.dtype)
        return total - x if self.exclusive else total


class CumProd(_Running):
    """Running products along an axis. Called as `CumProd(exclusive, reverse)(x, axis)`."""

    samples = _Running.samples

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(CumProdGrad(self.exclusive, self.reverse, self.axis), x, dout),)

    def forward(self, xp: Any, x: Any) -> Any:
        return xp.cumprod(_exclusive(xp, x, self.axis) if self.exclusive else x, self.axis, x.dtype)


def _exclusive(xp: Any, x: Any, axis: int) -> Any:
    """x moved on by one place, 1 at the first."""
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

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        x, dout = (xp.moveaxis(array, self.axis, 0) for array in inputs)
        if self.reverse:
            x, dout = x[::-1], dout[::-1]
        # What is behind a factor depends on it through the product of the factors between: a recurrence from the end.
        behind = xp.zeros_like(dout)
        for i in range(len(x) - 1, -1, -1):
            last = i + 1 == len(x)
            if self.exclusive:
                behind[i] = 0 if last else dout[i + 1] + x[i + 1] * behind[i + 1]
            else:
                behind[i] = dout[i] if last else dout[i] + x[i + 1] * behind[i + 1]
        found = xp.cumprod(_exclusive(xp, x, 0), 0, x.dtype) * behind
        return xp.ascontiguousarray(xp.moveaxis(found[::-1] if self.reverse else found, 0, self.axis))
