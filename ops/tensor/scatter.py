"""These operators read and write at places that integers give. A rank that holds a slice of the indexed dimensions
leaves out what lies elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, Self

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.layout import Layout
from mspc.ir.named_layout import NamedLayout
from mspc.ir.types import INT64, DType, TensorType
from mspc.ops.bases import require_same
from mspc.ops.control.constraint import constrained
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.comparison import Equal, Select
from mspc.ops.op import ArrayBackend, Op, RankPlacement, RequestedSharding, sample
from mspc.ops.operator_arguments import ints_of, split_call
from mspc.ops.tensor.broadcast import zeros
from mspc.ops.tensor.creation import Range
from mspc.ops.tensor.embedding import require_integer, require_places
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import Reshape
from mspc.sharding.rules import factor_names, sized

Gradients = Sequence[Value | None]


def indexed_sides(
    name: str, shape: Sequence[int], indices: TensorType, operand: int, dims: Sequence[int] = ()
) -> tuple[str, str, str]:  # fmt: skip
    """(tensor, indices, slices) for indices[..., k] that name the dimensions `dims` of a tensor of `shape`, without
    these the first k.

    Raises:
        MspcError: the last dimension of the indices names more dimensions than there are.
    """
    count = indices.shape[-1] if indices.shape else 0
    if not 1 <= count <= len(shape):
        raise MspcError(
            f"{name}: the last dimension of input {operand} names {count} dimensions of a tensor of shape "
            f"{tuple(shape)}"
        )
    names = factor_names(len(shape) + len(indices.shape))
    tensor = [sized(n, size) for n, size in zip(names, shape, strict=False)]
    rest = [tensor[d] for d in range(len(shape)) if d not in (dims or range(count))]
    places = names[len(shape) : -1]
    return " ".join(tensor), " ".join((*places, f"{names[-1]}!")), " ".join((*places, *rest))


def places_of(indices: Any) -> tuple[Any, ...]:
    """Indices[..., k] as k index arrays."""
    return tuple(indices[..., i] for i in range(indices.shape[-1]))


def least_indexed(shape: Sequence[int], indices: TensorType) -> int:
    """The size of the smallest of the dimensions that indices[..., k] name, the first k of `shape`."""
    return min(shape[: indices.shape[-1]], default=1)


_OWN_LAYOUTS = "self_define_shard"
"""MindSpore's attribute for layouts that no rule of an operator has checked."""


class _Indexed(Op, abstract=True):
    """begins: first elements of this rank's slice of the indexed dimensions. sizes: their global ones. Both are
    empty where the rank holds all of them."""

    begins: tuple[int, ...] = field(default=(), kw_only=True)
    sizes: tuple[int, ...] = field(default=(), kw_only=True)
    omitted = ("begins", "sizes")

    def located(self, xp: Any, indices: Any, shape: Sequence[int]) -> tuple[tuple[Any, ...], Any]:
        """(index arrays within this rank's slice, whose leading dimensions are those of `shape`; which of them lie
        there, None for all). Raises IndexError where an index lies outside of the global dimension (on the CPU)."""
        places = places_of(indices)
        for place, n in zip(places, self.sizes or shape, strict=False):
            require_places(xp, place, n)
        if not self.sizes:
            return places, None
        found = [xp.where(p < 0, p + n, p) - begin for p, begin, n in zip(places, self.begins, self.sizes, strict=True)]
        inside = xp.ones(indices.shape[:-1], bool)
        for place, n in zip(found, shape, strict=False):
            inside &= (place >= 0) & (place < n)
        return tuple(found), inside

    def written(self, xp: Any, indices: Any, updates: Any, shape: Sequence[int]) -> tuple[tuple[Any, ...], Any]:
        """(index arrays, updates) of what lies in this rank's slice."""
        places, inside = self.located(xp, indices, shape)
        return (places, updates) if inside is None else (tuple(p[inside] for p in places), updates[inside])

    def on(self, layout: Layout, rank: int, shape: tuple[int, ...], indexed: Sequence[int]) -> Self:
        """The operator on what `rank` holds of a tensor of `shape`, of which these dimensions are indexed."""
        if not any(layout.dims[d] for d in indexed):
            return self
        spans = layout.slices_for(rank, shape)
        return replace(self, begins=tuple(spans[d].start for d in indexed), sizes=tuple(shape[d] for d in indexed))


class GatherNd(_Indexed):
    """Slices of x at indices[..., k], which name its first k dimensions."""

    linear_in = (0,)
    selects = True
    samples = (
        sample((8, 8, 16), (8, 2), dtypes=("Float64", "Int32"), low=0, high=8),
        sample((8, 16), (4, 2, 1), dtypes=("Float64", "Int64"), low=0, high=8),
    )

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_integer(self.name, 1, types[1])
        return inferred

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: least_indexed(types[0].shape, types[1])}

    def strategy_mistake(self, asked: RequestedSharding) -> str:
        """MindSpore refuses a table that is sharded by hand, but for `self_define_shard`; a search may shard it."""
        if asked.attrs.get(_OWN_LAYOUTS) is True:
            return ""
        table: Any = (asked.in_strategy or ((),))[0]
        entry: tuple[int, ...] = table.strategy if isinstance(table, NamedLayout) else table
        return f"its strategy may shard the indices alone, and is {entry} for input 0" if set(entry) - {1} else ""

    def rule(self, x: TensorType, indices: TensorType) -> str:
        tensor, places, slices = indexed_sides(self.name, x.shape, indices, 1)
        return f"{tensor}, {places} -> {slices}"

    def bprop(self, b: Builder, x: Value, indices: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(ScatterNd(x.shape), indices, dout), None

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.scatter import gather_nd  # late: only a GPU needs it

        x, indices = inputs
        return gather_nd(device, x.shape, self.begins, self.sizes, x, indices, out)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, indices = inputs
        places, inside = self.located(be.xp, indices, x.shape)
        if inside is None:
            return x[places]
        found = x[tuple(be.xp.where(inside, place, 0) for place in places)]
        return be.xp.where(inside.reshape(inside.shape + (1,) * (found.ndim - inside.ndim)), found, x.dtype.type(0))

    def localize(self, placement: RankPlacement) -> Op:
        shape, count = placement.in_types[0].shape, placement.in_types[1].shape[-1]
        return self.on(placement.in_layouts[0], placement.rank, shape, range(count))


class ScatterNd(_Indexed):
    """Zeros of `shape` plus the updates at indices[..., k]; updates of one place are added.

    Called as `ScatterNd()(indices, updates, shape)`.
    """

    shape: tuple[int, ...] = ()
    linear_in = (1,)
    samples = (
        sample((8, 2), (8, 16), dtypes=("Int32", "Float64"), low=0, high=8, shape=(8, 8, 16)),
        sample((8, 1), (8,), dtypes=("Int32", "Float64"), low=0, high=4, shape=(4,)),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 2, ("shape",))
        return replace(self, shape=ints_of(self.name, "shape", found["shape"])), tensors

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_integer(self.name, 0, types[0])
        return inferred

    def result_dtype(self, *types: TensorType) -> DType:
        return types[1].dtype

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {0: least_indexed(self.shape, types[0])}

    def rule(self, indices: TensorType, updates: TensorType) -> str:
        tensor, places, slices = indexed_sides(self.name, self.shape, indices, 0)
        return f"{places}, {slices} -> {tensor}"

    def bprop(self, b: Builder, indices: Value, updates: Value, out: Value, dout: Value) -> Gradients:
        return None, b.emit(GatherNd(), dout, indices)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        indices, updates = inputs
        out = be.xp.zeros(self.shape, updates.dtype)
        places, values = self.written(be.xp, indices, updates, self.shape)
        be.xp.add.at(out, places, values)
        return out

    def localize(self, placement: RankPlacement) -> Op:
        (layout,) = placement.out_layouts
        made = self.on(layout, placement.rank, self.shape, range(placement.in_types[0].shape[-1]))
        return replace(made, shape=layout.local_shape(self.shape))


class TensorScatterUpdate(_Indexed):
    """x with the updates in place of what is at indices[..., k]; of several the last counts.

    dims: the dimensions that the indices name, where they are not the first ones: updates have the others, in their
    order, behind those of the indices. With `self_define_shard` indices and updates may come in any layout: they are
    gathered where x is written.
    """

    dims: tuple[int, ...] = field(default=(), kw_only=True)
    omitted = ("begins", "sizes", "dims")
    in_place = True
    in_place_of = (0,)
    requests = (_OWN_LAYOUTS,)
    samples = (
        sample((8, 16), (1, 1), (1, 16), dtypes=("Float64", "Int32", "Float64"), low=0, high=8),
        sample((2, 8, 16), (1, 2), (1, 16), dtypes=("Float64", "Int32", "Float64"), low=0, high=2),
        sample((8, 2, 16), (1, 1), (1, 8, 16), dtypes=("Float64", "Int32", "Float64"), low=0, high=2, dims=(1,)),
    )

    def infer(self, *types: Any) -> Any:
        rank, named = len(types[0].shape), types[1].shape[-1:]
        if self.dims and (named != (len(self.dims),) or not {*self.dims} <= {*range(rank)}):
            raise MspcError(f"{self.name}: dims {self.dims} do not fit {types[0]} and indices {types[1]}")
        inferred = super().infer(*types)
        require_integer(self.name, 1, types[1])
        require_same(self.name, types[0], types[2])
        return inferred

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: least_indexed(self._first(types[0].shape), types[1])}

    def _first(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape with the dimensions first that the indices name."""
        return tuple(shape[d] for d in self.order(len(shape)))

    def order(self, rank: int) -> list[int]:
        """The dimensions of a tensor with those first that the indices name."""
        return [*self.dims, *(d for d in range(rank) if d not in self.dims)]

    def rule(self, x: TensorType, indices: TensorType, updates: TensorType) -> str:
        # All updates must be seen by every rank that holds a slice of x: their places are frozen.
        tensor, places, slices = indexed_sides(self.name, x.shape, indices, 1, self.dims)
        frozen = {place.rstrip("!") for place in places.split()}
        slices = " ".join(name + "!" * (name in frozen) for name in slices.split())
        places = " ".join(place.rstrip("!") + "!" for place in places.split())
        return f"{tensor}, {places}, {slices} -> {tensor}"

    def _last(self, b: Builder, indices: Value, updates: Value, shape: Sequence[int]) -> Value:
        """Which updates are not overwritten by later ones, for each of their elements."""
        places = indices.shape[:-1]
        count = math.prod(places)
        numbers = b.emit(Reshape(places), b.emit(Range(maxlen=count, limit=count)))
        blank = zeros(b, TensorType(INT64, tuple(shape[: indices.shape[-1]])))
        found = b.emit(GatherNd(), b.emit(TensorScatterUpdate(), blank, indices, numbers), indices)
        wide = (*places, *(1 for _ in updates.shape[len(places) :]))
        return b.emit(Reshape(wide), b.emit(Equal(), found, numbers))

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        entries = asked.in_strategy or ()
        layouts = [entry for entry in entries if isinstance(entry, NamedLayout)]
        if asked.attrs.get(_OWN_LAYOUTS) is not True or len(entries) != 3 or len(layouts) != 3 or self.dims:
            return None
        x, indices, updates = inputs
        count = indices.shape[-1] if indices.shape else 0
        places = (-1,) * (len(indices.shape) - 1)
        held = [constrained(b, value, layout) for value, layout in zip((indices, updates), layouts[1:], strict=True)]
        written = b.emit(self, x, *held)
        replicated = replace(layouts[0], tensor_map=(*places, -1))
        sliced = replace(layouts[0], tensor_map=(*places, *layouts[0].tensor_map[count:]))
        written.in_strategy, written.out_strategy = (layouts[0], replicated, sliced), asked.out_strategy
        return (written,)

    adds: ClassVar[bool] = False

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.scatter import scatter_few, scatter_nd  # late: only a GPU needs it

        x, indices, updates = inputs
        shape, dims = x.shape, tuple(self.dims) or tuple(range(indices.shape[-1]))
        if not self.adds:
            few = scatter_few(device, dims, self.begins, self.sizes, x, indices, updates, out)
            if few is not None or self.dims:
                return few
        return scatter_nd(device, shape, self.begins, self.sizes, x, indices, updates, out, self.adds)

    def bprop(self, b: Builder, x: Value, indices: Value, updates: Value, out: Value, dout: Value) -> Gradients:
        none = zeros(b, updates.tensor_type)
        if not indices.tensor_type.size:
            return dout, None, none
        moved = b.emit(Transpose(tuple(self.order(len(x.shape)))), dout) if self.dims else dout
        taken = b.emit(GatherNd(), moved, indices)
        dupdates = b.emit(Select(), self._last(b, indices, updates, self._first(x.shape)), taken, none)
        return b.emit(TensorScatterUpdate(dims=self.dims), dout, indices, none), None, dupdates

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, indices, updates = inputs
        return self._written(be, x, indices, updates, be.xp.empty_like(x))

    def kernel_into(self, be: ArrayBackend) -> Any:
        return lambda x, indices, updates, out: self._written(be, x, indices, updates, out)

    def _written(self, be: ArrayBackend, x: Any, indices: Any, updates: Any, out: Any) -> Any:
        """The result in `out`, which may be x."""
        if out is not x:
            out[...] = x
        seen = be.xp.transpose(out, self.order(x.ndim)) if self.dims else out
        places, values = self.written(be.xp, indices, updates, seen.shape)
        if self.adds:
            be.xp.add.at(seen, places, values)
        else:
            seen[places] = values
        return out

    def localize(self, placement: RankPlacement) -> Op:
        shape, count = placement.in_types[0].shape, placement.in_types[1].shape[-1]
        return self.on(placement.in_layouts[0], placement.rank, shape, self.dims or range(count))


class TensorScatterAdd(TensorScatterUpdate):
    """x plus the updates at indices[..., k]; updates of one place are all added."""

    adds = True
    samples = (
        sample((8, 16), (4, 1), (4, 16), dtypes=("Float64", "Int32", "Float64"), low=0, high=8),
    )

    def bprop(self, b: Builder, x: Value, indices: Value, updates: Value, out: Value, dout: Value) -> Gradients:
        moved = b.emit(Transpose(tuple(self.order(len(x.shape)))), dout) if self.dims else dout
        return dout, None, b.emit(GatherNd(), moved, indices)
