"""Sorting, extrema with positions, the largest elements, and selection of elements by position."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Constant, Node, Value, element_types
from mspc.ir.layout import NamedLayout, slice_counts, with_axes
from mspc.ir.types import INT32, INT64, DType, TensorType
from mspc.ops import gpu
from mspc.ops.bases import operator
from mspc.ops.control.structural import TupleGetItem, constrained, items
from mspc.ops.device import Array, Device, Launch
from mspc.ops.index_map import IndexMap, turned_round
from mspc.ops.math.arithmetic import Add, Mul
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import Gradients, NotDifferentiable, Op, RankPlacement, RequestedSharding, sample
from mspc.ops.operator_arguments import axes_in, axis_in, int_of, ints_of, require_elements, split_call
from mspc.ops.tensor.embedding import GatherGrad, local_places, only_inside, shard_begin
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.ops.tensor.slicing import MovingOp
from mspc.sharding.rules import Rule, factor_names, sized


def ascending(xp: Any, x: Any, axis: int) -> Any:
    """Return the places of the elements of x in ascending order along `axis`, equal ones in their order."""
    return xp.argsort(x, axis=axis, kind="stable")


def descending(xp: Any, x: Any, axis: int) -> Any:
    """Return the places of the elements of x in descending order along `axis`, equal ones in their order, for any
    element type: NaN is first, and no element is negated, which would be wrong for unsigned ones."""
    last = ascending(xp, xp.flip(x, axis), axis)
    return xp.flip(x.shape[axis] - 1 - last, axis)


def parts_of(name: str, axis: int, asked: RequestedSharding, x: Value) -> int:
    """Return the number of slices into which the strategy shards dimension `axis` of x; 1 if the operator supports the
    strategy directly. Raise MspcError if the number of slices does not divide the dimension."""
    entries = asked.in_strategy or ()
    if len(entries) != 1 or asked.out_strategy is not None:
        return 1
    counts = slice_counts(entries[0])
    if len(counts) != len(x.shape) or not all(isinstance(shards, int) for shards in counts):
        return 1  # the pass that checks strategies reports it
    place = axis_in(name, axis, len(x.shape))
    if x.shape[place] % counts[place]:
        size = x.shape[place]
        raise MspcError(
            f"{name}: dimension {place} of input 0 is {size}, which {counts[place]} does not divide", code="E0401"
        )
    return counts[place]


def best_of_parts(
    b: Builder, x: Value, axis: int, parts: int, entry: Any, extremum: Callable[[int, bool], Op], gather: Op
) -> tuple[Value, Value]:
    """Return (places as Int32, values) of the extremum of x along `axis`, which has size 1 in both.

    parts: into how many slices `entry`, the strategy of x, shards the dimension. extremum: the operator that gives
    (place, value) along an axis, made of the axis and whether it remains. gather: takes elements of (places, indices)
    there.
    """
    axis %= len(x.shape)
    size = x.shape[axis] // parts
    split = b.emit(Reshape((*x.shape[:axis], parts, size, *x.shape[axis + 1 :])), constrained(b, x, entry))
    own = _with_strategy(b, extremum(axis + 1, False), _with_replicated(entry, axis + 1), split)
    places, values = b.emit(TupleGetItem(0), own), b.emit(TupleGetItem(1), own)
    row = with_axes(entry, axis)
    best = _with_strategy(b, extremum(axis, True), row, values)
    part, value = b.emit(TupleGetItem(0), best), b.emit(TupleGetItem(1), best)
    inside = b.emit(gather, places, part)
    inside.in_strategy = (row, row)
    kind = part.tensor_type.dtype
    return b.emit(Add(), inside, b.emit(Mul(), part, b.constant(size, kind))), value


def reshaped(b: Builder, value: Value, shape: Sequence[int], dtype: DType) -> Value:
    """Return `value` in this shape and element type."""
    if value.tensor_type.dtype != dtype:
        value = b.emit(Cast(dst_type=dtype), value)
    return value if value.shape == tuple(shape) else b.emit(Reshape(tuple(shape)), value)


def _with_strategy(b: Builder, op: Op, entry: Any, x: Value) -> Node:
    node = b.emit(op, x)
    node.in_strategy = (entry,)
    return node


def _with_replicated(entry: Any, place: int) -> Any:
    """Return a strategy with a dimension that is not sharded put in at `place`."""
    if isinstance(entry, NamedLayout):
        return replace(entry, tensor_map=(*entry.tensor_map[:place], -1, *entry.tensor_map[place:]))
    return (*entry[:place], 1, *entry[place:])


def extreme_places(xp: Any, x: Any, axis: int, largest: bool) -> Any:
    """Return the first places of the maxima or minima along `axis`."""
    return (xp.argmax if largest else xp.argmin)(x, axis=axis)


def along(name: str, rank: int, axis: int) -> tuple[list[str], int]:
    """Return the names of the factors with the axis frozen, and the axis counted from 0."""
    place = axis_in(name, axis, rank)
    names = factor_names(rank)
    names[place] += "!"
    return names, place


class _ArgExtremum(Op, abstract=True):
    """The place of an extremum along `axis`, the first one if several are equal."""

    axis: int = -1
    output_type: DType = INT32
    largest: ClassVar[bool] = True
    bprop = NotDifferentiable("its result is an integer")
    samples = (
        sample((8, 16)),
        sample((4, 8, 2), axis=0, output_type=INT64),
        sample((8, 4), axis=-2),
    )

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        return _reordered(self, orders, 1)

    def rule(self, x: TensorType) -> str:
        names, axis = along(self.name, len(x.shape), self.axis)
        require_elements(self.name, x.shape, [axis], "extremum")
        return f"{' '.join(names)} -> {' '.join((*names[:axis], *names[axis + 1 :]))}"

    def result_dtype(self, *types: TensorType) -> DType:
        return self.output_type

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        (x,) = inputs
        parts = parts_of(self.name, self.axis, asked, x)
        if parts == 1 or asked.in_strategy is None:
            return None
        with_value = ArgMaxWithValue if self.largest else ArgMinWithValue
        places, _ = best_of_parts(b, x, self.axis, parts, asked.in_strategy[0], with_value, GatherD(self.axis))
        (result,) = element_types(self.infer(x.tensor_type))
        return (reshaped(b, places, result.shape, result.dtype),)

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        return gpu.scans.place_of_extremum(device, x, axis_in(self.name, self.axis, len(x.shape)), out, self.largest)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return extreme_places(xp, inputs[0], self.axis, self.largest).astype(self.output_type.numpy)


Argmax = operator(
    "Argmax", "The place of the maximum along `axis`, the first one if several are equal.", _ArgExtremum,
)  # fmt: skip
Argmin = operator(
    "Argmin", "The place of the minimum along `axis`, the first one if several are equal.", _ArgExtremum,
    largest=False,
)  # fmt: skip


class _Ordered(Op, abstract=True):
    """Values chosen along a dimension, which must not be sharded, and their places: a tuple of two."""

    result_dtypes = (None, INT64)
    value: ClassVar[int] = 0
    """Which of the two results has the values."""

    @property
    def line(self) -> int:
        """The dimension, as it was given."""
        fields = vars(self)
        return fields.get("dim", fields.get("axis", -1))

    def pair(self, x: TensorType, size: int | None = None) -> str:
        """Return the rule if `size` elements remain, by default all; 0 drops the dimension."""
        names, axis = along(self.name, len(x.shape), self.line)
        new = [f"{factor_names(1, len(names))[0]}={size}!"] if size and size > 1 else ["1"] if size else []
        rest = names if size is None else (*names[:axis], *new, *names[axis + 1 :])
        return f"{' '.join(names)} -> {', '.join([' '.join(rest)] * 2)}"

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        grad = dout[self.value]
        if grad is None:
            return (None,)
        axis = axis_in(self.name, self.line, len(x.shape))
        place = items(b, out, 2)[1 - self.value]
        if len(grad.shape) < len(x.shape):
            expanded = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
            place, grad = b.emit(Reshape(expanded), place), b.emit(Reshape(expanded), grad)
        return (b.emit(GatherDGrad(axis, x.shape[axis]), place, grad),)

    def taken(self, xp: Any, x: Any, places: Any) -> tuple[Any, Any]:
        """Return (values, positions) at these positions."""
        kind = self.result_dtypes[1 - self.value]
        return xp.take_along_axis(x, places, axis=self.line), places.astype(kind and kind.numpy)


class _Extremum(_Ordered, abstract=True):
    """The extremum along a dimension and its first place."""

    largest: ClassVar[bool] = True

    @property
    def keeps(self) -> bool:
        """Whether the dimension remains, with size 1."""
        fields = vars(self)
        return bool(fields.get("keepdim", fields.get("keep_dims")))

    def rule(self, x: TensorType) -> str:
        require_elements(self.name, x.shape, [axis_in(self.name, self.line, len(x.shape))], "extremum")
        return self.pair(x, int(self.keeps))

    def compute(self, xp: Any, x: Any) -> Any:
        found = self.taken(xp, x, xp.expand_dims(extreme_places(xp, x, self.line, self.largest), self.line))
        values, places = found if self.keeps else [each.squeeze(self.line) for each in found]
        return (places, values) if self.value else (values, places)


class _ArgExtremumWithValue(_Extremum, abstract=True):
    axis: int = 0
    keep_dims: bool = False
    result_dtypes = (INT32, None)
    value = 1
    samples = (
        sample((8, 16)),
        sample((8, 16), axis=-1, keep_dims=True),
        sample((2, 4, 8), axis=1),
    )

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        return _reordered(self, orders, 2)

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        (x,) = inputs
        parts = parts_of(self.name, self.axis, asked, x)
        if parts == 1 or asked.in_strategy is None:
            return None
        axis = axis_in(self.name, self.axis, len(x.shape))
        best = best_of_parts(b, x, axis, parts, asked.in_strategy[0], type(self), GatherD(axis))
        results = zip(best, element_types(self.infer(x.tensor_type)), strict=True)
        return [reshaped(b, value, result.shape, result.dtype) for value, result in results]


def _reordered(op: Any, orders: Sequence[MemoryOrder], results: int) -> Reordered | None:
    """Return an operator along its `axis` on a tensor in another order; each result has the rest of the dimensions."""
    axis = axis_in(op.name, op.axis, orders[0].rank)
    place = orders[0].place(axis)
    if place is None:
        return None
    rest = orders[0].ones([axis]) if getattr(op, "keeps", False) else orders[0].without([axis])
    return Reordered(replace(op, axis=place), tuple(orders), (rest,) * results)


ArgMaxWithValue = operator(
    "ArgMaxWithValue", "The place and the value of the maximum along `axis`: a tuple of two.", _ArgExtremumWithValue
)
ArgMinWithValue = operator(
    "ArgMinWithValue", "The place and the value of the minimum along `axis`: a tuple of two.", _ArgExtremumWithValue,
    largest=False,
)  # fmt: skip


class TopK(_Ordered):
    """The k largest elements along the last axis in descending order, and their positions, as a tuple. Called as
    `TopK()(x, k)`."""

    sorted: bool = True
    k: int = 1
    settings = (("k", int_of),)
    result_dtypes = (None, INT32)
    samples = (sample((8, 16), k=4), sample((16,), k=16))

    def rule(self, x: TensorType) -> str:
        along(self.name, len(x.shape), -1)
        if not 1 <= self.k <= x.shape[-1]:
            raise MspcError(f"TopK: k is {self.k}, not 1 to {x.shape[-1]}, the last dimension of input 0")
        return self.pair(x, self.k)

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return gpu.scans.top_elements(device, inputs[0], *out)

    def compute(self, xp: Any, x: Any) -> Any:
        return self.taken(xp, x, descending(xp, x, -1)[..., : self.k])


class GatherD(Op):
    """out[..., j, ...] = x[..., index[..., j, ...], ...] along `dim`. `GatherD()(x, dim, index)`.

    offset, total: the beginning of this rank's slice of `dim` and the size of all of it, total 0 if it is not sharded.
    """

    dim: int = 0
    offset: int = 0
    total: int = 0
    omitted = ("offset", "total")
    linear_in = (0,)
    selects = refuses_indices = True
    settings = (("dim", int_of),)
    settings_at = 1
    integers = (1,)
    samples = (
        sample((8, 16), (8, 4), dtypes=("Float64", "Int32"), low=0, high=16, dim=1),
        sample((16, 8), (4, 8), dtypes=("Float64", "Int64"), low=0, high=16, dim=-2),
    )

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: types[0].shape[axis_in(self.name, self.dim, len(types[0].shape))]}

    def rule(self, x: TensorType, index: TensorType) -> str:
        names, axis = factor_names(len(x.shape)), axis_in(self.name, self.dim, len(x.shape))
        chosen = [*names[:axis], factor_names(1, len(names))[0] + "!", *names[axis + 1 :]]
        return f"{' '.join(names)}, {' '.join(chosen)} -> {' '.join(chosen)}"

    def bprop(self, b: Builder, x: Value, index: Value, out: Value, dout: Value) -> Gradients:
        axis = axis_in(self.name, self.dim, len(x.shape))
        return b.emit(GatherDGrad(axis, x.shape[axis]), index, dout), None

    def localize(self, placement: RankPlacement) -> Op:
        axis = axis_in(self.name, self.dim, len(placement.in_types[0].shape))
        part = shard_begin(placement, 0, axis)
        return self if part is None else replace(self, offset=part, total=placement.in_types[0].shape[axis])

    def compute(self, xp: Any, x: Any, index: Any) -> Any:
        if not self.total:
            return xp.take_along_axis(x, index, axis=self.dim)
        places, inside = local_places(xp, index, self.offset, x.shape[self.dim], self.total)
        return only_inside(xp, xp.take_along_axis(x, places, axis=self.dim), inside)

    def launch(self, device: Device, out: Any, x: Array, index: Array) -> Launch | None:
        axis = self.dim % x.ndim
        if self.total:
            return None
        size, count, inner = x.shape[axis], index.shape[axis], math.prod(x.shape[axis + 1 :])
        text = (
            f"[&] {{ long long id = (long long)ids[at]; if (id < 0) id += {size}; return id < 0 || id >= {size} ? "
            f"narrow<R>(0) : x[(at / {count * inner} * {size} + (Index)id) * {inner} + at % {inner}]; }}()"
        )
        if math.prod(x.shape) >= 2**31:
            return None
        return gpu.moves.put_values(device, "gather_along", out, text, [("x", x), ("ids", index)])


class GatherDGrad(Op):
    """Zeros of size `size` along `dim` plus dout at index: the transpose of GatherD. offset, total: as there."""

    dim: int = 0
    size: int = 1
    offset: int = 0
    total: int = 0
    omitted = ("offset", "total")
    linear_in = (1,)
    samples = (sample((8, 4), (8, 4), dtypes=("Int32", "Float64"), low=0, high=16, dim=1, size=16),)

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {0: self.size}

    def rule(self, index: TensorType, dout: TensorType) -> str:
        names, axis = along(self.name, len(dout.shape), self.dim)
        out = [*names[:axis], sized(factor_names(1, len(names))[0], self.size), *names[axis + 1 :]]
        return f"{' '.join(names)}, {' '.join(names)} -> {' '.join(out)}"

    def result_dtype(self, *types: TensorType) -> DType:
        return types[1].dtype

    def bprop(self, b: Builder, index: Value, dy: Value, out: Value, dout: Value) -> Gradients:
        return None, b.emit(GatherD(self.dim), dout, index)

    def compute(self, xp: Any, index: Any, dout: Any) -> Any:
        axis = self.dim % dout.ndim
        if self.total:
            index, inside = local_places(xp, index, self.offset, self.size, self.total)
            dout = only_inside(xp, dout, inside)
        out = xp.zeros((*dout.shape[:axis], self.size, *dout.shape[axis + 1 :]), dout.dtype)
        grid = [
            xp.arange(n).reshape((-1,) + (1,) * (dout.ndim - d - 1)) if d != axis else index
            for d, n in enumerate(dout.shape)
        ]
        xp.add.at(out, tuple(grid), dout)
        return out

    def launch(self, device: Device, out: Any, index: Array, dout: Array) -> Launch | None:
        axis = self.dim % dout.ndim
        if self.total:
            return None
        outer, inner = math.prod(dout.shape[:axis]), math.prod(dout.shape[axis + 1 :])
        sizes = (outer, self.size, dout.shape[axis], inner)
        return gpu.moves.add_along(device, "gather_along_gradient", *sizes, index, dout, out)

    def localize(self, placement: RankPlacement) -> Op:
        axis = axis_in(self.name, self.dim, len(placement.in_types[1].shape))
        layout, shape = placement.out_layouts[0], placement.out_types[0].shape
        if not layout.dims[axis]:
            return self
        here = layout.slices_for(placement.rank, shape)[axis]
        return replace(self, size=here.stop - here.start, offset=here.start, total=self.size)


class ReverseV2(MovingOp):
    """x with the order of its elements reversed along `axis`."""

    axis: int | tuple[int, ...] = ()
    may_alias = True
    kernel_name = "reverse"
    linear_in = (0,)
    samples = (sample((8, 16), axis=(1,)), sample((2, 8, 4), axis=(0, -1)))

    def axes(self, rank: int) -> tuple[int, ...]:
        given = ints_of(self.name, "axis", self.axis)
        return axes_in(self.name, given, rank) if given else ()

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        # Each part of a reversed dimension is the reversed dimension.
        places = orders[0].places(self.axes(types[0].rank))
        return Reordered(ReverseV2(places), tuple(orders), tuple(orders))

    def index_map(self, *types: TensorType) -> IndexMap:
        return turned_round(types[0].shape, self.axes(types[0].rank))

    def rule(self, x: TensorType) -> str:
        axes = self.axes(len(x.shape))
        names = " ".join(n + "!" * (d in axes) for d, n in enumerate(factor_names(len(x.shape))))
        return f"{names} -> {names}"

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(ReverseV2(self.axis), dout),)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        axes = self.axes(inputs[0].ndim)
        return xp.flip(inputs[0], axes) if axes else inputs[0]


class _Sorted(_Ordered, abstract=True):
    """x in order, and the places that the elements come from: a tuple of two. Equal ones keep their order, NaN is after
    all others, or before them if the order is `descending`."""

    if TYPE_CHECKING:
        descending: bool = False

    def rule(self, x: TensorType) -> str:
        return self.pair(x)

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        return gpu.scans.sort_lines(device, x, axis_in(self.name, self.line, x.ndim), self.descending, *out)

    def compute(self, xp: Any, x: Any) -> Any:
        return self.taken(xp, x, (descending if self.descending else ascending)(xp, x, self.line))


class Sort(_Sorted):
    """x in order along `axis`, and the places that the elements come from: a tuple of two. Equal ones keep their order,
    NaN is after all others, or before them if the order is `descending`."""

    axis: int = -1
    descending: bool = False
    result_dtypes = (None, INT32)
    samples = (sample((8, 16)), sample((4, 8, 2), axis=1, descending=True))


class _ExtremumDim(_Extremum, abstract=True):
    dim: int = 0
    keepdim: bool = False
    samples = (sample((8, 16)), sample((8, 16), dim=-1, keepdim=True), sample((2, 4, 8), dim=1))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("dim", "keepdim"), optional=1)
        keep = bool(found.get("keepdim", False))
        return replace(self, dim=int_of(self.name, "dim", found["dim"]), keepdim=keep), tensors


MaxDim = operator(
    "MaxDim", "The maximum along `dim` and its first place: a tuple of two. Called as `MaxDim()(input, dim, keepdim)`.",
    _ExtremumDim,
)  # fmt: skip
MinDim = operator(
    "MinDim", "The minimum along `dim` and its first place: a tuple of two. Called as `MinDim()(input, dim, keepdim)`.",
    _ExtremumDim, largest=False,
)  # fmt: skip


class SortExt(_Sorted):
    """x in order along `dim`, and the places that the elements come from: a tuple of two. Equal ones keep their order.

    Called as `SortExt()(input, dim, descending, stable)`.
    """

    dim: int = -1
    descending: bool = False
    samples = (sample((8, 16)), sample((4, 8, 2), dim=1, descending=True))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("dim", "descending", "stable"), optional=3)
        dim = int_of(self.name, "dim", found.get("dim", -1))
        return replace(self, dim=dim, descending=bool(found.get("descending", False))), tensors


class TopkExt(_Ordered):
    """The k largest (or smallest) elements along `dim` in order, and their positions, as a tuple. Called as
    `TopkExt()(input, k, dim, largest, sorted)`."""

    k: int = 1
    dim: int = -1
    largest: bool = True
    samples = (sample((8, 16), k=4), sample((16, 8), k=3, dim=0, largest=False))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("k", "dim", "largest", "sorted"), optional=3)
        k, dim = int_of(self.name, "k", found["k"]), int_of(self.name, "dim", found.get("dim", -1))
        return replace(self, k=k, dim=dim, largest=bool(found.get("largest", True))), tensors

    def rule(self, x: TensorType) -> str:
        axis = axis_in(self.name, self.dim, len(x.shape))
        if not 1 <= self.k <= x.shape[axis]:
            raise MspcError(f"TopkExt: k is {self.k}, not 1 to {x.shape[axis]}, dimension {axis} of input 0")
        return self.pair(x, self.k)

    def launch(self, device: Device, out: Any, x: Array) -> Launch | None:
        if axis_in(self.name, self.dim, x.ndim) != x.ndim - 1:
            return None
        return gpu.scans.top_elements(device, x, *out, smallest=not self.largest)

    def compute(self, xp: Any, x: Any) -> Any:
        places = descending(xp, x, self.dim) if self.largest else ascending(xp, x, self.dim)
        return self.taken(xp, x, xp.take(places, xp.arange(self.k), axis=self.dim))


class RepeatInterleaveTensor(Op):
    """Slice i along `dim`, which must not be sharded, repeats[i] times in a row; without dim the elements of x.

    Called as `RepeatInterleaveTensor()(input, repeats, dim)`; the repetitions must be known at compile time.
    """

    repeats: tuple[int, ...] = ()
    dim: int | None = None
    linear_in = (0,)
    samples = (
        sample((4, 8), repeats=(2, 0, 3, 1), dim=0),
        sample((8, 4, 2), repeats=(1, 2, 1, 4), dim=-2),
        sample((2, 2), repeats=(1, 2, 3, 4)),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("repeats", "dim", "output_size"), optional=2)
        repeats, dim = found["repeats"], found.get("dim")
        if isinstance(repeats, Constant):
            repeats = tuple(repeats.value.reshape(-1).tolist())
        counts = ints_of(self.name, "repeats", repeats)
        return replace(self, repeats=counts, dim=None if dim is None else int_of(self.name, "dim", dim)), tensors

    def rule(self, x: TensorType) -> str:
        names = factor_names(len(x.shape))
        axis = -1 if self.dim is None else axis_in(self.name, self.dim, len(names))
        size = x.size if self.dim is None else x.shape[axis]
        if len(self.repeats) != size or min(self.repeats, default=0) < 0:
            where = "input 0" if self.dim is None else f"dimension {axis} of input 0"
            raise MspcError(
                f"{self.name}: repeats {self.repeats} are not {size} numbers from 0 on, as {where} needs",
                kind=RuntimeError,
            )
        total = f"{factor_names(1, len(names))[0]}={sum(self.repeats)}!"
        if self.dim is None:
            return f"{' '.join(f'{name}!' for name in names)} -> {total}"
        return f"{along_text(names, axis, f'{names[axis]}!')} -> {along_text(names, axis, total)}"

    def strategy_dims(self, rule: Rule) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return the dimensions with an entry for `repeats`, which is not sharded, as in MindSpore's strategy: ((2, 1),
        (1,))."""
        return (*rule.inputs, ((),))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        rows = [i for i, count in enumerate(self.repeats) for _ in range(count)]
        axis = 0 if self.dim is None else axis_in(self.name, self.dim, len(x.shape))
        grad = b.emit(GatherGrad(len(self.repeats), axis), dout, b.constant(rows, INT64))
        return (grad if self.dim is not None else b.emit(Reshape(x.shape), grad),)

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.repeat(inputs[0], list(self.repeats), axis=self.dim)


def along_text(names: Sequence[str], axis: int, token: str) -> str:
    """Return the factors of a tensor, that of dimension `axis` replaced."""
    return " ".join((*names[:axis], token, *names[axis + 1 :]))
