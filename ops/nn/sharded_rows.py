"""Rows of which every rank has a slice are normalised inside of one operator: by the largest and the sum of all slices.

The ranks of a row exchange a number for every row, where a change of layout would send the rows themselves; so does
Megatron-LM's cross entropy over a sharded vocabulary (Shoeybi et al., arXiv 1909.08053).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.math.arithmetic import Sub
from mspc.ops.math.elementwise import Exp, Log
from mspc.ops.math.reduce import ReduceMax
from mspc.ops.nn.norm import statistics_dtype
from mspc.ops.op import RankPlacement
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.ops.tensor.cast import as_dtype

Ranks = tuple[int, ...]


def ranks_of_rows(placement: RankPlacement, axes: Sequence[int]) -> Ranks:
    """The ranks that have a slice of this rank's rows, which lie along `axes` of the first operand; rows without
    elements have none."""
    layout = placement.in_layouts[0]
    if 0 in (placement.in_types[0].shape[d] for d in axes):
        return (placement.rank,)
    along = [a for d in axes for a in layout.dims[d]]
    return tuple(sorted(layout.group(along, placement.rank))) if along else (placement.rank,)


def sent_bytes(type: TensorType, layout: Layout, axes: Sequence[int], numbers: int) -> float:
    """Bytes that a rank sends for so many numbers of each of its rows, of an operand of this (global) type."""
    group = layout.size_of(a for d in axes for a in layout.dims[d])
    if group == 1:
        return 0.0
    rows = math.prod(n // layout.strategy[d] for d, n in enumerate(type.shape) if d not in axes)
    return AllReduce.sent_bytes(numbers * rows * statistics_dtype(type.dtype).itemsize, group)


def total_of_rows(b: Builder, ranks: Ranks, axes: tuple[int, ...], value: Value) -> Value:
    """The sum of rows with all of their slices, one element each."""
    return _combined(b, ranks, b.emit(ReduceSum(True, axes), value), "sum")


def moved_rows(b: Builder, ranks: Ranks, axes: tuple[int, ...], x: Value) -> tuple[Value, Value, Value]:
    """(rows less their largest, the exponential of these, its sum over all slices), wide enough for sums."""
    wide = as_dtype(b, x, statistics_dtype(x.tensor_type.dtype))
    moved = b.emit(Sub(), wide, _combined(b, ranks, b.emit(ReduceMax(True, axes), wide), "max"))
    power = b.emit(Exp(), moved)
    return moved, power, total_of_rows(b, ranks, axes, power)


def log_softmax_of_rows(b: Builder, ranks: Ranks, axes: tuple[int, ...], x: Value) -> Value:
    """The logarithm of the softmax of rows, wide enough for sums."""
    moved, _, total = moved_rows(b, ranks, axes, x)
    return b.emit(Sub(), moved, b.emit(Log(), total))


def _combined(b: Builder, ranks: Ranks, value: Value, op: str) -> Value:
    found = b.emit(AllReduce(op).with_ranks(ranks), value)
    found.attrs["reason"] = f"the {_NAMES[op]} of rows, of which each rank has a slice"
    return found


_NAMES = {"sum": "sum", "max": "largest element"}
