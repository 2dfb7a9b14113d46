"""These operators are strided slices with MindSpore's masks, and their gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType, dtype_of
from mspc.ops import gpu
from mspc.ops.device import Array, Device, Launch
from mspc.ops.index_map import Coordinate, IndexBlock, IndexMap, along, copies_of
from mspc.ops.memory_order import DimensionPart, MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, Gradients, Op, RankPlacement, RequestedSharding, sample
from mspc.ops.operator_arguments import ints_of, split_call
from mspc.sharding.rules import factor_names


class MovingOp(Op, abstract=True):
    """An operator that moves elements as `index_map` says. Class attribute: kernel_name: of the GPU kernel."""

    kernel_name: ClassVar[str]
    moves = True

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        map = self.index_map(*(TensorType(dtype_of(x.dtype), x.shape) for x in inputs))
        return None if map is None else gpu.moves.move(device, self.kernel_name, copies_of(map, inputs, out))


@dataclass(frozen=True, slots=True)
class DimensionSlice:
    """Slice along one dimension. dim: of the source, -1 for a new dimension of size 1. start, step: of the elements.
    size: their number, -1 for one element with the dimension removed. takes_all: all elements are taken in order."""

    dim: int
    start: int = 0
    step: int = 1
    size: int = 1
    takes_all: bool = False


class _Strided(Op, abstract=True):
    """Begin, end and strides of a slice of a tensor; bit i of a mask applies to entry i.

    begin_mask, end_mask: take the dimension from its start, to its end. ellipsis_mask: the entry is replaced by all
    dimensions that no other entry names. new_axis_mask: insert a dimension of size 1. shrink_axis_mask: take the one
    element at `begin` and drop the dimension.
    """

    takes_complex = True
    begin_mask: int = 0
    end_mask: int = 0
    ellipsis_mask: int = 0
    new_axis_mask: int = 0
    shrink_axis_mask: int = 0
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    linear_in = (0,)

    def cuts(self, shape: Sequence[int]) -> list[DimensionSlice]:
        """Return the slice of each dimension of a source of `shape`. Raise MspcError if an entry does not fit."""
        count = len(self.begin)
        if len(self.end) != count or len(self.strides) != count:
            raise MspcError(
                f"{self.name}: begin {self.begin}, end {self.end} and strides {self.strides} differ in length"
            )
        used = sum(1 for i in range(count) if not (self.ellipsis_mask | self.new_axis_mask) >> i & 1)
        if used > len(shape):
            raise MspcError(f"{self.name}: {used} slices were given for a tensor of shape {tuple(shape)}")
        found: list[DimensionSlice] = []
        d = 0
        for i in range(count):
            if self.ellipsis_mask >> i & 1:
                found += [self._all_of(d + k, shape) for k in range(len(shape) - used)]
                d += len(shape) - used
                used = len(shape)
            elif self.new_axis_mask >> i & 1:
                found.append(DimensionSlice(-1))
            else:
                found.append(self._entry(i, d, shape))
                d += 1
        return found + [self._all_of(k, shape) for k in range(d, len(shape))]

    def _all_of(self, d: int, shape: Sequence[int]) -> DimensionSlice:
        return DimensionSlice(d, size=shape[d], takes_all=True)

    def _entry(self, i: int, d: int, shape: Sequence[int]) -> DimensionSlice:
        n, step = shape[d], self.strides[i]
        if self.shrink_axis_mask >> i & 1:
            if not -n <= self.begin[i] < n:
                raise MspcError(
                    f"{self.name}: index {self.begin[i]} is out of range for dimension {d} of size {n}",
                    kind=IndexError,
                )
            return DimensionSlice(d, self.begin[i] % n, 1, -1)
        if step == 0:
            raise MspcError(f"{self.name}: the stride of dimension {d} is 0")
        begin = None if self.begin_mask >> i & 1 else self.begin[i]
        end = None if self.end_mask >> i & 1 else self.end[i]
        taken = range(*slice(begin, end, step).indices(n))
        if not taken and not (begin == end and 0 <= self.begin[i] <= n):
            raise MspcError(f"{self.name}: the slice of dimension {d} of size {n} is empty: {begin}:{end}:{step}")
        return DimensionSlice(d, taken.start, step, len(taken), len(taken) == n and step == 1)

    def ranges(self, shape: Sequence[int]) -> tuple[tuple[int, int], ...] | None:
        """Return the start and end of the slice along every dimension of a source of `shape`; None for a step other
        than 1, an empty slice, or another number of dimensions."""
        cuts = self.cuts(shape)
        whole = [cut.dim for cut in cuts] == [*range(len(shape))]
        if not whole or any(cut.step != 1 or cut.size <= 0 for cut in cuts):
            return None
        return tuple((cut.start, cut.start + cut.size) for cut in cuts)

    def index(self) -> tuple[Any, ...]:
        """Return the slice as an index of an array."""
        found: list[Any] = []
        for i in range(len(self.begin)):
            if self.ellipsis_mask >> i & 1:
                found.append(Ellipsis)
            elif self.new_axis_mask >> i & 1:
                found.append(None)
            elif self.shrink_axis_mask >> i & 1:
                found.append(self.begin[i])
            else:
                begin = None if self.begin_mask >> i & 1 else self.begin[i]
                end = None if self.end_mask >> i & 1 else self.end[i]
                found.append(slice(begin, end, self.strides[i]))
        return tuple(found)

    def localized(self, shape: Sequence[int], layout: Layout) -> dict[str, Any]:
        """Return the fields of the slice on a rank that holds `layout` of a source of `shape`: dimensions that are not
        sharded are its own."""
        local = layout.local_shape(shape)
        begin: list[int] = []
        end: list[int] = []
        strides: list[int] = []
        new_axis = shrink = 0
        for i, entry in enumerate(self.cuts(shape)):
            new_axis |= (entry.dim < 0) << i
            shrink |= (entry.size < 0) << i
            last = entry.start + entry.step * (entry.size - 1)
            stop = local[entry.dim] if entry.takes_all else last + 1 if entry.step > 0 else last - 1
            if entry.size < 0 or entry.dim < 0:
                stop = entry.start + 1
            elif stop < 0:
                stop = -shape[entry.dim] - 1  # before the first element, for a negative stride
            begin.append(entry.start)
            end.append(stop)
            strides.append(entry.step)
        return {
            "begin_mask": 0, "end_mask": 0, "ellipsis_mask": 0, "new_axis_mask": new_axis, "shrink_axis_mask":
            shrink, "begin": tuple(begin), "end": tuple(end), "strides": tuple(strides),
        }  # fmt: skip

    def fields_in(self, order: MemoryOrder, shape: Sequence[int]) -> dict[str, Any] | None:
        """Return fields of the same slice of a source of `shape` in this order, without new dimensions; None if a
        dimension with several parts is sliced, or the slice is empty."""
        own = {entry.dim: entry for entry in self.cuts(shape) if entry.dim >= 0}
        if any(entry.size == 0 or (order.place(d) is None and not entry.takes_all) for d, entry in own.items()):
            return None
        found: dict[str, Any] = {"begin": (), "end": (), "strides": ()}
        shrink = 0
        for place, part in enumerate(order.parts):
            entry = own[part.dim]
            if entry.takes_all or order.place(part.dim) is None:
                entry = DimensionSlice(part.dim, size=part.size, takes_all=True)
            shrink |= (entry.size < 0) << place
            last = entry.start + entry.step * (max(entry.size, 1) - 1)
            end = last + (1 if entry.step > 0 else -1)
            found["begin"] += (entry.start,)
            found["end"] += (end if end >= 0 else -part.size - 1,)
            found["strides"] += (entry.step,)
        masks = dict.fromkeys(("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask"), 0)
        return {**masks, "shrink_axis_mask": shrink, **found}

    def part_dims(self, shape: Sequence[int]) -> tuple[dict[int, tuple[int, int]], int]:
        """Return, for each source dimension that remains, (its dimension in the slice, its size); and the rank of the
        slice."""
        left = [entry for entry in self.cuts(shape) if entry.size >= 0]
        return {entry.dim: (i, entry.size) for i, entry in enumerate(left) if entry.dim >= 0}, len(left)

    def sides(self, shape: Sequence[int]) -> tuple[str, str]:
        """Return the dimensions of the source and of the slice; sliced dimensions are frozen, each with its size."""
        names = factor_names(2 * len(shape))
        source = [f"{name}={n}!" for name, n in zip(names, shape, strict=False)]
        part: list[str] = []
        for entry in self.cuts(shape):
            if entry.dim < 0:
                part.append("1")
            elif entry.takes_all:
                source[entry.dim] = names[entry.dim] + f"={shape[entry.dim]}"
                part.append(source[entry.dim])
            elif entry.size >= 0:
                part.append(f"{names[len(shape) + entry.dim]}={entry.size}!")
        return " ".join(source), " ".join(part)


class StridedSlice(_Strided, MovingOp):
    """A slice of x with MindSpore's masks. Called as `StridedSlice()(x, begin, end, strides)`."""

    may_alias = True
    kernel_name = "slice"

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("begin", "end", "strides"), optional=1)
        fields = {key: ints_of(self.name, key, value) for key, value in found.items()}
        fields.setdefault("strides", (1,) * len(fields["begin"]))
        return replace(self, **fields), tensors

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        (order,), shape = orders, types[0].shape
        fields = self.fields_in(order, shape)
        if fields is None:
            return None
        dims, rank = self.part_dims(shape)
        whole = {d for d in dims if order.place(d) is None}
        parts = [
            DimensionPart(dims[p.dim][0], p.number, p.size if p.dim in whole else dims[p.dim][1])
            for p in order.parts
            if p.dim in dims
        ]
        return Reordered(StridedSlice(**fields), (order,), (MemoryOrder(tuple(parts), rank),))

    def index_map(self, *types: TensorType) -> IndexMap:
        cuts = self.cuts(types[0].shape)
        left = [entry for entry in cuts if entry.size >= 0]
        found = [Coordinate(entry.start) for entry in sorted(cuts, key=lambda entry: entry.dim) if entry.dim >= 0]
        for place, entry in enumerate(left):
            if entry.dim >= 0:
                found[entry.dim] = along(place, entry.step, entry.start)
        return IndexMap(tuple(entry.size for entry in left), (IndexBlock(0, tuple(found)),))

    def strategy_mistake(self, asked: RequestedSharding) -> str:
        return "it takes no strategy with an ellipsis_mask: name every dimension" if self.ellipsis_mask else ""

    def rule(self, x: TensorType) -> str:
        return " -> ".join(self.sides(x.shape))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(StridedSliceGrad(**self.attributes(), shape=x.shape), dout),)

    def kernel(self, be: ArrayBackend) -> Callable[..., Any]:
        index = self.index()
        return lambda x: x[index]

    def localize(self, placement: RankPlacement) -> Op:
        return replace(self, **self.localized(placement.in_types[0].shape, placement.in_layouts[0]))

    samples = (
        sample((8, 16), begin=(0, 4), end=(8, 12), strides=(1, 1)),
        sample((8, 16), begin=(1, 0), end=(8, 16), strides=(3, 1)),
        sample((8, 16), begin=(0, -1), end=(8, 0), strides=(1, -1), end_mask=2),
        sample((8, 4, 16), begin=(0, 0), end=(0, 4), strides=(1, 1), ellipsis_mask=1),
        sample((8, 16), begin=(0, 2), end=(0, 3), strides=(1, 1), new_axis_mask=1, shrink_axis_mask=2),
        sample((8, 16), begin=(-1,), end=(0,), strides=(1,), shrink_axis_mask=1),
        sample((8, 16), begin=(3,), end=(5,), strides=(1,), begin_mask=1, end_mask=1),
    )


class StridedSliceGrad(_Strided):
    """Zeros of `shape` with dy at the positions that StridedSlice reads."""

    shape: tuple[int, ...] = ()

    def rule(self, dy: TensorType) -> str:
        source, part = self.sides(self.shape)
        return f"{part} -> {source}"

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        (order,) = orders
        dims, _ = self.part_dims(self.shape)
        sources = {i: d for d, (i, _) in dims.items()}
        own = [p for p in order.parts if p.dim in sources]
        cut = [DimensionPart(d, 0, n) for d, n in enumerate(self.shape) if d not in dims]
        kept = [
            DimensionPart(d, p.number, self.shape[d] if order.place(p.dim) is not None else p.size)
            for p, d in ((p, sources[p.dim]) for p in own)
        ]
        result = MemoryOrder((*cut, *kept), len(self.shape))
        fields = self.fields_in(result, self.shape) if result.shape == self.shape else None
        if fields is None:
            return None
        made = StridedSliceGrad(**fields, shape=result.stored)
        return Reordered(made, (MemoryOrder(tuple(own), order.rank),), (result,))

    def bprop(self, b: Builder, dy: Value, out: Value, dout: Value) -> Gradients:
        fields = self.attributes()
        fields.pop("shape")
        return (b.emit(StridedSlice(**fields), dout),)

    def index_map(self, *types: TensorType) -> IndexMap | None:
        source: list[Coordinate] = []
        where: list[tuple[int, int, int]] = []
        for entry in self.cuts(self.shape):
            count = max(1, entry.size)
            if abs(entry.step) > 1 and count > 1:
                return None
            if entry.dim >= 0 and not entry.takes_all:
                first = min(entry.start, entry.start + entry.step * (count - 1))
                where.append((entry.dim, first, first + count))
            if entry.size >= 0:
                sign = 1 if entry.step > 0 else -1
                source.append(Coordinate() if entry.dim < 0 else along(entry.dim, sign, -sign * entry.start))
        return IndexMap(self.shape, (IndexBlock(0, tuple(source), tuple(where)),), covers=not where)

    def compute(self, xp: Any, dy: Any) -> Any:
        grad = xp.zeros(self.shape, dy.dtype)
        grad[self.index()] = dy
        return grad

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        by_dim = {entry.dim: entry for entry in self.cuts(self.shape)}
        cuts = [(entry.start, entry.step, max(1, entry.size)) for entry in (by_dim[d] for d in range(len(self.shape)))]
        return gpu.moves.put_inside(device, "slice_gradient", inputs[0], out, cuts)

    def localize(self, placement: RankPlacement) -> Op:
        layout = placement.out_layouts[0]
        return replace(self, **self.localized(self.shape, layout), shape=layout.local_shape(self.shape))

    samples = (
        sample((8, 8), begin=(0, 4), end=(8, 12), strides=(1, 1), shape=(8, 16)),
        sample((8, 16), begin=(0, -1), end=(8, 0), strides=(1, -1), end_mask=2, shape=(8, 16)),
        sample((8, 4, 8), begin=(0, 0), end=(0, 8), strides=(1, 1), ellipsis_mask=1, shape=(8, 4, 16)),
        sample((1, 8), begin=(0, 0, 2), end=(0, 8, 3), strides=(1, 1, 1), new_axis_mask=1, shrink_axis_mask=4,
               shape=(8, 16)),
    )  # fmt: skip


def take_part(b: Builder, value: Value, axis: int, begin: int, end: int) -> Value:
    """Return value[..., begin:end, ...] along one axis."""
    if begin == 0 and end == value.shape[axis]:
        return value
    return b.emit(part_of(value.shape, axis, begin, end), value)


def first_part(b: Builder, value: Value, shape: tuple[int, ...]) -> Value:
    """Return the first elements along all dimensions, as many as `shape` has."""
    if value.shape == shape:
        return value
    return b.emit(StridedSlice(begin=(0,) * len(shape), end=shape, strides=(1,) * len(shape)), value)


def part_of(shape: Sequence[int], axis: int, begin: int, end: int) -> StridedSlice:
    """Return the slice of a tensor of this shape from `begin` to `end` along one axis."""
    starts = tuple(begin if d == axis else 0 for d in range(len(shape)))
    ends = tuple(end if d == axis else n for d, n in enumerate(shape))
    return StridedSlice(begin=starts, end=ends, strides=(1,) * len(starts))
