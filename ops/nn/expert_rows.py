"""Rows are taken from a table by their places, and added to one, on ranks that exchange those rows alone.

They are EmbeddingLookup, UnsortedSegmentSum and a scatter of tables that are computed. A rule of factors gathers the
table, or adds up what all ranks find in their slices; `passes/communication/exchange_rows.py` lets ranks exchange the
rows in the place of that, so that nobody else finds the gathered table at hand (`exchanged`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.math.comparison import Equal, Select
from mspc.ops.op import ArrayBackend, Op, RankPlacement, sample
from mspc.ops.tensor.creation import Range
from mspc.ops.tensor.embedding import EmbeddingLookup, UnsortedSegmentSum, require_integer

Gradients = Sequence[Value | None]


def require_below(xp: Any, places: Any, limit: int) -> None:
    """Raises IndexError where a place is `limit` or more, on the CPU; a limit of 0 is none."""
    if limit and xp.__name__ == "numpy" and places.size and places.max() >= limit:
        raise IndexError(f"place {places.max()} is named, but there are {limit}")


class TakeRows(EmbeddingLookup):
    """Rows of a table [n, ...] at places of any shape; zeros for places that are none.

    limit: all places are below it, 0 where they may be anything. share: how much of the rows that may travel does, in
    the mean: some places name none, and some rows are near.
    """

    offset: int = 0
    limit: int = 0
    share: float = 1.0
    requests = ()
    exchanged = (0,)
    omitted = ("offset", "limit", "share")
    samples = (
        sample((16, 8), (8, 4), dtypes=("Float64", "Int32"), low=-2, high=18),
        sample((16,), (8,), dtypes=("Float64", "Int32"), low=0, high=16),
    )

    def exchanged_bytes(self, held: float, made: float) -> float:
        return made * self.share

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        require_below(be.xp, inputs[1], self.limit)
        return super().run(be, *inputs)

    def bprop(self, b: Builder, params: Value, ids: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(AddRows(params.shape[0], share=self.share), dout, ids), None


class AddRows(UnsortedSegmentSum):
    """A table of `num_segments` rows, sums of the rows [m, ...] at each of their places [m]; rows without a place are
    dropped. share: as of TakeRows."""

    num_segments: int = 0
    offset: int = 0
    share: float = 1.0
    exchanged = (0,)
    omitted = ("offset", "share")
    samples = (sample((8, 4), (8,), dtypes=("Float64", "Int32"), low=-2, high=9, num_segments=8),)

    def exchanged_bytes(self, held: float, made: float) -> float:
        return held * self.share

    def bprop(self, b: Builder, x: Value, segment_ids: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(TakeRows(share=self.share), dout, segment_ids), None


class SetRows(Op):
    """A table of `size` rows of zeros in which the rows [m, ...] stand at their places [m]; of several for one place
    the last one. Rows without a place are dropped. limit: all places are below it, 0 where they may be anything.

    offset: where a rank's slice of the table begins.
    """

    size: int = 0
    limit: int = 0
    offset: int = 0
    linear_in = (0,)
    exchanged = (0,)
    omitted = ("limit", "offset")
    samples = (
        sample((8, 4), (8,), dtypes=("Float64", "Int32"), low=-2, high=9, size=8),
        sample((6, 2), (6,), dtypes=("Float64", "Int32"), low=0, high=5, size=4, limit=5),
    )

    def exchanged_bytes(self, held: float, made: float) -> float:
        return held

    def index_limits(self, *types: TensorType) -> Mapping[int, int]:
        return {1: self.limit or self.size}

    def rule(self, rows: TensorType, places: TensorType) -> str:
        require_integer(self.name, 1, places)
        if len(places.shape) != 1 or rows.shape[:1] != places.shape:
            raise MspcError(f"{self.name}: places {places.shape} are not those of rows {rows.shape}")
        rest = " ".join(f"r{d}" for d in range(1, len(rows.shape)))
        return f"m! {rest}, m! -> s={self.size} {rest}"  # the last row of a place is known to whom has all of them

    def localize(self, placement: RankPlacement) -> Op:
        here = placement.out_layouts[0].slices_for(placement.rank, placement.out_types[0].shape)[0]
        return replace(self, size=here.stop - here.start, offset=self.offset + here.start)

    def bprop(self, b: Builder, rows: Value, places: Value, out: Value, dout: Value) -> Gradients:
        """Rows that others have replaced get none: each asks for the number of the row that stands at its place."""
        count = rows.shape[0]
        if not count:
            return b.emit(TakeRows(), dout, places), None
        numbers = b.emit(Range(maxlen=count, start=1, limit=count + 1))
        stands = b.emit(TakeRows(), b.emit(SetRows(self.size), numbers, places), places)
        none = b.constant(-1, places.tensor_type.dtype)
        shown = b.emit(Select(), b.emit(Equal(), stands, numbers), places, none)
        return b.emit(TakeRows(), dout, shown), None

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        rows, places = inputs
        require_below(be.xp, places, self.limit)
        own = places - self.offset
        inside = (own >= 0) & (own < self.size)
        made = be.xp.zeros((self.size, *rows.shape[1:]), rows.dtype)
        made[own[inside]] = rows[inside]
        return made
