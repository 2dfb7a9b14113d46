"""Rows are taken from a table by their places, and added to one, on ranks that exchange those rows alone.

They are EmbeddingLookup and UnsortedSegmentSum of tables that are computed. A rule of factors gathers the table, or
adds up what all ranks find in their slices; `passes/communication/exchange_rows.py` lets ranks exchange the rows in the
place of that, so that nobody else finds the gathered table at hand (`exchanged`).
"""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ops.op import sample
from mspc.ops.tensor.embedding import EmbeddingLookup, UnsortedSegmentSum

Gradients = Sequence[Value | None]


class TakeRows(EmbeddingLookup):
    """Rows of a table [n, ...] at places of any shape; zeros for places that are none. `share` of them are some, in the mean."""

    offset: int = 0
    share: float = 1.0
    requests = ()
    exchanged = (0,)
    omitted = ("offset", "share")
    samples = (
        sample((16, 8), (8, 4), dtypes=("Float64", "Int32"), low=-2, high=18),
        sample((16,), (8,), dtypes=("Float64", "Int32"), low=0, high=16),
    )

    def bprop(self, b: Builder, params: Value, ids: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(AddRows(params.shape[0], share=self.share), dout, ids), None


class AddRows(UnsortedSegmentSum):
    """A table of `num_segments` rows, sums of the rows [m, ...] at each of their places [m]; rows without a place are
    dropped. `share` of them have one, in the mean."""

    num_segments: int = 0
    offset: int = 0
    share: float = 1.0
    exchanged = (0,)
    omitted = ("offset", "share")
    samples = (sample((8, 4), (8,), dtypes=("Float64", "Int32"), low=-2, high=9, num_segments=8),)

    def bprop(self, b: Builder, x: Value, segment_ids: Value, out: Value, dout: Value) -> Gradients:
        return b.emit(TakeRows(share=self.share), dout, segment_ids), None
