"""Scans along a dimension: running sums, products, extrema and sums of exponentials, and linear recurrences.

The dimension may be sharded: ranks scan their slices, exchange one carry each, and combine the carry of the slices
before their own with their results.
"""

from __future__ import annotations

import math
import operator as operators
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mspc.ir.graph import Builder, Node, Value
from mspc.ir.layout import Layout
from mspc.ir.types import INT64, TensorType
from mspc.ops import gpu
from mspc.ops.bases import operator
from mspc.ops.collective.collectives import AllGather
from mspc.ops.control.structural import MakeTuple, TupleGetItem, items
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import GreaterEqual, LessEqual, LogicalOr, Maximum, NotEqual, Term, select
from mspc.ops.math.elementwise import Abs, Exp, Log1p
from mspc.ops.op import Gradients, NotDifferentiable, Op, RankPlacement, Sample, sample
from mspc.ops.operator_arguments import axis_in, int_of
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.reshape import ReduceSum
from mspc.ops.tensor.selection import GatherD, GatherDGrad
from mspc.ops.tensor.slicing import part_of
from mspc.sharding.rules import factor_names


class ScannedSlices(NamedTuple):
    """The slices of a scanned dimension, for the operators of one rank; `last` and `before` are in the order of the
    scan."""

    axis: int
    reverse: bool
    ranks: tuple[int, ...] = ()
    place: int = 0

    def turned(self) -> ScannedSlices:
        """Return the slices for a scan in the other direction."""
        return self._replace(reverse=not self.reverse)

    def part(self, x: Term, begin: int, end: int) -> Term:
        """Return the elements between two places of the dimension."""
        return x.into(part_of(x.value.shape, self.axis, begin, end))

    def last(self, x: Term) -> Term:
        begin = 0 if self.reverse else x.value.shape[self.axis] - 1
        return self.part(x, begin, begin + 1)

    def moved(self, x: Term, first: Term | float, less: int = 1) -> Term:
        """Return the elements but the `less` last ones, behind another first one."""
        count = x.value.shape[self.axis]
        rest = self.part(x, less * self.reverse, count - less * (not self.reverse))
        if not isinstance(first, Term):
            sizes = [1 if d == self.axis else n for d, n in enumerate(x.value.shape)]
            dtype = x.value.tensor_type.dtype
            first = Term(x.b, x.b.constant(np.full(sizes, first, dtype.numpy), dtype))
        return rest.into(Concat(axis=self.axis), first) if self.reverse else first.into(Concat(axis=self.axis), rest)

    def shifted(self, x: Term) -> Term:
        """Return the elements one place later, the first one twice."""
        return self.moved(x, self.turned().last(x))

    def gathered(self, carry: Term) -> Term:
        """Return the carries of all slices, in the order of the dimension."""
        found = carry.b.emit(AllGather(axis=self.axis).with_ranks(self.ranks), carry.value)
        found.attrs["reason"] = "the carries of the slices"
        return Term(carry.b, found)

    def before(self, carries: Term, none: float) -> Term:
        """Return the carry of the slice before this one; `none` if it is the first one."""
        begin = self.place + self.reverse
        return self.part(self.moved(carries, none, 0), begin, begin + 1)


def exponential(x: Term, y: Term) -> Term:
    """Return the exponential of x - y; infinite ones may be equal."""
    return select(x.into(NotEqual(), y), (x - y).into(Exp()), 1)


def added_logarithms(x: Term, y: Term) -> Term:
    """Return the logarithm of the sum of two exponentials."""
    apart = select(x.into(NotEqual(), y), (x - y).into(Abs()), 0)
    return x.into(Maximum(), y) + (-apart).into(Exp()).into(Log1p())


def in_order(function: Callable[..., Any], xp: Any, axis: int, reverse: bool, arrays: Sequence[Any]) -> Any:
    """Return the results of a function of arrays that are scanned along dimension 0."""
    step = -1 if reverse else 1
    made = function(xp, *(xp.moveaxis(array, axis, 0)[::step] for array in arrays))
    return tuple(xp.ascontiguousarray(xp.moveaxis(out[::step], 0, axis)) for out in made)


class ScanOp(Op, abstract=True):
    """kind: a row of SCANS in ops/cuda/scans.py. carries: numbers per line that a slice sends. turns: it runs against
    `reverse`, as a gradient does."""

    takes_bool = False
    kind: ClassVar[str] = ""
    carries: ClassVar[int] = 1
    turns: ClassVar[bool] = False

    def along(self, *types: TensorType, results: int = 1) -> str:
        """Return the rule of operands and results of one shape."""
        self.slices(types[0].shape)
        names = " ".join(factor_names(len(types[0].shape)))
        return f"{', '.join([names] * len(types))} -> {', '.join([names] * results)}"

    def slices(self, shape: Sequence[int], placement: RankPlacement | None = None) -> ScannedSlices:
        """Return the slices of the axis; without ranks if it is not sharded."""
        fields = self.attributes()
        axis, reverse = axis_in(self.name, fields["axis"], len(shape)), fields.get("reverse", False) != self.turns
        layout = None if placement is None or 0 in shape else placement.in_layouts[0]
        if placement is None or layout is None or not layout.dims[axis]:
            return ScannedSlices(axis, reverse)
        ranks, place = layout.group(layout.dims[axis], placement.rank), layout.slice_index(placement.rank)[axis]
        return ScannedSlices(axis, reverse, ranks, place)

    def moved_bytes(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> float:
        layout, local = layouts[0], layouts[0].local_shape(types[0].shape)
        axis = self.slices(local).axis
        carry = types[0].dtype.itemsize * math.prod(local) / max(1, local[axis])
        return self.carries * AllGather.sent_bytes(carry, layout.size_of(layout.dims[axis]))

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        slices = self.slices(placement.in_types[0].shape, placement)
        if not slices.ranks:
            return None
        made = b.emit(self, *inputs)
        own = [made] if isinstance(made.type, TensorType) else items(b, made, 2)
        found = self.joined(slices, [Term(b, x) for x in inputs], [Term(b, x) for x in own])
        return found[0].value if len(found) == 1 else b.emit(MakeTuple(), *(term.value for term in found))

    def joined(self, slices: ScannedSlices, inputs: Sequence[Term], own: Sequence[Term]) -> Sequence[Term]:
        """Emit the results of a slice from the carries of the slices before it and its own results."""
        raise NotImplementedError(f"{self.name} is not sharded along its axis")

    def scanned(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        """Return the results of arrays that are scanned along dimension 0, in its order."""
        raise NotImplementedError(f"{self.name} has no kernel")

    def compute(self, xp: Any, *inputs: Any) -> Any:
        slices = self.slices(inputs[0].shape)
        found = in_order(self.scanned, xp, slices.axis, slices.reverse, inputs)
        return found if len(found) > 1 else found[0]

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return self.launched(device, out, gpu.scans.plain_operands(inputs))

    def launched(self, device: Device, out: Any, operands: Any) -> Launch | None:
        """Return the launch for arrays or computed operands."""
        slices, fields = self.slices(operands.shape), self.attributes()
        return gpu.scans.scan(
            device, self.kind, slices.axis, operands, out if isinstance(out, tuple) else (out,),
            exclusive=fields.get("exclusive", False), reverse=slices.reverse, beyond=fields.get("initial", 0),
        )  # fmt: skip


class _Running(ScanOp, abstract=True):
    """exclusive leaves an element's own value out; reverse runs from the end. none: the result of no elements. join:
    emits the result of two runs of elements. total: the inclusive results along dimension 0. slope: emits the gradient
    of inclusive results."""

    exclusive: bool = False
    reverse: bool = False
    axis: int = 0
    settings = (("axis", int_of),)
    none: ClassVar[float] = 0
    join: ClassVar[Callable[[Term, Term], Term]]
    total: ClassVar[Callable[[Any, Any], Any]]
    slope: ClassVar[Callable[..., Value]]
    samples: ClassVar[Sequence[Sample]] = (
        sample((8, 16)),
        sample((8, 16), axis=-1, reverse=True),
        sample((8, 16), axis=1, exclusive=True),
        sample((8, 4), axis=1, exclusive=True, reverse=True),
    )

    def rule(self, x: TensorType) -> str:
        return self.along(x)

    def joined(self, slices: ScannedSlices, inputs: Sequence[Term], own: Sequence[Term]) -> Sequence[Term]:
        join, total = type(self).join, slices.last(own[0])
        total = join(total, slices.last(inputs[0])) if self.exclusive else total
        totals = slices.gathered(total).into(replace(self, exclusive=False))
        return (join(slices.before(totals, self.none), own[0]),)

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        if self.linear_in:
            return (b.emit(replace(self, reverse=not self.reverse), dout),)
        slices = self.slices(x.shape).turned()
        if self.exclusive and x.shape[slices.axis]:
            out, dout = b.emit(replace(self, exclusive=False), x), slices.moved(Term(b, dout), 0).value
        return (type(self).slope(b, self, x, out, dout),)

    def scanned(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        total = type(self).total(xp, arrays[0])
        return (xp.concatenate([xp.full_like(total[:1], self.none), total[:-1]]) if self.exclusive else total,)


CumSum = operator(
    "CumSum", "Running sums along an axis. Called as `CumSum(exclusive, reverse)(x, axis)`.", _Running, kind="sum",
    linear_in=(0,), join=operators.add, total=lambda xp, x: xp.cumsum(x, 0, x.dtype),
)  # fmt: skip
CumProd = operator(
    "CumProd", "Running products along an axis. Called as `CumProd(exclusive, reverse)(x, axis)`.", _Running,
    kind="product", none=1, join=operators.mul, total=lambda xp, x: xp.cumprod(x, 0, x.dtype),
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


def recurrence(xp: Any, a: Any, b: Any) -> Any:
    """Return the recurrence h = a * h + b along dimension 0."""
    h = xp.array(b)
    for i in range(1, len(h)):
        h[i] += a[i] * h[i - 1]
    return h


class LinearRecurrence(ScanOp):
    """The recurrence h = a * h + b along `axis`, from zeros; reverse runs from the end. Called as
    `LinearRecurrence(reverse, axis)(a, b)`."""

    kind = "linear"
    carries = 2
    float_only = True
    one_type = True
    reverse: bool = False
    axis: int = 0
    linear_in = (1,)
    samples = (
        sample((8, 16), (8, 16), low=-1.2, high=1.2),
        sample((4, 8, 3), (4, 8, 3), axis=-2, reverse=True, low=-1.2, high=1.2),
    )

    def rule(self, a: TensorType, b: TensorType) -> str:
        return self.along(a, b)

    def joined(self, slices: ScannedSlices, inputs: Sequence[Term], own: Sequence[Term]) -> Sequence[Term]:
        product = inputs[0].into(CumProd(False, self.reverse, self.axis))
        shares, totals = (slices.gathered(slices.last(term)) for term in (product, own[0]))
        carry = slices.before(shares.into(self, totals), 0)
        # The first coefficient of all may be anything.
        return (select(carry.into(NotEqual(), 0), own[0] + product * carry, own[0]),)

    def bprop(self, builder: Builder, a: Value, b: Value, out: Value, dout: Value) -> Gradients:
        return items(builder, builder.emit(LinearRecurrenceGrad(self.reverse, self.axis), a, out, dout), 2)

    def scanned(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        return (recurrence(xp, *arrays),)


class LinearRecurrenceGrad(ScanOp):
    """Gradients of LinearRecurrence in a and b: a recurrence in the other direction. initial: h before the first
    element; with 1 and without b the recurrence is CumProd."""

    kind = "linear gradient"
    carries = 3
    turns = True
    float_only = True
    one_type = True
    reverse: bool = False
    axis: int = 0
    initial: int = 0
    linear_in = (2,)
    bprop = NotDifferentiable("it is a gradient, and second derivatives of recurrences are not built")
    samples = (
        sample(*((8, 16),) * 3, low=-1.2, high=1.2),
        sample(*((4, 8, 3),) * 3, axis=-2, reverse=True, initial=1, low=-1.2, high=1.2),
    )

    def rule(self, a: TensorType, h: TensorType, dh: TensorType) -> str:
        return self.along(a, h, dh, results=2)

    def joined(self, slices: ScannedSlices, inputs: Sequence[Term], own: Sequence[Term]) -> Sequence[Term]:
        (a, h, _), forward = inputs, slices.turned()
        product = a.into(CumProd(True, slices.reverse, slices.axis))
        shares, totals = (slices.gathered(slices.last(a) * slices.last(term)) for term in (product, own[1]))
        carries = shares.into(LinearRecurrence(slices.reverse, slices.axis), totals)
        db = own[1] + product * slices.before(carries, 0)
        return db * forward.moved(h, forward.before(slices.gathered(forward.last(h)), self.initial)), db

    def scanned(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        a, h, dh = arrays
        db = recurrence(xp, xp.concatenate([a[:1], a[:-1]]), dh)
        return db * xp.concatenate([h[1:], xp.full_like(h[:1], self.initial)]), db


class CumulativeLogsumexpGrad(ScanOp):
    """Gradient of CumulativeLogsumexp: the sum of dy * exp(x - y) over all later y, as a recurrence in which no
    exponential exceeds 1."""

    kind = "logarithms' gradient"
    carries = 2
    turns = True
    float_only = True
    one_type = True
    reverse: bool = False
    axis: int = 0
    linear_in = (2,)
    samples = (sample(*((8, 16),) * 3), sample(*((8, 4),) * 3, axis=-1, reverse=True))

    def rule(self, x: TensorType, y: TensorType, dy: TensorType) -> str:
        return self.along(x, y, dy)

    def joined(self, slices: ScannedSlices, inputs: Sequence[Term], own: Sequence[Term]) -> Sequence[Term]:
        (x, y, dy), edge = inputs, slices.last(inputs[1])
        total = (dy * exponential(edge, y)).into(ReduceSum(True, (slices.axis,)))
        edges, totals = slices.gathered(edge), slices.gathered(total)
        shares = exponential(edges, slices.shifted(edges))
        carries = shares.into(LinearRecurrence(slices.reverse, slices.axis), totals)
        return (own[0] + (x - slices.before(edges, math.inf)).into(Exp()) * slices.before(carries, 0),)

    def bprop(self, b: Builder, x: Value, y: Value, dy: Value, out: Value, dout: Value) -> Gradients:
        slices, u, v, w = self.slices(x.shape).turned(), Term(b, x), Term(b, y), Term(b, dout)
        shares = exponential(slices.shifted(v), v) if x.shape[slices.axis] else v
        total = shares.into(LinearRecurrence(self.reverse, self.axis), w * (u - v).into(Exp()))
        return (w * Term(b, out)).value, (-(Term(b, dy) * total)).value, total.value

    def scanned(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        x, y, dy = arrays
        before = xp.concatenate([y[:1], y[:-1]])
        return (xp.exp(x - y) * recurrence(xp, xp.where(y == before, 1, xp.exp(y - before)), dy),)


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
        return self.along(x, results=2)

    def joined(self, slices: ScannedSlices, inputs: Sequence[Term], own: Sequence[Term]) -> Sequence[Term]:
        (x,), value = inputs, own[0]
        places = own[1] + slices.place * x.value.shape[slices.axis]
        carries, found = items(x.b, x.b.emit(self, slices.gathered(slices.last(value)).value), 2)
        gathered = slices.gathered(slices.last(places)).into(GatherD(slices.axis), Term(x.b, found))
        ahead = slices.before(Term(x.b, carries), self.lowest(x.value.tensor_type.dtype.numpy))
        takes = value.into(self.exceeds(), ahead).into(LogicalOr(), value.into(NotEqual(), value))
        return select(takes, value, ahead), select(takes, places, slices.before(gathered, 0))

    def lowest(self, dtype: Any) -> Any:
        """Return the number that every element exceeds or equals."""
        greatest = self.exceeds is LessEqual
        if dtype.kind in "iu":
            return np.iinfo(dtype).max if greatest else np.iinfo(dtype).min
        return greatest if dtype.kind == "b" else math.inf if greatest else -math.inf

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        if dout[0] is None:
            return (None,)
        axis = self.slices(x.shape).axis
        return (b.emit(GatherDGrad(axis, x.shape[axis]), b.emit(TupleGetItem(1), out), dout[0]),)

    def scanned(self, xp: Any, *arrays: Any) -> tuple[Any, ...]:
        (x,) = arrays
        values = getattr(xp, self.kind).accumulate(x, 0)
        places = xp.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1))
        return values, xp.maximum.accumulate(xp.where((x == values) | (x != x), places, 0), 0)


Cummax = operator(
    "Cummax", "The greatest element so far along `axis` and its place: a tuple of two. Called as `Cummax(axis)(x)`.",
    _Extreme, kind="maximum",
)  # fmt: skip
Cummin = operator(
    "Cummin", "The smallest element so far along `axis` and its place: a tuple of two. Called as `Cummin(axis)(x)`.",
    _Extreme, kind="minimum", exceeds=LessEqual,
)  # fmt: skip
