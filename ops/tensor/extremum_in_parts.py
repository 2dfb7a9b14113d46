"""This module finds the place of an extremum along a sharded dimension: every slice finds its own, and the best of
these is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.named_layout import NamedLayout
from mspc.ir.types import DType
from mspc.ops.control.constraint import constrained
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import Add, Mul
from mspc.ops.op import Op, RequestedSharding
from mspc.ops.operator_arguments import axis_in
from mspc.ops.tensor.cast import Cast
from mspc.ops.tensor.reshape import Reshape


def parts_of(name: str, axis: int, asked: RequestedSharding, x: Value) -> int:
    """Into how many slices the strategy shards dimension `axis` of x; 1 where the operator takes the strategy as it is.

    Raises:
        MspcError: the number of slices does not divide the dimension.
    """
    entries = asked.in_strategy or ()
    if len(entries) != 1 or asked.out_strategy is not None:
        return 1
    slice_counts = entries[0].strategy if isinstance(entries[0], NamedLayout) else entries[0]
    if len(slice_counts) != len(x.shape) or not all(isinstance(shards, int) for shards in slice_counts):
        return 1  # the pass that checks strategies reports it
    place = axis_in(name, axis, len(x.shape))
    if x.shape[place] % slice_counts[place]:
        size = x.shape[place]
        raise MspcError(f"{name}: dimension {place} of input 0 is {size}, which {slice_counts[place]} does not divide")
    return slice_counts[place]


def best_of_parts(
    b: Builder, x: Value, axis: int, parts: int, entry: Any, extremum: Callable[[int, bool], Op], gather: Op
) -> tuple[Value, Value]:
    """(places as Int32, values) of the extremum of x along `axis`, which has size 1 in both.

    parts: into how many slices `entry`, the strategy of x, shards the dimension. extremum: the operator that gives
    (place, value) along an axis, made of the axis and whether it remains. gather: takes elements of (places, indices)
    there.
    """
    axis %= len(x.shape)
    size = x.shape[axis] // parts
    split = b.emit(Reshape((*x.shape[:axis], parts, size, *x.shape[axis + 1 :])), constrained(b, x, entry))
    own = _with_strategy(b, extremum(axis + 1, False), _with_replicated(entry, axis + 1), split)
    places, values = b.emit(TupleGetItem(0), own), b.emit(TupleGetItem(1), own)
    row = _replicated_at(entry, axis)
    best = _with_strategy(b, extremum(axis, True), row, values)
    part, value = b.emit(TupleGetItem(0), best), b.emit(TupleGetItem(1), best)
    inside = b.emit(gather, places, part)
    inside.in_strategy = (row, row)
    kind = part.tensor_type.dtype
    return b.emit(Add(), inside, b.emit(Mul(), part, b.constant(size, kind))), value


def reshaped(b: Builder, value: Value, shape: Sequence[int], dtype: DType) -> Value:
    """`value` in this shape and element type."""
    if value.tensor_type.dtype != dtype:
        value = b.emit(Cast(dst_type=dtype), value)
    return value if value.shape == tuple(shape) else b.emit(Reshape(tuple(shape)), value)


def _with_strategy(b: Builder, op: Op, entry: Any, x: Value) -> Node:
    node = b.emit(op, x)
    node.in_strategy = (entry,)
    return node


def _with_replicated(entry: Any, place: int) -> Any:
    """A strategy with a dimension that is not sharded put in at `place`."""
    if isinstance(entry, NamedLayout):
        return replace(entry, tensor_map=(*entry.tensor_map[:place], -1, *entry.tensor_map[place:]))
    return (*entry[:place], 1, *entry[place:])


def _replicated_at(entry: Any, place: int) -> Any:
    """A strategy whose dimension `place` is not sharded."""
    if isinstance(entry, NamedLayout):
        return replace(entry, tensor_map=(*entry.tensor_map[:place], -1, *entry.tensor_map[place + 1 :]))
    return (*entry[:place], 1, *entry[place + 1 :])
