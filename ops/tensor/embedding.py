"""Lookups of rows, one-hot tensors, and sums of segments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.types import DType, TensorType
from mspc.ops import gpu
from mspc.ops.device import Array, Device, Launch
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import Gradients, NotDifferentiable, Op, RankPlacement, sample
from mspc.ops.operator_arguments import axis_in, int_of, size_of
from mspc.sharding.rules import Rule, factor_names, sized

if TYPE_CHECKING:
    from mspc.ops.cuda.moves import RowLookup

class RowsByIntegers(Op, abstract=True):
    """Rows of operand 0 are looked up by integers, operand 1."""

    selects = True

    def lookup(self, shape: tuple[int, ...], ids: tuple[int, ...]) -> RowLookup:
        """Return which rows are read, for operands of these shapes."""
        raise NotImplementedError


class Gather(RowsByIntegers):
    """Rows of a table: params[..., ids, ...] along `axis`. Called as `Gather()(params, ids, axis)`.

    Integers count from the end when negative. offset, total: the beginning of this rank's slice of the axis and its
    global size, total 0 if it is not sharded.
    """

    batch_dims: int = 0
    axis: int = 0
    offset: int = 0
    total: int = 0
    linear_in = (0,)
    refuses_indices = True
    settings = (("axis", int_of),)
    integers = (1,)
    samples = (
        sample((16, 8), (8, 4), dtypes=("Float64", "Int32"), low=0, high=16),
        sample((16, 8), (8,), dtypes=("Float64", "Int64"), low=-16, high=16),
        sample((4, 16, 2), (8,), dtypes=("Float64", "Int32"), low=0, high=16, axis=1),
        sample((8, 16), (), dtypes=("Float64", "Int32"), low=0, high=16, axis=-1),
        sample((8, 16, 2), (8, 4), dtypes=("Float64", "Int32"), low=0, high=16, axis=1, batch_dims=1),
        sample((4, 2, 8), (4, 2), dtypes=("Float64", "Int32"), low=-8, high=8, axis=2, batch_dims=1),
    )

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: types[0].shape[axis_in(self.name, self.axis, len(types[0].shape))]}

    def rule(self, params: TensorType, ids: TensorType) -> str:
        rank = len(params.shape)
        axis = axis_in(self.name, self.axis, rank)
        batch = self.batches(len(ids.shape), axis)
        names = factor_names(rank)
        places = factor_names(len(ids.shape) - batch, rank)
        out = (*names[:axis], *places, *names[axis + 1 :])
        return f"{' '.join(names)}, {' '.join((*names[:batch], *places))} -> {' '.join(out)}"

    def batches(self, rank: int, axis: int) -> int:
        """Return the number of leading dimensions that params and ids[rank] share. Raise MspcError if they cannot."""
        batch = self.batch_dims + rank if self.batch_dims < 0 else self.batch_dims
        if not 0 <= batch <= min(rank, axis):
            raise MspcError(
                f"{self.name}: batch_dims {self.batch_dims} is not 0 to {min(rank, axis)}, as axis {axis} and "
                f"{rank} dimensions of input 1 allow"
            )
        return batch

    def bprop(self, b: Builder, params: Value, ids: Value, out: Value, dout: Value) -> Gradients:
        axis = axis_in(self.name, self.axis, len(params.shape))
        batch = self.batches(len(ids.shape), axis)
        return b.emit(GatherGrad(params.shape[axis], axis, batch_dims=batch), dout, ids), None

    def compute(self, xp: Any, params: Any, ids: Any) -> Any:
        axis = self.axis % params.ndim
        batch = self.batches(ids.ndim, axis)
        if not self.total and not batch:
            return xp.take(params, ids, axis=self.axis)
        size = params.shape[axis]
        mine, inside = local_places(xp, ids, self.offset, size, self.total or size)
        if not batch:
            rows = xp.take(params, mine, axis=axis)
        else:
            table = xp.moveaxis(params, axis, batch)
            rows = table[(*batch_grid(xp, ids.shape, batch), mine)]
            rows = xp.moveaxis(rows, tuple(range(batch, ids.ndim)), tuple(range(axis, axis + ids.ndim - batch)))
        lead = (*ids.shape[:batch], *(1,) * (axis - batch), *ids.shape[batch:])
        return only_inside(xp, rows, inside.reshape(lead + (1,) * (params.ndim - axis - 1))) if self.total else rows

    def lookup(self, shape: tuple[int, ...], ids: tuple[int, ...]) -> gpu.moves.RowLookup:
        axis = self.axis % len(shape)
        batch, size = self.batches(len(ids), axis), shape[axis]
        return gpu.moves.RowLookup(
            math.prod(shape[:batch]), math.prod(shape[batch:axis]), size, math.prod(shape[axis + 1 :]),
            math.prod(ids[batch:]), self.offset, self.total or size,
        )  # fmt: skip

    def launch(self, device: Device, out: Any, params: Array, ids: Array) -> Launch | None:
        return gpu.moves.gather(device, "gather", self.lookup(params.shape, ids.shape), params, ids, out)

    def localize(self, placement: RankPlacement) -> Op:
        axis = axis_in(self.name, self.axis, len(placement.in_types[0].shape))
        part = shard_begin(placement, 0, axis)
        return self if part is None else replace(self, offset=part, total=placement.in_types[0].shape[axis])


class SparseGatherV2(Gather):
    """Rows of a table, as Gather."""

    samples = Gather.samples[:1]


class RowSums(Op, abstract=True):
    """Rows are added up by integers: operand 0 has the rows, operand 1 the integers."""

    traffic = "row_sums"

    def lookup(self, shape: tuple[int, ...], ids: tuple[int, ...]) -> RowLookup:
        """Return the rows that are read and their places in the result, for operands of these shapes."""
        raise NotImplementedError


class GatherGrad(RowSums):
    """Sums of the slices of dout that belong to one row: zeros of size `size` along `axis` plus dout at ids.

    offset, total: as in Gather.
    """

    size: int = 0
    axis: int = 0
    offset: int = 0
    total: int = 0
    batch_dims: int = 0
    linear_in = (0,)
    omitted = ("batch_dims",)
    samples = (
        sample((8, 4, 8), (8, 4), dtypes=("Float64", "Int32"), low=0, high=16, size=16),
        sample((8, 2, 4), (8, 4), dtypes=("Float64", "Int32"), low=0, high=16, size=16, axis=2, batch_dims=1),
        sample((4, 8, 2), (8,), dtypes=("Float64", "Int32"), low=-16, high=16, size=16, axis=1),
        sample((8,), (), dtypes=("Float64", "Int32"), low=0, high=16, size=16, axis=1),
    )

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: self.size}

    def rule(self, dout: TensorType, ids: TensorType) -> str:
        count = len(ids.shape) - self.batch_dims
        names = factor_names(len(dout.shape))
        places = (*names[: self.batch_dims], *names[self.axis : self.axis + count])
        new = sized(factor_names(1, len(names))[0], self.size)
        out = (*names[: self.axis], new, *names[self.axis + count :])
        return f"{' '.join(names)}, {' '.join(places)} -> {' '.join(out)}"

    def bprop(self, b: Builder, dy: Value, ids: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(Gather(self.batch_dims, self.axis), dout, ids), None

    def compute(self, xp: Any, dout: Any, ids: Any) -> Any:
        batch, count = self.batch_dims, ids.ndim - self.batch_dims
        rows = xp.moveaxis(dout, tuple(range(self.axis, self.axis + count)), tuple(range(batch, batch + count)))
        places, inside = local_places(xp, ids, self.offset, self.size, self.total or self.size)
        rest = rows.shape[ids.ndim :]
        at = [xp.broadcast_to(n, ids.shape).reshape(-1) for n in (*batch_grid(xp, ids.shape, batch), places)]
        rows, inside = rows.reshape(ids.size, *rest), inside.reshape(-1)
        if self.total:
            rows, at = rows[inside], [n[inside] for n in at]
        out = xp.zeros((*ids.shape[:batch], self.size, *rest), dout.dtype)
        xp.add.at(out, tuple(at), rows)
        return xp.moveaxis(out, batch, self.axis)

    def lookup(self, shape: tuple[int, ...], ids: tuple[int, ...]) -> gpu.moves.RowLookup:
        batch, count = self.batch_dims, len(ids) - self.batch_dims
        return gpu.moves.RowLookup(
            math.prod(shape[:batch]), math.prod(shape[batch : self.axis]), self.size,
            math.prod(shape[self.axis + count :]), math.prod(ids[batch:]), self.offset, self.total or self.size,
        )  # fmt: skip

    def launch(self, device: Device, out: Any, dout: Array, ids: Array) -> Launch | None:
        lookup = self.lookup(dout.shape, ids.shape)
        return gpu.rows_by_number.add_rows(device, "gather_gradient", lookup, dout, ids, out)

    def localize(self, placement: RankPlacement) -> Op:
        layout, shape = placement.out_layouts[0], placement.out_types[0].shape
        if not layout.dims[self.axis]:
            return self
        here = layout.slices_for(placement.rank, shape)[self.axis]
        return replace(self, size=here.stop - here.start, offset=here.start, total=self.size)


class UnsortedSegmentSum(RowSums):
    """Sums of the rows of x that share a segment: out[s] = sum of x[i] with segment_ids[i] == offset + s; others are
    dropped.

    Called as `UnsortedSegmentSum()(x, segment_ids, num_segments)`. segment_ids has the leading dimensions of
    x.
    """

    num_segments: int = 0
    offset: int = 0
    linear_in = (0,)
    settings = (("num_segments", size_of),)
    integers = (1,)
    samples = (
        sample((8, 4, 8), (8, 4), dtypes=("Float64", "Int32"), low=0, high=16, num_segments=16),
        sample((8, 4), (8,), dtypes=("Float64", "Int32"), low=0, high=8, num_segments=8),
        sample((8, 4), (8,), dtypes=("Float64", "Int32"), low=0, high=16, num_segments=8, offset=4),
    )

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: self.offset + self.num_segments}

    def rule(self, x: TensorType, segment_ids: TensorType) -> str:
        count = len(segment_ids.shape)
        if count > len(x.shape):
            raise MspcError(f"{self.name}: segment_ids has {count} dimensions, x only {len(x.shape)}")
        names = factor_names(len(x.shape) + 1)
        out = (sized(names[-1], self.num_segments), *names[count:-1])
        return f"{' '.join(names[:-1])}, {' '.join(names[:count])} -> {' '.join(out)}"

    def bprop(self, b: Builder, x: Value, segment_ids: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(EmbeddingLookup(self.offset), dout, segment_ids), None

    def compute(self, xp: Any, x: Any, ids: Any) -> Any:
        rest = x.shape[ids.ndim :]
        places = ids.reshape(-1) - self.offset
        inside = (places >= 0) & (places < self.num_segments)
        out = xp.zeros((self.num_segments, *rest), x.dtype)
        xp.add.at(out, places[inside], x.reshape(ids.size, *rest)[inside])
        return out

    def lookup(self, shape: tuple[int, ...], ids: tuple[int, ...]) -> gpu.moves.RowLookup:
        return gpu.moves.RowLookup(1, 1, self.num_segments, math.prod(shape[len(ids) :]), math.prod(ids), self.offset)

    def launch(self, device: Device, out: Any, x: Array, ids: Array) -> Launch | None:
        return gpu.rows_by_number.add_rows(device, "segment_sum", self.lookup(x.shape, ids.shape), x, ids, out)

    def localize(self, placement: RankPlacement) -> Op:
        here = placement.out_layouts[0].slices_for(placement.rank, placement.out_types[0].shape)[0]
        return replace(self, num_segments=here.stop - here.start, offset=self.offset + here.start)


class EmbeddingLookup(RowsByIntegers):
    """Rows of params at ids - offset; rows of zeros if that is no row of params.

    Called as `EmbeddingLookup()(params, ids, offset)`.
    """

    offset: int = 0
    linear_in = (0,)
    settings = (("offset", int_of),)
    integers = (1,)
    samples = (
        sample((16, 8), (8, 4), dtypes=("Float64", "Int32"), low=0, high=24, offset=4),
        sample((16,), (8,), dtypes=("Float64", "Int32"), low=0, high=16),
    )

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: self.offset + types[0].shape[0]}

    def rule(self, params: TensorType, ids: TensorType) -> str:
        if not params.shape:
            raise MspcError(f"{self.name} needs at least one dimension in input 0, which is a scalar", code="E0303")
        names = factor_names(len(params.shape))
        places = factor_names(len(ids.shape), len(names))
        return f"{' '.join(names)}, {' '.join(places)} -> {' '.join((*places, *names[1:]))}"

    def bprop(self, b: Builder, params: Value, ids: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(UnsortedSegmentSum(params.shape[0], self.offset), dout, ids), None

    def compute(self, xp: Any, params: Any, ids: Any) -> Any:
        places = ids - self.offset
        inside = (places >= 0) & (places < params.shape[0])
        rows = xp.take(params, xp.where(inside, places, 0), axis=0)
        return only_inside(xp, rows, inside.reshape(inside.shape + (1,) * (params.ndim - 1)))

    def lookup(self, shape: tuple[int, ...], ids: tuple[int, ...]) -> gpu.moves.RowLookup:
        return gpu.moves.RowLookup(1, 1, shape[0], math.prod(shape[1:]), math.prod(ids), self.offset)

    def launch(self, device: Device, out: Any, params: Array, ids: Array) -> Launch | None:
        return gpu.moves.gather(device, "embedding_lookup", self.lookup(params.shape, ids.shape), params, ids, out)

    def localize(self, placement: RankPlacement) -> Op:
        part = shard_begin(placement, 0, 0)
        return self if part is None else replace(self, offset=self.offset + part)


def batch_grid(xp: Any, shape: Sequence[int], batch: int) -> list[Any]:
    """Return the indices of the first `batch` dimensions, which broadcast to `shape`."""
    return [xp.arange(shape[d]).reshape((-1,) + (1,) * (len(shape) - d - 1)) for d in range(batch)]


def shard_begin(placement: RankPlacement, operand: int, axis: int) -> int | None:
    """Return the start of the rank's slice along an operand's axis, None if the axis is not sharded."""
    layout = placement.in_layouts[operand]
    if not layout.dims[axis]:
        return None
    return layout.slices_for(placement.rank, placement.in_types[operand].shape)[axis].start


def require_places(xp: Any, ids: Any, total: int) -> None:
    """Raise IndexError, on the CPU, if an id is not an index below `total`; negative ids count from the end."""
    # On a GPU the check would wait for the device.
    if xp.__name__ == "numpy" and not ((ids >= -total) & (ids < total)).all():
        raise IndexError(f"an index is outside of [-{total}, {total})")


def local_places(xp: Any, ids: Any, offset: int, size: int, total: int) -> tuple[Any, Any]:
    """Return (local indices in a slice of `size` elements that starts at `offset` of `total`, which ids are in the
    slice). Local indices of other ids are 0. Raise IndexError, on the CPU, if an id is out of range."""
    require_places(xp, ids, total)
    places = xp.where(ids < 0, ids + total, ids) - offset
    inside = (places >= 0) & (places < size)
    return xp.where(inside, places, 0), inside


def only_inside(xp: Any, rows: Any, inside: Any) -> Any:
    """Return `rows` if `inside`, else zeros: elements of another slice of a table may be NaN or infinite here."""
    return xp.where(inside, rows, xp.zeros((), rows.dtype))


def require_classes(xp: Any, labels: Any, classes: int, ignored: int | None = None) -> None:
    """Raise MspcError if a label is not a class index, except `ignored`. Only checked on CPUs, where reading numbers
    does not block."""
    if xp is not np:
        return
    wrong = (labels < 0) | (labels >= classes)
    if ignored is not None:
        wrong &= labels != ignored
    if wrong.any():
        raise MspcError(f"label {labels[wrong].flat[0]} is not from 0 to {classes - 1}")


class _Hit(Op, abstract=True):
    """OneHot of integers that have the dimension of the classes already, of size 1. inner: elements after a class."""

    depth: int = 0
    inner: int = 1
    offset: int = 0

    @property
    def cuda(self) -> str:  # type: ignore[override]  # depends on the classes
        place = "{i}" if self.inner == 1 else f"{{i}} / {self.inner}"
        ahead = f" - {self.offset}" if self.offset else ""
        return f"(i64){{0}}{ahead} == (i64)({place} % {self.depth}) ? {{1}} : {{2}}"


_CLASSES: Any = {"dtypes": ("Int32", "Float64", "Float64"), "low": 0, "high": 8, "gradient": False}


class OneHot(Op):
    """on_value if the class along the new dimension `axis` is the integer, else off_value.

    Called as `OneHot(axis)(indices, depth, on_value, off_value)`. offset: the first class of this rank. classes: their
    number if an integer must be one of them or `ignored`; 0 if other integers are permitted.
    """

    axis: int = -1
    depth: int = 0
    offset: int = 0
    classes: int = 0
    ignored: int = 0
    omitted = ("classes", "ignored")
    promotes: ClassVar[str] = "common"
    promotes_from: ClassVar[int] = 1
    bprop = NotDifferentiable("its input is an integer")
    settings = (("depth", size_of),)
    settings_at = 1
    integers = (0,)
    one_type = True
    samples = (
        sample((8,), (), (), depth=16, **_CLASSES | {"high": 16}),
        sample((8, 4), (), (), depth=8, axis=0, **_CLASSES | {"low": -1}),
        sample((8, 4), (), (), depth=8, axis=1, **_CLASSES),
    )

    def as_broadcast(self, *types: TensorType) -> tuple[Op, tuple[tuple[int, ...], ...]]:
        shape = types[0].shape
        axis = axis_in(self.name, self.axis, len(shape) + 1)
        hit = _Hit(self.depth, math.prod(shape[axis:]), self.offset)
        return hit, ((*shape[:axis], 1, *shape[axis:]), types[1].shape, types[2].shape)

    def made_in(self, order: MemoryOrder, types: Sequence[TensorType]) -> Reordered | None:
        axis = axis_in(self.name, self.axis, order.rank)
        place = order.place(axis)
        if place is None:
            return None
        others = (MemoryOrder.of(type.shape) for type in types[1:])
        return Reordered(replace(self, axis=place), (order.without([axis]), *others), (order,))

    def strategy_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return the dimensions of OneHot's output, which MindSpore's strategy shards: ((indices..., classes), (),
        ())."""
        return (*rule.outputs, (), ())

    def result_dtype(self, *types: TensorType) -> DType:
        return types[1].dtype

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {0: self.depth}

    def rule(self, indices: TensorType, on_value: TensorType, off_value: TensorType) -> str:
        names = factor_names(len(indices.shape) + 1)
        axis = axis_in(self.name, self.axis, len(names))
        new = sized(names.pop(), self.depth)
        return f"{' '.join(names)}, ,  -> {' '.join((*names[:axis], new, *names[axis:]))}"

    def compute(self, xp: Any, *inputs: Any) -> Any:
        indices, on, off = inputs
        if xp is np:  # reading numbers from a GPU would block
            self.check_operands(*inputs)
        axis = self.axis % (indices.ndim + 1)
        classes = xp.arange(self.offset, self.offset + self.depth, dtype=indices.dtype)
        hit = xp.expand_dims(indices, axis) == classes.reshape((-1,) + (1,) * (indices.ndim - axis))
        return xp.where(hit, on, off)

    def check_operands(self, *operands: Any) -> None:
        if self.classes:
            require_classes(np, operands[0], self.classes, self.ignored)

    def launch(self, device: Device, out: Any, indices: Array, on: Array, off: Array) -> Launch | None:
        inner = math.prod(indices.shape[self.axis % (indices.ndim + 1) :])
        place = f"at / {self.depth * inner} * {inner} + at % {inner}"
        text = f"(long long)ids[{place}] == (long long)(at / {inner} % {self.depth}) + {self.offset} ? *on : *off"
        return gpu.moves.put_values(device, "one_hot", out, text, [("ids", indices), ("on", on), ("off", off)])

    def localize(self, placement: RankPlacement) -> Op:
        shape = placement.out_types[0].shape
        here = placement.out_layouts[0].slices_for(placement.rank, shape)[self.axis % len(shape)]
        return replace(self, depth=here.stop - here.start, offset=self.offset + here.start)
