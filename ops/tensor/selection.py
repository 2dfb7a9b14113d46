"""These operators look along one axis, which must not be sharded: extrema with their places, TopK, GatherD, running
sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value, element_types
from mspc.ir.types import INT32, INT64, DType, TensorType, TupleType
from mspc.ops.control.structural import items
from mspc.ops.cuda.index import add_along
from mspc.ops.cuda.move import Move, move, put_values, strides_of
from mspc.ops.device import Array, Device, Launch
from mspc.ops.index_map import IndexMap, turned_round
from mspc.ops.memory_order import MemoryOrder, Reordered
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, RankPlacement, RequestedSharding, sample
from mspc.ops.operator_arguments import axes_in, axis_in, int_of, ints_of, require_elements, split_call
from mspc.ops.tensor.broadcast import reduced_shape
from mspc.ops.tensor.embedding import local_places, only_inside, require_integer, shard_begin
from mspc.ops.tensor.extremum_in_parts import best_of_parts, parts_of, reshaped
from mspc.ops.tensor.reshape import Reshape
from mspc.sharding.rules import factor_names, sized

Gradients = Sequence[Value | None]
_INTEGER = NotDifferentiable("its result is an integer")


def along(name: str, rank: int, axis: int) -> tuple[list[str], int]:
    """Names of the factors with the axis frozen, and the axis counted from 0."""
    place = axis_in(name, axis, rank)
    names = factor_names(rank)
    names[place] += "!"
    return names, place


class _ArgExtremum(Op, abstract=True):
    """The place of an extremum along `axis`, the first one where several are equal."""

    axis: int = -1
    output_type: DType = INT32
    bprop = _INTEGER
    samples = (
        sample((8, 16)),
        sample((4, 8, 2), axis=0, output_type=INT64),
        sample((8, 4), axis=-2),
    )

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        _, axis = along(self.name, types[0].rank, self.axis)
        place = orders[0].place(axis)
        if place is None:
            return None
        return Reordered(replace(self, axis=place), tuple(orders), (orders[0].without([axis]),))

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
        places, _ = best_of_parts(b, x, self.axis, parts, asked.in_strategy[0], self.with_value(), GatherD(self.axis))
        (result,) = element_types(self.infer(x.tensor_type))
        return (reshaped(b, places, result.shape, result.dtype),)

    largest: ClassVar[bool] = True

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.extremum import place_of_extremum  # late: only a GPU needs it

        (x,) = inputs
        return place_of_extremum(device, x, axis_in(self.name, self.axis, len(x.shape)), out, self.largest)

    def with_value(self) -> Any:
        """The operator that gives (place, value)."""
        raise NotImplementedError


class Argmax(_ArgExtremum):
    """The place of the maximum along `axis`, the first one where several are equal."""

    bprop = _INTEGER
    samples = _ArgExtremum.samples

    def with_value(self) -> Any:
        return ArgMaxWithValue

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.argmax(inputs[0], axis=self.axis).astype(self.output_type.numpy)


class Argmin(_ArgExtremum):
    """The place of the minimum along `axis`, the first one where several are equal."""

    largest = False
    bprop = _INTEGER
    samples = _ArgExtremum.samples

    def with_value(self) -> Any:
        return ArgMinWithValue

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return be.xp.argmin(inputs[0], axis=self.axis).astype(self.output_type.numpy)


class _ArgExtremumWithValue(Op, abstract=True):
    axis: int = 0
    keep_dims: bool = False
    samples = (
        sample((8, 16)),
        sample((8, 16), axis=-1, keep_dims=True),
        sample((2, 4, 8), axis=1),
    )

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        _, axis = along(self.name, types[0].rank, self.axis)
        place = orders[0].place(axis)
        if place is None:
            return None
        result = orders[0].ones([axis]) if self.keep_dims else orders[0].without([axis])
        return Reordered(replace(self, axis=place), tuple(orders), (result, result))

    def rule(self, x: TensorType) -> str:
        names, axis = along(self.name, len(x.shape), self.axis)
        require_elements(self.name, x.shape, [axis], "extremum")
        rest = (*names[:axis], *(["1"] if self.keep_dims else []), *names[axis + 1 :])
        return f"{' '.join(names)} -> {', '.join([' '.join(rest)] * 2)}"

    def infer(self, *types: Any) -> Any:
        _, value = element_types(super().infer(*types))
        return TupleType((TensorType(INT32, value.shape), value))

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        if dout[1] is None:
            return (None,)
        axis = axis_in(self.name, self.axis, len(x.shape))
        expanded = reduced_shape(x.shape, (axis,))
        place, grad = items(b, out, 2)[0], dout[1]
        if grad.shape != expanded:
            place, grad = b.emit(Reshape(expanded), place), b.emit(Reshape(expanded), grad)
        return (b.emit(GatherDGrad(axis, x.shape[axis]), place, grad),)

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        (x,) = inputs
        parts = parts_of(self.name, self.axis, asked, x)
        if parts == 1 or asked.in_strategy is None:
            return None
        axis = axis_in(self.name, self.axis, len(x.shape))
        best = best_of_parts(b, x, axis, parts, asked.in_strategy[0], type(self), GatherD(axis))
        results = zip(best, element_types(self.infer(x.tensor_type)), strict=True)
        return [reshaped(b, value, result.shape, result.dtype) for value, result in results]

    def take(self, be: ArrayBackend, x: Any, places: Any) -> tuple[Any, Any]:
        """(places, values) with or without the axis."""
        xp = be.xp
        places = xp.expand_dims(places, self.axis)
        values = xp.take_along_axis(x, places, axis=self.axis)
        places = places.astype(xp.int32)
        return (places, values) if self.keep_dims else (places.squeeze(self.axis), values.squeeze(self.axis))


class ArgMaxWithValue(_ArgExtremumWithValue):
    """The place and the value of the maximum along `axis`: a tuple of two."""

    samples = _ArgExtremumWithValue.samples

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.take(be, inputs[0], be.xp.argmax(inputs[0], axis=self.axis))


class ArgMinWithValue(_ArgExtremumWithValue):
    """The place and the value of the minimum along `axis`: a tuple of two."""

    samples = _ArgExtremumWithValue.samples

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.take(be, inputs[0], be.xp.argmin(inputs[0], axis=self.axis))


class TopK(Op):
    """The k largest elements along the last axis, in descending order, and their places: a tuple of two.

    Called as `TopK()(x, k)`.
    """

    sorted: bool = True
    k: int = 1
    samples = (sample((8, 16), k=4), sample((16,), k=16))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 1, ("k",))
        return replace(self, k=int_of(self.name, "k", found["k"])), tensors

    def rule(self, x: TensorType) -> str:
        names, axis = along(self.name, len(x.shape), -1)
        if not 1 <= self.k <= x.shape[axis]:
            raise MspcError(f"TopK: k is {self.k}, not 1 to {x.shape[axis]}, the last dimension of input 0")
        new = f"{factor_names(1, len(names))[0]}={self.k}!"
        return f"{' '.join(names)} -> {', '.join([' '.join((*names[:-1], new))] * 2)}"

    def infer(self, *types: Any) -> Any:
        value, _ = element_types(super().infer(*types))
        return TupleType((value, TensorType(INT32, value.shape)))

    def bprop(self, b: Builder, x: Value, out: Node, dout: Any) -> Gradients:
        if dout[0] is None:
            return (None,)
        return (b.emit(GatherDGrad(len(x.shape) - 1, x.shape[-1]), items(b, out, 2)[1], dout[0]),)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.running import top_elements  # late: only a GPU needs it

        return top_elements(device, inputs[0], *out)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp, (x,) = be.xp, inputs
        from mspc.ops.tensor.ordering import descending  # late: few networks sort

        places = descending(xp, x, -1)[..., : self.k]
        return xp.take_along_axis(x, places, axis=-1), places.astype(xp.int32)


class GatherD(Op):
    """out[..., j, ...] = x[..., index[..., j, ...], ...] along `dim`. `GatherD()(x, dim, index)`.

    offset, total: where this rank's slice of `dim` begins and the size of all of it, total 0 where it is not sharded.
    """

    dim: int = 0
    offset: int = 0
    total: int = 0
    omitted = ("offset", "total")
    linear_in = (0,)
    selects = True
    samples = (
        sample((8, 16), (8, 4), dtypes=("Float64", "Int32"), low=0, high=16, dim=1),
        sample((16, 8), (4, 8), dtypes=("Float64", "Int64"), low=0, high=16, dim=-2),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 3:
            raise MspcError(f"GatherD takes 3 arguments (x, dim, index), not {len(args)}")
        return replace(self, dim=int_of(self.name, "dim", args[1])), (args[0], args[2])

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_integer(self.name, 1, types[1])
        return inferred

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

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, index = inputs
        if not self.total:
            return be.xp.take_along_axis(x, index, axis=self.dim)
        places, inside = local_places(be.xp, index, self.offset, x.shape[self.dim], self.total)
        return only_inside(be.xp, be.xp.take_along_axis(x, places, axis=self.dim), inside)

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        x, index = inputs
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
        return put_values(device, "gather_along", out, text, [("x", x), ("ids", index)])


class GatherDGrad(Op):
    """Zeros of size `size` along `dim` plus dout at index: the transpose of GatherD. offset, total: as there."""

    dim: int = 0
    size: int = 1
    offset: int = 0
    total: int = 0
    omitted = ("offset", "total")
    linear_in = (1,)
    samples = (
        sample((8, 4), (8, 4), dtypes=("Int32", "Float64"), low=0, high=16, dim=1, size=16),
    )

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

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        index, dout = inputs
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

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        index, dout = inputs
        axis = self.dim % dout.ndim
        if self.total:
            return None
        outer, inner = math.prod(dout.shape[:axis]), math.prod(dout.shape[axis + 1 :])
        return add_along(device, "gather_along_gradient", outer, self.size, dout.shape[axis], inner, index, dout, out)

    def localize(self, placement: RankPlacement) -> Op:
        axis = axis_in(self.name, self.dim, len(placement.in_types[1].shape))
        layout, shape = placement.out_layouts[0], placement.out_types[0].shape
        if not layout.dims[axis]:
            return self
        here = layout.slices_for(placement.rank, shape)[axis]
        return replace(self, size=here.stop - here.start, offset=here.start, total=self.size)


class ReverseV2(Op):
    """x with the order of its elements turned round along `axis`."""

    axis: int | tuple[int, ...] = ()
    may_alias = True
    moves = True
    linear_in = (0,)
    samples = (sample((8, 16), axis=(1,)), sample((2, 8, 4), axis=(0, -1)))

    def axes(self, rank: int) -> tuple[int, ...]:
        given = ints_of(self.name, "axis", self.axis)
        return axes_in(self.name, given, rank) if given else ()

    def reordered(self, types: Sequence[TensorType], orders: Sequence[MemoryOrder]) -> Reordered | None:
        # Each part of a dimension turned round is the dimension turned round.
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

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        axes = self.axes(inputs[0].ndim)
        return be.xp.flip(inputs[0], axes) if axes else inputs[0]

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        (x,) = inputs
        axes, strides = self.axes(x.ndim), strides_of(x.shape)
        source = tuple(-s if d in axes else s for d, s in enumerate(strides))
        offset = sum((x.shape[d] - 1) * strides[d] for d in axes)
        return move(device, "reverse", [Move(x, out, x.shape, source, strides, offset)])
