"""This operator puts elements at the places that integers name along one dimension: the reverse of GatherD."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.types import INT64, TensorType
from mspc.ops.bases import require_same
from mspc.ops.device import Array, Device, Launch
from mspc.ops.math.comparison import Equal, Select
from mspc.ops.op import ArrayBackend, Op, RequestedSharding, sample
from mspc.ops.operator_arguments import axis_in
from mspc.ops.tensor.broadcast import BroadcastTo, zeros
from mspc.ops.tensor.cast import Cast
from mspc.ops.tensor.creation import Range
from mspc.ops.tensor.embedding import require_integer, require_places
from mspc.ops.tensor.reshape import Reshape
from mspc.ops.tensor.scatter import TensorScatterAdd, TensorScatterUpdate
from mspc.ops.tensor.selection import GatherD
from mspc.ops.tensor.slicing import StridedSlice
from mspc.sharding.rules import factor_names

Gradients = Sequence[Value | None]


class ScatterElements(Op):
    """x with every element of the updates at the place that the index names along `axis`, and at its own along others.

    Of several updates of one place the last counts; `adds`: all are added to what is there. The index has the updates'
    shape, which may be smaller than that of x in any dimension, and along `axis` larger. A place below 0 counts from
    the end. Dimensions in which the index is as large as x may be sharded, but for `axis`.
    """

    axis: int = 0
    adds: bool = False
    is_several = True
    samples = (
        sample((8, 4), (2, 4), (2, 4), dtypes=("Float64", "Int32", "Float64"), low=-8, high=8),
        sample((8, 4, 2), (8, 6, 2), (8, 6, 2), dtypes=("Float64", "Int64", "Float64"), low=0, high=4, axis=1),
        sample((8, 4), (6, 7), (6, 7), dtypes=("Float64", "Int32", "Float64"), low=0, high=4, axis=-1, adds=True),
    )

    def infer(self, *types: Any) -> Any:
        inferred = super().infer(*types)
        require_integer(self.name, 1, types[1])
        require_same(self.name, types[0], types[2])
        return inferred

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
        """Where one place stands for all elements of a row, rows are written."""
        x, index, updates = inputs
        axis = axis_in(self.name, self.axis, len(x.shape))
        if asked.in_strategy is not None or axis or index.shape[1:] != x.shape[1:]:
            return None
        places = _places_of_rows(b, index)
        if places is None:
            return None
        rows = TensorScatterAdd() if self.adds else TensorScatterUpdate()
        return (b.emit(rows, x, places, updates),)

    def bprop(self, b: Builder, x: Value, index: Value, updates: Value, out: Value, dout: Value) -> Gradients:
        axis = axis_in(self.name, self.axis, len(x.shape))
        shown = tuple(n if d == axis else index.shape[d] for d, n in enumerate(x.shape))
        taken = b.emit(GatherD(axis), _first(b, dout, shown), index)
        if self.adds:
            return dout, None, taken
        none = zeros(b, updates.tensor_type)
        last = self._last(b, index, axis, shown)
        return b.emit(ScatterElements(axis), dout, index, none), None, b.emit(Select(), last, taken, none)

    def _last(self, b: Builder, index: Value, axis: int, shape: tuple[int, ...]) -> Value:
        """Which updates are not overwritten by later ones."""
        count = index.shape[axis]
        line = b.emit(Range(maxlen=max(1, count), limit=count))
        along = tuple(count if d == axis else 1 for d in range(len(shape)))
        numbers = b.emit(BroadcastTo(index.shape), b.emit(Reshape(along), line))
        found = b.emit(ScatterElements(axis), zeros(b, TensorType(INT64, shape)), index, numbers)
        return b.emit(Equal(), b.emit(GatherD(axis), found, index), numbers)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        xp = be.xp
        x, index, updates = inputs
        axis, out = self.axis % x.ndim, x.copy()
        require_places(xp, index, x.shape[axis])
        places = tuple(
            index if d == axis else xp.arange(n).reshape((-1,) + (1,) * (x.ndim - d - 1))
            for d, n in enumerate(index.shape)
        )
        if self.adds:
            xp.add.at(out, places, updates)
        else:
            out[places] = updates
        return out

    def launch(self, device: Device, inputs: Sequence[Array], out: Any) -> Launch | None:
        from mspc.ops.cuda.scatter import scatter_along  # late: only a GPU needs it

        x, index, updates = inputs
        axis = self.axis % x.ndim
        if any(n != m for d, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)) if d != axis):
            return None
        inner = math.prod(x.shape[axis + 1 :])
        sizes = (math.prod(x.shape[:axis]), x.shape[axis], index.shape[axis], inner)
        return scatter_along(device, sizes, x, index, updates, out, self.adds)


def _first(b: Builder, value: Value, shape: tuple[int, ...]) -> Value:
    """The first elements along all dimensions."""
    if value.shape == shape:
        return value
    return b.emit(StridedSlice(begin=(0,) * len(shape), end=shape, strides=(1,) * len(shape)), value)


def _places_of_rows(b: Builder, index: Value) -> Value | None:
    """[n, 1]: the place that all elements of a row share, where the index was broadcast along the row."""
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
