"""Scans along a dimension: running sums, products, extrema and sums of exponentials, and linear recurrences.

The dimension may be sharded: ranks scan their slices, exchange one carry each, and combine the carry of the slices
before their own with their results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.graph import Node, Value
from mspc.ir.layout import Layout
from mspc.ir.types import INT64, TensorType
from mspc.ops import gpu
from mspc.ops.bases import operator
from mspc.ops.collective.collectives import AllGather
from mspc.ops.control.structural import MakeTuple, TupleGetItem, items
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import (
    Add,
    Equal,
    GreaterEqual,
    LessEqual,
    LogicalOr,
    Maximum,
    Mul,
    Neg,
    NotEqual,
    Select,
    Sub,
)  # fmt: skip
from mspc.ops.math.elementwise import Abs, Exp, Log1p
from mspc.ops.op import Gradients, NotDifferentiable, Op, RankPlacement, Sample, sample
from mspc.ops.operator_arguments import axis_in, int_of
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.selection import GatherD, GatherDGrad
from mspc.ops.tensor.slicing import StridedSlice
from mspc.sharding.rules import factor_names


class Slices(NamedTuple):
    """The slices of a scanned dimension, for the operators of one rank; `last` and `before` are in the order of the
    scan."""

    b: Builder
    axis: int
    reverse: bool
    ranks: tuple[int, ...] = ()
    place: int = 0

    def turned(self) -> Slices:
        """Return the slices for a scan in the other direction."""
        return self._replace(reverse=not self.reverse)

    def part(self, value: Value, begin: int, end: int) -> Node:
        """Return the elements between two places of the dimension."""
        rank = len(value.shape)
        begins = tuple(begin if d == self.axis else 0 for d in range(rank))
        ends = tuple(end if d == self.axis else n for d, n in enumerate(value.shape))
        return self.b.emit(StridedSlice(begin=begins, end=ends, strides=(1,) * rank), value)

    def last(self, value: Value) -> Node:
        begin = 0 if self.reverse else value.shape[self.axis] - 1
        return self.part(value, begin, begin + 1)

    def moved(self, value: Value, first: Value, count: int) -> Node:
        """Return the first `count` elements behind another first one."""
        begin = value.shape[self.axis] - count if self.reverse else 0
        parts = first, self.part(value, begin, begin + count)
        return self.b.emit(Concat(axis=self.axis), *(parts[::-1] if self.reverse else parts))

    def shifted(self, value: Value) -> Node:
        """Return the elements one place later, the first one twice."""
        return self.moved(value, self.turned().last(value), value.shape[self.axis] - 1)

    def filled(self, value: Value, number: float) -> Value:
        """Return a constant for one element of each line."""
        sizes = [1 if d == self.axis else n for d, n in enumerate(value.shape)]
        dtype = value.tensor_type.dtype
        return self.b.constant(np.full(sizes, number, dtype.numpy), dtype)

    def gathered(self, carry: Value) -> Node:
        """Return the carries of all slices, in the order of the dimension."""
        found = self.b.emit(AllGather(axis=self.axis).with_ranks(self.ranks), carry)
        found.attrs["reason"] = "the carries of the slices"
        return found

    def before(self, carries: Value, none: float) -> Node:
        """Return the carry of the slice before this one; `none` if it is the first one."""
        begin = self.place + self.reverse
        return self.part(self.moved(carries, self.filled(carries, none), len(self.ranks)), begin, begin + 1)


def exponential(b: Builder, x: Value, y: Value) -> Value:
    """Return the exponential of x - y; infinite ones may be equal."""
    one = b.constant(1, x.tensor_type.dtype)
    return b.emit(Select(), b.emit(Equal(), x, y), one, b.emit(Exp(), b.emit(Sub(), x, y)))


def added_logarithms(b: Builder, x: Value, y: Value) -> Value:
    """Return the logarithm of the sum of two exponentials."""
    nothing = b.constant(0, x.tensor_type.dtype)
    apart = b.emit(Select(), b.emit(Equal(), x, y), nothing, b.emit(Abs(), b.emit(Sub(), x, y)))
    return b.emit(Add(), b.emit(Maximum(), x, y), b.emit(Log1p(), b.emit(Exp(), b.emit(Neg(), apart))))


def in_order(function: Callable[..., Any], xp: Any, axis: int, reverse: bool, arrays: Sequence[Any]) -> Any:
    """Return the results of a function of arrays that are scanned along dimension 0."""
    turned = [xp.moveaxis(array, axis, 0)[:: -1 if reverse else 1] for array in arrays]
    return tuple(xp.ascontiguousarray(xp.moveaxis(out[:: -1 if reverse else 1], 0, axis)) for out in function(*turned))


class ScanOp(Op, abstract=True):
    """kind: a row of SCANS in ops/cuda/scans.py. carries: numbers per line that a slice sends."""

    takes_bool = False
    kind: ClassVar[str] = ""
    carries: ClassVar[int] = 1

    def place(self, rank: int) -> int:
        """Return the axis, counted from 0."""
        return axis_in(self.name, self.attributes()["axis"], rank)

    def along(self, results: int, *types: TensorType) -> str:
        """Return the rule of operands and results of one shape."""
        self.place(len(types[0].shape))
        names = " ".join(factor_names(len(types[0].shape)))
        return f"{', '.join([names] * len(types))} -> {', '.join([names] * results)}"

    def slices(self, b: Builder, placement: RankPlacement, reverse: bool) -> Slices | None:
        """Return the slices of a sharded axis, or None."""
        layout, shape = placement.in_layouts[0], placement.in_types[0].shape
        axis = self.place(len(shape))
        if not layout.dims[axis] or 0 in shape:
            return None
        ranks, place = layout.group(layout.dims[axis], placement.rank), layout.slice_index(placement.rank)[axis]
        return Slices(b, axis, reverse, ranks, place)

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        layout, local = layouts[0], layouts[0].local_shape(types[0].shape)
        axis = self.place(len(local))
        carry = types[0].dtype.itemsize * math.prod(local) / max(1, local[axis])
        return self.carries * AllGather.sent_bytes(carry, layout.size_of(layout.dims[axis]))

    def launched(self, device: Device, out: Any, inputs: Sequence[Array], **options: Any) -> Launch | None:
        """Return the launch of the scan."""
        outs = out if isinstance(out, tuple) else (out,)
        return gpu.scans.scan(device, self.kind, self.place(inputs[0].ndim), inputs, outs, **options)


class _Running(ScanOp, abstract=True):
    """exclusive leaves an element's own value out; reverse runs from the end. none: the result of no elements. join:
    emits the result of two runs of elements. total: the inclusive results along dimension 0. slope: emits the gradient
    of inclusive results."""

    exclusive: bool = False
    reverse: bool = False
    axis: int = 0
    settings = (("axis", int_of),)
    none: ClassVar[float] = 0
    join: ClassVar[Callable[[Builder, Value, Value], Value]]
    total: ClassVar[Callable[[Any, Any], Any]]
    slope: ClassVar[Callable[..., Value]]
    samples: ClassVar[Sequence[Sample]] = (
        sample((8, 16)),
        sample((8, 16), axis=-1, reverse=True),
        sample((8, 16), axis=1, exclusive=True),
        sample((8, 4), axis=1, exclusive=True, reverse=True),
    )

    def rule(self, x: TensorType) -> str:
        return self.along(1, x)

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        slices = self.slices(b, placement, self.reverse)
        if slices is None:
            return None
        own, join = b.emit(self, *inputs), type(self).join
        carry = slices.last(own)
        total = join(b, carry, slices.last(inputs[0])) if self.exclusive else carry
        totals = b.emit(replace(self, exclusive=False), slices.gathered(total))
        return join(b, slices.before(totals, self.none), own)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        if self.linear_in:
            return (b.emit(replace(self, reverse=not self.reverse), dout),)
        slices = Slices(b, self.place(len(x.shape)), not self.reverse)
        count = x.shape[slices.axis]
        if self.exclusive and count:
            out, dout = b.emit(replace(self, exclusive=False), x), slices.moved(dout, slices.filled(dout, 0), count - 1)
        return (type(self).slope(b, self, x, out, dout),)

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        return self.launched(device, out, (x,), exclusive=self.exclusive, reverse=self.reverse)

    def compute(self, xp: Any, x: Any) -> Any:
        def function(x: Any) -> Any:
            total = type(self).total(xp, x)
            return (xp.concatenate([xp.full_like(total[:1], self.none), total[:-1]]) if self.exclusive else total,)

        return in_order(function, xp, self.axis, self.reverse, (x,))[0]


CumSum = operator(
    "CumSum", "Running sums along an axis. Called as `CumSum(exclusive, reverse)(x, axis)`.", _Running, kind="sum",
    linear_in=(0,), join=lambda b, x, y: b.emit(Add(), x, y), total=lambda xp, x: xp.cumsum(x, 0, x.dtype),
)  # fmt: skip
CumProd = operator(
    "CumProd", "Running products along an axis. Called as `CumProd(exclusive, reverse)(x, axis)`.", _Running,
    kind="product", none=1, join=lambda b, x, y: b.emit(Mul(), x, y), total=lambda xp, x: xp.cumprod(x, 0, x.dtype),
    slope=lambda b, op, x, out, dout: b.emit(
        TupleGetItem(0), b.emit(LinearRecurrenceGrad(op.reverse, op.axis, initial=1), x, out, dout)),
)  # fmt: skip
CumulativeLogsumexp = operator(
    "CumulativeLogsumexp", """The logarithm of running sums of exponentials along an axis, without overflow. Called as
    `CumulativeLogsumexp(exclusive, reverse)(x, axis)`.""", _Running, kind="logarithms", none=-math.inf,
    float_only=True, join=added_logarithms, total=lambda xp, x: xp.logaddexp.accumulate(x, 0),
    slope=lambda b, op, x, out, dout: b.emit(CumulativeLogsumexpGrad(op.reverse, op.axis), x, out, dout),
    samples=tuple(replace(s, gradient=not s.fields.get("exclusive")) for s in _Running.samples),
)  # fmt: skip


class _Recurrence(ScanOp, abstract=True):
    """reverse runs from the end; a gradient runs the other way, `backwards`. scanned: the results along dimension 0."""

    float_only = True
    reverse: bool = False
    axis: int = 0
    backwards: ClassVar[bool] = True

    def scanned(self, xp: Any, *arrays: Any) -> Any:
        raise NotImplementedError

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return self.launched(device, out, inputs, reverse=self.reverse != self.backwards)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        found = in_order(partial(self.scanned, xp), xp, self.axis, self.reverse != self.backwards, inputs)
        return found if len(found) > 1 else found[0]


class CumulativeLogsumexpGrad(_Recurrence):
    """Gradient of CumulativeLogsumexp: the sum of dy * exp(x - y) over all later y, as a recurrence in which no
    exponential exceeds 1."""

    kind = "logarithms' gradient"
    carries = 2
    linear_in = (2,)
    samples = (sample(*((8, 16),) * 3), sample(*((8, 4),) * 3, axis=-1, reverse=True))

    def rule(self, x: TensorType, y: TensorType, dy: TensorType) -> str:
        return self.along(1, x, y, dy)

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        slices = self.slices(b, placement, not self.reverse)
        if slices is None:
            return None
        x, y, dy = inputs
        edge = slices.last(y)
        total = b.emit(ReduceSum(True, (slices.axis,)), b.emit(Mul(), dy, exponential(b, edge, y)))
        edges, totals = slices.gathered(edge), slices.gathered(total)
        shares = exponential(b, edges, slices.shifted(edges))
        carries = b.emit(LinearRecurrence(slices.reverse, slices.axis), shares, totals)
        apart = b.emit(Exp(), b.emit(Sub(), x, slices.before(edges, math.inf)))
        return b.emit(Add(), b.emit(self, *inputs), b.emit(Mul(), apart, slices.before(carries, 0)))

    def bprop(self, b: Builder, x: Value, y: Value, dy: Value, out: Value, dout: Value) -> Gradients:
        slices = Slices(b, self.place(len(x.shape)), self.reverse)
        shares = exponential(b, slices.shifted(y), y) if x.shape[slices.axis] else y
        own = b.emit(Mul(), dout, b.emit(Exp(), b.emit(Sub(), x, y)))
        total = b.emit(LinearRecurrence(self.reverse, self.axis), shares, own)
        return (b.emit(Mul(), dout, out), b.emit(Neg(), b.emit(Mul(), dy, total)), total)

    def scanned(self, xp: Any, *arrays: Any) -> Any:
        x, y, dy = arrays
        before = xp.concatenate([y[:1], y[:-1]])
        return (xp.exp(x - y) * run(xp, xp.where(y == before, 1, xp.exp(y - before)), dy),)


def run(xp: Any, a: Any, b: Any) -> Any:
    """Return the recurrence h = a * h + b along dimension 0."""
    h = xp.array(b)
    for i in range(1, len(h)):
        h[i] += a[i] * h[i - 1]
    return h


class LinearRecurrence(_Recurrence):
    """The recurrence h = a * h + b along `axis`, from zeros; reverse runs from the end. Called as
    `LinearRecurrence(reverse, axis)(a, b)`."""

    kind = "linear"
    carries = 2
    one_type = True
    linear_in = (1,)
    backwards = False
    samples = (
        sample((8, 16), (8, 16), low=-1.2, high=1.2),
        sample((4, 8, 3), (4, 8, 3), axis=-2, reverse=True, low=-1.2, high=1.2),
    )

    def rule(self, a: TensorType, b: TensorType) -> str:
        return self.along(1, a, b)

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        slices = self.slices(b, placement, self.reverse)
        if slices is None:
            return None
        a, own = inputs[0], b.emit(self, *inputs)
        product = b.emit(CumProd(False, self.reverse, self.axis), a)
        carries = b.emit(self, slices.gathered(slices.last(product)), slices.gathered(slices.last(own)))
        carry = slices.before(carries, 0)
        changed = b.emit(Add(), own, b.emit(Mul(), product, carry))  # the first coefficient of all may be anything
        return b.emit(Select(), b.emit(Equal(), carry, b.constant(0, a.tensor_type.dtype)), own, changed)

    def bprop(self, builder: Builder, a: Value, b: Value, out: Value, dout: Value) -> Gradients:
        return items(builder, builder.emit(LinearRecurrenceGrad(self.reverse, self.axis), a, out, dout), 2)

    def scanned(self, xp: Any, *arrays: Any) -> Any:
        return (run(xp, *arrays),)


class LinearRecurrenceGrad(_Recurrence):
    """Gradients of LinearRecurrence in a and b: a recurrence in the other direction. initial: h before the first
    element; with 1 and without b the recurrence is CumProd."""

    kind = "linear gradient"
    carries = 3
    initial: int = 0
    linear_in = (2,)
    bprop = NotDifferentiable(
        "it is a gradient, and second derivatives of recurrences are not built"
    )
    samples = (
        sample(*((8, 16),) * 3, low=-1.2, high=1.2),
        sample(*((4, 8, 3),) * 3, axis=-2, reverse=True, initial=1, low=-1.2, high=1.2),
    )

    def rule(self, a: TensorType, h: TensorType, dh: TensorType) -> str:
        return self.along(2, a, h, dh)

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        slices = self.slices(b, placement, not self.reverse)
        if slices is None:
            return None
        (a, h, _), axis, forward = inputs, slices.axis, slices.turned()
        own = b.emit(TupleGetItem(1), b.emit(self, *inputs))
        product, last = b.emit(CumProd(True, slices.reverse, axis), a), slices.last(a)
        shares, totals = (slices.gathered(b.emit(Mul(), last, slices.last(value))) for value in (product, own))
        carries = b.emit(LinearRecurrence(slices.reverse, axis), shares, totals)
        db = b.emit(Add(), own, b.emit(Mul(), product, slices.before(carries, 0)))
        before = forward.before(slices.gathered(forward.last(h)), self.initial)
        return b.emit(MakeTuple(), b.emit(Mul(), db, forward.moved(h, before, h.shape[axis] - 1)), db)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return self.launched(device, out, inputs, reverse=not self.reverse, beyond=self.initial)

    def scanned(self, xp: Any, *arrays: Any) -> Any:
        a, h, dh = arrays
        db = run(xp, xp.concatenate([a[:1], a[:-1]]), dh)
        return db * xp.concatenate([h[1:], xp.full_like(h[:1], self.initial)]), db


class _Extreme(ScanOp, abstract=True):
    """Along `axis` the extreme element so far and its place, the last one of several, Int64: a tuple of two. From a NaN
    on the element is NaN."""

    takes_bool = True
    carries = 3
    axis: int = 0
    exceeds: ClassVar[type[Op]] = GreaterEqual
    result_dtypes = (None, INT64)
    samples = (sample((8, 16)), sample((4, 2, 8), axis=-2))

    def rule(self, x: TensorType) -> str:
        return self.along(2, x)

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        slices = self.slices(b, placement, False)
        if slices is None:
            return None
        axis, count, dtype = slices.axis, inputs[0].shape[slices.axis], inputs[0].tensor_type.dtype
        own, places = items(b, b.emit(self, *inputs), 2)
        places = b.emit(Add(), places, b.constant(slices.place * count, INT64))
        carries, found = items(b, b.emit(self, slices.gathered(slices.last(own))), 2)
        ahead = slices.before(carries, self.lowest(dtype.numpy))
        gathered = b.emit(GatherD(axis), slices.gathered(slices.last(places)), found)
        takes = b.emit(LogicalOr(), b.emit(self.exceeds(), own, ahead), b.emit(NotEqual(), own, own))
        value = b.emit(Select(), takes, own, ahead)
        return b.emit(MakeTuple(), value, b.emit(Select(), takes, places, slices.before(gathered, 0)))

    def lowest(self, dtype: Any) -> Any:
        """Return what every element exceeds or equals."""
        greatest = self.exceeds is LessEqual
        if dtype.kind in "iu":
            return np.iinfo(dtype).max if greatest else np.iinfo(dtype).min
        return greatest if dtype.kind == "b" else math.inf if greatest else -math.inf

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        if dout[0] is None:
            return (None,)
        axis = self.place(len(x.shape))
        return (b.emit(GatherDGrad(axis, x.shape[axis]), b.emit(TupleGetItem(1), out), dout[0]),)

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        return self.launched(device, out, (x,))

    def compute(self, xp: Any, x: Any) -> Any:
        def function(x: Any) -> Any:
            values = getattr(xp, self.kind).accumulate(x, 0)
            places = xp.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1))
            return values, xp.maximum.accumulate(xp.where((x == values) | (x != x), places, 0), 0)

        return in_order(function, xp, self.axis, False, (x,))


Cummax = operator(
    "Cummax", "The greatest element so far along `axis` and its place: a tuple of two. Called as `Cummax(axis)(x)`.",
    _Extreme, kind="maximum",
)  # fmt: skip
Cummin = operator(
    "Cummin", "The smallest element so far along `axis` and its place: a tuple of two. Called as `Cummin(axis)(x)`.",
    _Extreme, kind="minimum", exceeds=LessEqual,
)  # fmt: skip
