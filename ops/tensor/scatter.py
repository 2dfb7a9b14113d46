"""Updates of elements that indices name, in a new tensor or in a parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, Self

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Node, Value
from mspc.ir.layout import Layout, NamedLayout
from mspc.ir.types import INT64, DType, TensorType
from mspc.ops import gpu
from mspc.ops.bases import operator
from mspc.ops.control.structural import constrained
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.arithmetic import Add, Div, Equal, Mul, Neg, Select
from mspc.ops.op import ArrayBackend, Gradients, NotDifferentiable, Op, RankPlacement, RequestedSharding, sample
from mspc.ops.operator_arguments import axis_in, ints_of
from mspc.ops.tensor.creation import Range
from mspc.ops.tensor.embedding import GatherGrad, local_places, require_places, shard_begin
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import BroadcastTo, Cast, Reshape, is_filled, zeros
from mspc.ops.tensor.selection import GatherD
from mspc.ops.tensor.slicing import first_part
from mspc.sharding.rules import factor_names, sized


def indexed_sides(
    name: str, shape: Sequence[int], indices: TensorType, operand: int, dims: Sequence[int] = ()
) -> tuple[str, str, str]:  # fmt: skip
    """Return (tensor, indices, slices) for indices[..., k] that name the dimensions `dims` of a tensor of `shape`,
    without these the first k. Raise MspcError if the last dimension of the indices names more dimensions than there
    are."""
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
    """Return indices[..., k] as k index arrays."""
    return tuple(indices[..., i] for i in range(indices.shape[-1]))


def put_at(xp: Any, how: str, out: Any, places: Any, values: Any) -> None:
    """Write values at places of an array, where several of one place are combined by the function `how` of NumPy; if it
    is "" the last counts."""
    if how:
        getattr(xp, how).at(out, places, values)
    else:
        out[places] = values


def least_indexed(shape: Sequence[int], indices: TensorType) -> int:
    """Return the size of the smallest of the dimensions that indices[..., k] name, the first k of `shape`."""
    return min(shape[: indices.shape[-1]], default=1)


HOW = {"add": "Sum", "maximum": "Largest", "minimum": "Smallest"}
"""How kernels combine the updates of a place, by the function of NumPy."""
_OWN_LAYOUTS = "self_define_shard"
"""MindSpore's attribute for layouts that no rule of an operator has checked."""


class _Indexed(Op, abstract=True):
    """begins: first elements of this rank's slice of the indexed dimensions. sizes: their global ones. Both are empty
    if the rank holds all of them."""

    begins: tuple[int, ...] = field(default=(), kw_only=True)
    sizes: tuple[int, ...] = field(default=(), kw_only=True)
    omitted = ("begins", "sizes")

    def refused_indices(self, *types: TensorType) -> Mapping[int, int]:
        """Return the limit if the indices name one dimension."""
        ((operand, limit),) = self.index_limits(*types).items()
        return {operand: (*self.sizes, limit)[0]} if types[operand].shape[-1:] == (1,) else {}

    def located(self, xp: Any, indices: Any, shape: Sequence[int]) -> tuple[tuple[Any, ...], Any]:
        """Return (local index arrays in this rank's slice, whose leading dimensions are `shape`; which of them are
        inside, None for all). Raise IndexError, on the CPU, if an index is out of range."""
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
        """Return (index arrays, updates) of the elements inside this rank's slice."""
        places, inside = self.located(xp, indices, shape)
        return (places, updates) if inside is None else (tuple(p[inside] for p in places), updates[inside])

    def on(self, layout: Layout, rank: int, shape: tuple[int, ...], indexed: Sequence[int]) -> Self:
        """Return the operator on the slice of `rank` of a tensor of `shape`, of which these dimensions are indexed."""
        if not any(layout.dims[d] for d in indexed):
            return self
        spans = layout.slices_for(rank, shape)
        return replace(self, begins=tuple(spans[d].start for d in indexed), sizes=tuple(shape[d] for d in indexed))


class GatherNd(_Indexed):
    """Slices of x at indices[..., k], which name its first k dimensions."""

    linear_in = (0,)
    selects = True
    integers = (1,)
    samples = (
        sample((8, 8, 16), (8, 2), dtypes=("Float64", "Int32"), low=0, high=8),
        sample((8, 16), (4, 2, 1), dtypes=("Float64", "Int64"), low=0, high=8),
    )

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: least_indexed(types[0].shape, types[1])}

    def strategy_mistake(self, asked: RequestedSharding) -> str:
        """Return the mistake of a table that is sharded by hand, which MindSpore refuses but for `self_define_shard`; a
        search may shard it."""
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

    def launch(self, device: Device, out: Any, x: Array, indices: Array) -> Launch | None:
        return gpu.rows_by_number.gather_nd(device, x.shape, self.begins, self.sizes, x, indices, out)

    def compute(self, xp: Any, x: Any, indices: Any) -> Any:
        places, inside = self.located(xp, indices, x.shape)
        if inside is None:
            return x[places]
        found = x[tuple(xp.where(inside, place, 0) for place in places)]
        return xp.where(inside.reshape(inside.shape + (1,) * (found.ndim - inside.ndim)), found, x.dtype.type(0))

    def localize(self, placement: RankPlacement) -> Op:
        shape, count = placement.in_types[0].shape, placement.in_types[1].shape[-1]
        return self.on(placement.in_layouts[0], placement.rank, shape, range(count))


class ScatterNd(_Indexed):
    """Zeros of `shape` plus the updates at indices[..., k]; updates of equal indices are added. Called as
    `ScatterNd()(indices, updates, shape)`."""

    shape: tuple[int, ...] = ()
    linear_in = (1,)
    settings = (("shape", ints_of),)
    integers = (0,)
    samples = (
        sample((8, 2), (8, 16), dtypes=("Int32", "Float64"), low=0, high=8, shape=(8, 8, 16)),
        sample((8, 1), (8,), dtypes=("Int32", "Float64"), low=0, high=4, shape=(4,)),
    )

    def result_dtype(self, *types: TensorType) -> DType:
        return types[1].dtype

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {0: least_indexed(self.shape, types[0])}

    def rule(self, indices: TensorType, updates: TensorType) -> str:
        tensor, places, slices = indexed_sides(self.name, self.shape, indices, 0)
        return f"{places}, {slices} -> {tensor}"

    def bprop(self, b: Builder, indices: Value, updates: Value, out: Value, dout: Value) -> Gradients:
        return None, b.emit(GatherNd(), dout, indices)

    def compute(self, xp: Any, indices: Any, updates: Any) -> Any:
        out = xp.zeros(self.shape, updates.dtype)
        places, values = self.written(xp, indices, updates, self.shape)
        xp.add.at(out, places, values)
        return out

    def localize(self, placement: RankPlacement) -> Op:
        (layout,) = placement.out_layouts
        made = self.on(layout, placement.rank, self.shape, range(placement.in_types[0].shape[-1]))
        return replace(made, shape=layout.local_shape(self.shape))


class TensorScatterUpdate(_Indexed):
    """x with the elements at indices[..., k] replaced by the updates; the last of equal indices counts. dims: the
    indexed dimensions, if not the first ones: updates have the others, in order, after those of the indices. With
    `self_define_shard` indices and updates may have any layout: they are gathered for the write to x."""

    dims: tuple[int, ...] = field(default=(), kw_only=True)
    omitted = ("begins", "sizes", "dims")
    in_place = True
    in_place_of = (0,)
    integers = (1,)
    one_type = True
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
        return super().infer(*types)

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: least_indexed(self._first(types[0].shape), types[1])}

    def _first(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return a shape with the dimensions first that the indices name."""
        return tuple(shape[d] for d in self.order(len(shape)))

    def order(self, rank: int) -> list[int]:
        """Return the dimensions of a tensor with those first that the indices name."""
        return [*self.dims, *(d for d in range(rank) if d not in self.dims)]

    def rule(self, x: TensorType, indices: TensorType, updates: TensorType) -> str:
        # Every rank with a slice of x needs all updates, so that their dimensions are frozen.
        tensor, places, slices = indexed_sides(self.name, x.shape, indices, 1, self.dims)
        frozen = {place.rstrip("!") for place in places.split()}
        slices = " ".join(name + "!" * (name in frozen) for name in slices.split())
        places = " ".join(place.rstrip("!") + "!" for place in places.split())
        return f"{tensor}, {places}, {slices} -> {tensor}"

    def _last(self, b: Builder, indices: Value, updates: Value, shape: Sequence[int]) -> Value:
        """Return which updates are not overwritten by later ones, for each of their elements."""
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

    combine: ClassVar[str] = ""

    def launch(self, device: Device, out: Any, x: Array, indices: Array, updates: Array) -> Launch | None:
        shape, dims = x.shape, tuple(self.dims) or tuple(range(indices.shape[-1]))
        if not self.combine:
            few = gpu.rows_by_number.scatter_few(device, dims, self.begins, self.sizes, x, indices, updates, out)
            if few is not None or self.dims:
                return few
        places = (self.begins, self.sizes)
        how = HOW.get(self.combine, "")
        return gpu.rows_by_number.scatter_nd(device, shape, *places, x, indices, updates, out, how)

    def bprop(self, b: Builder, x: Value, indices: Value, updates: Value, out: Value, dout: Value) -> Gradients:
        none = zeros(b, updates.tensor_type)
        if not indices.tensor_type.size:
            return dout, None, none
        moved = b.emit(Transpose(tuple(self.order(len(x.shape)))), dout) if self.dims else dout
        taken = b.emit(GatherNd(), moved, indices)
        dupdates = b.emit(Select(), self._last(b, indices, updates, self._first(x.shape)), taken, none)
        return b.emit(TensorScatterUpdate(dims=self.dims), dout, indices, none), None, dupdates

    def compute(self, xp: Any, x: Any, indices: Any, updates: Any) -> Any:
        return self._written(xp, x, indices, updates, xp.empty_like(x))

    def kernel_into(self, be: ArrayBackend) -> Any:
        return lambda x, indices, updates, out: self._written(be.xp, x, indices, updates, out)

    def _written(self, xp: Any, x: Any, indices: Any, updates: Any, out: Any) -> Any:
        """Return the result in `out`, which may be x."""
        if out is not x:
            out[...] = x
        seen = xp.transpose(out, self.order(x.ndim)) if self.dims else out
        put_at(xp, self.combine, seen, *self.written(xp, indices, updates, seen.shape))
        return out

    def localize(self, placement: RankPlacement) -> Op:
        shape, count = placement.in_types[0].shape, placement.in_types[1].shape[-1]
        return self.on(placement.in_layouts[0], placement.rank, shape, self.dims or range(count))


class TensorScatterAdd(TensorScatterUpdate):
    """x plus the updates at indices[..., k]; updates of one place are all added."""

    combine = "add"
    requests = ()
    samples = (sample((8, 16), (4, 1), (4, 16), dtypes=("Float64", "Int32", "Float64"), low=0, high=8),)

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        """Add sums of rows, whose updates may be sharded: each rank then has partial sums."""
        x, indices, updates = inputs
        if asked.in_strategy is not None or asked.out_strategy is not None or self.dims or indices.shape[-1:] != (1,):
            return super().decompose(b, asked, inputs)
        total = b.emit(GatherGrad(x.shape[0]), updates, b.emit(Reshape(indices.shape[:-1]), indices))
        return (total if is_filled(x, 0) else b.emit(Add(), x, total),)

    def bprop(self, b: Builder, x: Value, indices: Value, updates: Value, out: Value, dout: Value) -> Gradients:
        moved = b.emit(Transpose(tuple(self.order(len(x.shape)))), dout) if self.dims else dout
        return dout, None, b.emit(GatherNd(), moved, indices)


class ScatterElements(Op):
    """x with every element of the updates at the place that the index names along `axis`, and at its own along others.

    If several updates are for one place the last counts; `adds`: all are added to the element of x; combine: the
    "maximum" or "minimum" of them and of the element of x. The index has the updates' shape, which may be smaller than
    that of x in any dimension, and along `axis` larger. A place below 0 counts from the end. Dimensions in which the
    index is as large as x may be sharded, but for `axis`.
    """

    axis: int = 0
    adds: bool = False
    combine: str = ""
    omitted = ("combine",)
    is_several = refuses_indices = True
    integers = (1,)
    one_type = True
    samples = (
        sample((8, 4), (2, 4), (2, 4), dtypes=("Float64", "Int32", "Float64"), low=-8, high=8),
        sample((8, 4, 2), (8, 6, 2), (8, 6, 2), dtypes=("Float64", "Int64", "Float64"), low=0, high=4, axis=1),
        sample((8, 4), (6, 7), (6, 7), dtypes=("Float64", "Int32", "Float64"), low=0, high=4, axis=-1, adds=True),
        sample((4, 8), (4, 6), (4, 6), dtypes=("Float64", "Int32", "Float64"), high=8, axis=1, combine="minimum"),
    )

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: types[0].shape[axis_in(self.name, self.axis, len(types[0].shape))]}

    def rule(self, x: TensorType, index: TensorType, updates: TensorType) -> str:
        rank = len(x.shape)
        axis = axis_in(self.name, self.axis, rank)
        larger = [d for d in range(rank) if d != axis and len(index.shape) == rank and index.shape[d] > x.shape[d]]
        if len(index.shape) != rank or index.shape != updates.shape or larger:
            raise MspcError(
                f"{self.name}: input 1 has shape {index.shape} and input 2 {updates.shape}; both need one shape, and "
                f"in all dimensions but {axis} at most the size of input 0, which has shape {x.shape}"
            )
        names = factor_names(2 * rank)
        apart = [d == axis or index.shape[d] != x.shape[d] for d in range(rank)]
        into = " ".join(f"{names[d]}!" if apart[d] else names[d] for d in range(rank))
        given = " ".join(f"{names[rank + d]}!" if apart[d] else names[d] for d in range(rank))
        return f"{into}, {given}, {given} -> {into}"

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        """Emit a scatter of rows if all elements of a row of the index name the same place."""
        x, index, updates = inputs
        axis = axis_in(self.name, self.axis, len(x.shape))
        if asked.in_strategy is not None or axis or index.shape[1:] != x.shape[1:]:
            return None
        places = _places_of_rows(b, index)
        if places is None:
            return None
        rows = {"maximum": TensorScatterMax, "minimum": TensorScatterMin, "add": TensorScatterAdd}
        return (b.emit(rows.get("add" if self.adds else self.combine, TensorScatterUpdate)(), x, places, updates),)

    def bprop(self, b: Builder, x: Value, index: Value, updates: Value, out: Value, dout: Value) -> Gradients:
        axis = axis_in(self.name, self.axis, len(x.shape))
        shown = tuple(n if d == axis else index.shape[d] for d, n in enumerate(x.shape))
        taken = b.emit(GatherD(axis), first_part(b, dout, shown), index)
        if self.adds or not index.tensor_type.size:
            return dout, None, taken
        if self.combine:
            share, kept = _shares(
                b, x, out, dout, lambda value: b.emit(GatherD(axis), first_part(b, value, shown), index),
                lambda value, rows: b.emit(replace(self, adds=True, combine=""), value, index, rows), updates,
            )  # fmt: skip
            return share, None, kept
        none = zeros(b, updates.tensor_type)
        last = self._last(b, index, axis, shown)
        return b.emit(ScatterElements(axis), dout, index, none), None, b.emit(Select(), last, taken, none)

    def _last(self, b: Builder, index: Value, axis: int, shape: tuple[int, ...]) -> Value:
        """Return which updates are not overwritten by later ones."""
        count = index.shape[axis]
        line = b.emit(Range(maxlen=count, limit=count))
        along = tuple(count if d == axis else 1 for d in range(len(shape)))
        numbers = b.emit(BroadcastTo(index.shape), b.emit(Reshape(along), line))
        found = b.emit(ScatterElements(axis), zeros(b, TensorType(INT64, shape)), index, numbers)
        return b.emit(Equal(), b.emit(GatherD(axis), found, index), numbers)

    def compute(self, xp: Any, x: Any, index: Any, updates: Any) -> Any:
        axis, out = self.axis % x.ndim, x.copy()
        require_places(xp, index, x.shape[axis])
        places = tuple(
            index if d == axis else xp.arange(n).reshape((-1,) + (1,) * (x.ndim - d - 1))
            for d, n in enumerate(index.shape)
        )
        put_at(xp, "add" if self.adds else self.combine, out, places, updates)
        return out

    def launch(self, device: Device, out: Any, x: Array, index: Array, updates: Array) -> Launch | None:
        axis = self.axis % x.ndim
        if any(n != m for d, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)) if d != axis):
            return None
        inner = math.prod(x.shape[axis + 1 :])
        sizes = (math.prod(x.shape[:axis]), x.shape[axis], index.shape[axis], inner)
        how = HOW.get("add" if self.adds else self.combine, "")
        return gpu.rows_by_number.scatter_along(device, sizes, x, index, updates, out, how)


def _shares(b: Builder, x: Value, out: Value, dout: Value, taken: Callable[[Value], Value],
            added: Callable[[Value, Value], Value], updates: Value) -> tuple[Value, Value]:  # fmt: skip
    """Return the gradients of x and of updates of which `out` has extrema: equal ones share a gradient equally. taken:
    the elements of a tensor at the places of updates; added: a tensor plus elements at these places."""
    dtype = x.tensor_type.dtype
    own, hits = (b.emit(Cast(dtype), b.emit(Equal(), *pair)) for pair in ((x, out), (updates, taken(out))))
    share = b.emit(Div(), dout, added(own, hits))
    return b.emit(Mul(), share, own), b.emit(Mul(), taken(share), hits)


def _places_of_rows(b: Builder, index: Value) -> Value | None:
    """Return [n, 1], the index shared by all elements of a row, if the index was broadcast along rows or rows have one
    element; else None."""
    if len(index.shape) == 1:
        return b.emit(Reshape((*index.shape, 1)), index)
    while isinstance(index, Node) and isinstance(index.op, Cast) and index.op.dst_type.is_integer:
        if index.inputs[0].tensor_type.dtype.itemsize > index.op.dst_type.itemsize:
            return None
        index = index.inputs[0]
    if not isinstance(index, Node) or not isinstance(index.op, BroadcastTo):
        return None
    source, count = index.inputs[0], index.shape[0]
    if not source.tensor_type.dtype.is_integer or source.shape != (count, *[1] * (len(index.shape) - 1)):
        return None
    return source if source.shape == (count, 1) else b.emit(Reshape((count, 1)), source)


_UPDATE = NotDifferentiable("it changes a parameter")
_ROWS = (
    sample((16, 8), (4,), (4, 8), dtypes=("Float64", "Int32", "Float64"), low=1, high=16, gradient=False),
    sample((16, 4, 8), (2, 2), (2, 2, 4, 8), dtypes=("Float64", "Int64", "Float64"), low=1, high=16, gradient=False),
)
_PLACES = (
    sample((8, 16), (4, 1), (4, 16), dtypes=("Float64", "Int32", "Float64"), low=1, high=8, gradient=False),
    sample((8, 8, 16), (4, 2), (4, 16), dtypes=("Float64", "Int32", "Float64"), low=1, high=8, gradient=False),
)


class _Scatter(Op, abstract=True):
    """Rows of input 0 at the indices in input 1, combined with input 2 by `combine`, one by one for equal indices.
    offset: first row of this rank. total: number of rows, 0 if the rank has all."""

    use_locking: bool = False
    offset: int = 0
    total: int = 0
    combine: ClassVar[str] = ""
    has_side_effect = True
    refuses_indices = True
    mutates = (0,)
    omitted = ("offset", "total")
    bprop = _UPDATE
    integers = (1,)
    one_type = True
    samples = _ROWS

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: types[0].shape[0]}

    def rule(self, variable: TensorType, indices: TensorType, updates: TensorType) -> str:
        if not variable.shape:
            raise MspcError(f"{self.name} needs at least one dimension in input 0, which is a scalar", code="E0303")
        names = factor_names(len(variable.shape))
        places = [f"{name}!" for name in factor_names(len(indices.shape), len(names))]
        side = " ".join(names)
        return f"{side}, {' '.join(places)}, {' '.join((*places, *names[1:]))} -> {side}"

    def compute(self, xp: Any, variable: Any, indices: Any, updates: Any) -> Any:
        places = indices.reshape(-1)
        rows = updates.reshape(indices.size, *variable.shape[1:])
        if self.total:
            places, inside = local_places(xp, places, self.offset, variable.shape[0], self.total)
            places, rows = places[inside], rows[inside]
        put_at(xp, self.combine, variable, places, rows)
        return variable

    def localize(self, placement: RankPlacement) -> Op:
        part = shard_begin(placement, 0, 0)
        return self if part is None else replace(self, offset=part, total=placement.in_types[0].shape[0])


ScatterAdd = operator("ScatterAdd", "An addition to the rows of a parameter.", _Scatter, combine="add")
ScatterSub = operator(
    "ScatterSub", "A subtraction from the rows of a parameter.", _Scatter, combine="subtract", takes_bool=False
)
ScatterMul = operator("ScatterMul", "A multiplication of the rows of a parameter.", _Scatter, combine="multiply")
ScatterDiv = operator("ScatterDiv", "A division of the rows of a parameter.", _Scatter, combine="divide")
ScatterMax = operator(
    "ScatterMax", "The larger of the rows of a parameter and the updates.", _Scatter, combine="maximum"
)
ScatterMin = operator(
    "ScatterMin", "The smaller of the rows of a parameter and the updates.", _Scatter, combine="minimum"
)
ScatterUpdate = operator(
    "ScatterUpdate", "A replacement of rows of a parameter; of several for one row the last counts.", _Scatter
)


class _ScatterNd(TensorScatterUpdate, abstract=True):
    """A parameter at indices[..., k], which name its first k dimensions."""

    use_locking: bool = False
    has_side_effect = True
    mutates = (0,)
    bprop = _UPDATE
    launch, kernel_into, in_place = Op.launch, Op.kernel_into, False
    samples = _PLACES

    def compute(self, xp: Any, variable: Any, indices: Any, updates: Any) -> Any:
        return self._written(xp, variable, indices, updates, variable)


ScatterNdUpdate = operator(
    "ScatterNdUpdate", "A replacement of elements of a parameter at indices[..., k].", _ScatterNd
)
ScatterNdAdd = operator("ScatterNdAdd", "An addition to a parameter at indices[..., k].", _ScatterNd, combine="add")
ScatterNdSub = operator(
    "ScatterNdSub", "A subtraction from a parameter at indices[..., k].", _ScatterNd,
    combine="subtract", takes_bool=False,
)  # fmt: skip


class _TensorScatter(TensorScatterUpdate, abstract=True):
    launch, kernel_into, in_place = Op.launch, Op.kernel_into, False
    bprop = NotDifferentiable("the derivative of repeated products, quotients and extrema is not built")
    samples = _PLACES


class TensorScatterSub(_TensorScatter):
    """x minus the updates at indices[..., k]; all updates of one place are subtracted."""

    takes_bool = False
    combine = "subtract"
    samples = (sample((8, 16), (4, 1), (4, 16), dtypes=("Float64", "Int32", "Float64"), low=0, high=8),)

    def bprop(self, b: Builder, x: Value, indices: Value, updates: Value, out: Value, dout: Value) -> Gradients:
        return dout, None, b.emit(Neg(), b.emit(GatherNd(), dout, indices))


TensorScatterMul = operator(
    "TensorScatterMul", "x times the updates at indices[..., k]; all updates of one place are multiplied.",
    _TensorScatter, combine="multiply",
)  # fmt: skip
TensorScatterDiv = operator(
    "TensorScatterDiv", "x divided by the updates at indices[..., k]; by all updates of one place.", _TensorScatter,
    combine="divide",
)  # fmt: skip


class _Extremum(_TensorScatter, abstract=True):
    launch = TensorScatterUpdate.launch
    samples = (
        sample((8, 16), (4, 1), (4, 16), dtypes=("Float64", "Int32", "Float64"), low=1, high=8),
        sample((8, 8, 16), (4, 2), (4, 16), dtypes=("Float64", "Int32", "Float64"), low=1, high=8),
    )

    def bprop(self, b: Builder, x: Value, indices: Value, updates: Value, out: Value, dout: Value) -> Gradients:
        def taken(value: Value) -> Value:
            return b.emit(GatherNd(), value, indices)

        share, kept = _shares(
            b, x, out, dout, taken, lambda value, rows: b.emit(TensorScatterAdd(), value, indices, rows), updates
        )
        return share, None, kept


TensorScatterMax = operator(
    "TensorScatterMax", "The larger of x and the updates at indices[..., k].", _Extremum, combine="maximum"
)
TensorScatterMin = operator(
    "TensorScatterMin", "The smaller of x and the updates at indices[..., k].", _Extremum, combine="minimum"
)
