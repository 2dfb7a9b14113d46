"""A nest of loops, of which C++ is written: units are shared out among threads, and a unit is passed over once for
every reduction of its row that others wait for.

A unit is a row, or a run of elements where nothing goes along rows. Reductions have lanes, sums of Float32 totals in
Float64, and parts whose number depends on the shape alone: the order of additions never changes, whatever compiles it
and on however many threads it runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType
from mspc.ops.cpu.loops.passes import LoopInput, LoopValue, Total, cost_of

RUN = 4096
"""Elements of a unit where there are no rows, and elements that a lane's Float32 sums come from together."""
_PARTS = 64
_SUMMED_PARTS = 16
"""Parts of the units at most; where there are totals over units every part has its own."""

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sum:
    """A reduction over units: the total, and the result's step in elements along each dimension, 0 where reduced."""

    total: Total
    strides: Strides
    width: int


@dataclass(slots=True)
class Nest:
    """What a function computes.

    dims: of the space; the last `columns` are a row, 0 for none. writes, row_writes: (value, its type in memory), with
    one element for each of the space, or of the rows. seeds: how many numbers `seed0`, ... lines read.
    """

    dims: tuple[int, ...]
    columns: int
    reads: Sequence[LoopInput]
    lines: Sequence[LoopValue]
    writes: Sequence[tuple[str, DType]]
    row_writes: Sequence[tuple[str, DType]]
    sums: Sequence[Sum]
    seeds: int = 0

    @property
    def size(self) -> int:
        """Elements of the space."""
        return math.prod(self.dims)

    @property
    def inner(self) -> int:
        """Dimensions inside of a unit."""
        return self.columns or 1

    @property
    def runs(self) -> int:
        """Units that the last dimension is divided into."""
        return 1 if self.columns else -(-self.dims[-1] // RUN)

    @property
    def units(self) -> int:
        return math.prod(self.dims[: len(self.dims) - self.inner]) * self.runs

    @property
    def parts(self) -> int:
        """Parts of the units that may be worked off at the same time."""
        if not self.sums:
            return min(_PARTS, self.units)
        room = self.size // (4 * max(each.width for each in self.sums))
        return max(1, min(_SUMMED_PARTS, self.units, room))

    @property
    def scratch_bytes(self) -> int:
        """Memory for the totals of all parts."""
        return sum(8 * self.parts * each.width for each in self.sums)

    @property
    def operations(self) -> int:
        """Operations on elements, reads and writes among them."""
        lines = sum(cost_of(line.text) for line in self.lines if not line.by_row)
        return self.size * (lines + len(self.reads) + len(self.writes) + len(self.sums))

    @property
    def contiguous(self) -> Strides:
        """Steps in elements of an array that has them all in their order."""
        return tuple(0 if n == 1 else math.prod(self.dims[d + 1 :]) for d, n in enumerate(self.dims))
