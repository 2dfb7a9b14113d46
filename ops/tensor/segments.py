"""These operators are the extrema and the products of rows that share a segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.math.arithmetic import Div, DivNoNan, Mul
from mspc.ops.math.comparison import Equal, Select
from mspc.ops.math.elementwise import constant
from mspc.ops.op import ArrayBackend, Op, RankPlacement, sample
from mspc.ops.operator_arguments import int_of, split_call
from mspc.ops.tensor.cast import Cast
from mspc.ops.tensor.embedding import EmbeddingLookup, UnsortedSegmentSum

Gradients = Sequence[Value | None]


class _SegmentExtremum(Op, abstract=True):
    """The extremum of the rows of x that share a segment. Called as `Op()(x, segment_ids, num_segments)`.

    A segment without rows holds the least or greatest number of the type. offset: see UnsortedSegmentSum.
    """

    takes_bool = False
    num_segments: int = 0
    offset: int = 0
    samples = (
        sample((8, 4, 8), (8, 4), dtypes=("Float64", "Int32"), low=0, high=8, num_segments=8),
        sample((8, 4), (8,), dtypes=("Float64", "Int32"), low=0, high=8, num_segments=8, gradient=False),
    )

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors, found = split_call(self.name, args, 2, ("num_segments",))
        return replace(self, num_segments=int_of(self.name, "num_segments", found["num_segments"])), tensors

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: self.num_segments}

    def rule(self, x: TensorType, segment_ids: TensorType) -> str:
        return UnsortedSegmentSum(self.num_segments).rule(x, segment_ids)

    def bprop(self, b: Builder, x: Value, segment_ids: Value, out: Value, dout: Value) -> Gradients:
        dtype = dout.tensor_type.dtype
        back = EmbeddingLookup(self.offset)
        winners = b.emit(Cast(dst_type=dtype), b.emit(Equal(), x, b.emit(back, out, segment_ids)))
        count = b.emit(UnsortedSegmentSum(self.num_segments, self.offset), winners, segment_ids)
        share = b.emit(DivNoNan(), b.emit(back, dout, segment_ids), b.emit(back, count, segment_ids))
        return b.emit(Mul(), winners, share), None  # rows of no segment count 0 winners

    def extremum(self, xp: Any, x: Any, ids: Any, function: Any, empty: Any) -> Any:
        rest = x.shape[ids.ndim :]
        places = ids.reshape(-1) - self.offset
        inside = (places >= 0) & (places < self.num_segments)
        out = xp.full((self.num_segments, *rest), empty, x.dtype)
        function.at(out, places[inside], x.reshape(ids.size, *rest)[inside])
        return out

    def localize(self, placement: RankPlacement) -> Op:
        here = placement.out_layouts[0].slices_for(placement.rank, placement.out_types[0].shape)[0]
        return replace(self, num_segments=here.stop - here.start, offset=self.offset + here.start)


def largest(x: Any) -> float:
    """The largest number of x's element type, a floating-point one."""
    if x.dtype.name == "bfloat16":
        return (2 - 2**-7) * 2.0**127  # NumPy knows no limits of it
    return float(np.finfo(x.dtype).max)


class UnsortedSegmentMax(_SegmentExtremum):
    """The maximum of the rows of x that share a segment; the least number where there is none."""

    reduction = "max"
    widens = False  # an extremum rounds nothing, and empty segments show the type's own limits
    samples = _SegmentExtremum.samples

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, ids = inputs
        least = -largest(x) if dtype_of(x.dtype).is_float else be.xp.iinfo(x.dtype).min
        return self.extremum(be.xp, x, ids, be.xp.maximum, least)


class UnsortedSegmentMin(_SegmentExtremum):
    """The minimum of the rows of x that share a segment; the greatest number where there is none."""

    reduction = "min"
    widens = False  # an extremum rounds nothing, and empty segments show the type's own limits
    samples = _SegmentExtremum.samples

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, ids = inputs
        greatest = largest(x) if dtype_of(x.dtype).is_float else be.xp.iinfo(x.dtype).max
        return self.extremum(be.xp, x, ids, be.xp.minimum, greatest)


class UnsortedSegmentProd(_SegmentExtremum):
    """The product of the rows of x that share a segment; 1 where there is none."""

    reduction = "prod"
    samples = _SegmentExtremum.samples

    def bprop(self, b: Builder, x: Value, segment_ids: Value, out: Value, dout: Value) -> Gradients:
        back = EmbeddingLookup(self.offset)
        zero = b.emit(Equal(), x, constant(b, 0, x))
        filled = b.emit(Select(), zero, constant(b, 1, x), x)
        counted = b.emit(Cast(dst_type=x.tensor_type.dtype), zero)
        total = b.emit(UnsortedSegmentSum(self.num_segments, self.offset), counted, segment_ids)
        count = b.emit(back, total, segment_ids)
        product = b.emit(UnsortedSegmentProd(self.num_segments, self.offset), filled, segment_ids)
        others = b.emit(Div(), b.emit(back, product, segment_ids), filled)
        lone = b.emit(Equal(), count, counted)  # no zero among the others
        chosen = b.emit(Select(), lone, others, constant(b, 0, x))
        return b.emit(Mul(), chosen, b.emit(back, dout, segment_ids)), None

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        x, ids = inputs
        return self.extremum(be.xp, x, ids, be.xp.multiply, 1)
