"""Chains of elementwise operators that go along rows, and read what was reduced of a row: what is computed, and how
operands lie along a row. `row_passes` makes a CUDA kernel of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType
from mspc.ops.cuda.elementwise import KernelOperand
from mspc.ops.cuda.loop_parts import LoopReduction
from mspc.ops.cuda.moved import coordinate
from mspc.ops.cuda.source import address
from mspc.ops.device import Array, RankSum


@dataclass(frozen=True, slots=True)
class RowLine:
    """A value: its name, element type and expression, and the names that this reads. total: the reduction that it is,
    of `value`. by_row: there is one for every row."""

    name: str
    dtype: DType
    text: str
    reads: tuple[str, ...]
    total: LoopReduction | None = None
    by_row: bool = False


@dataclass(slots=True)
class RowChain:
    """The computation on every row.

    dims: of the space; the last `columns` of them are a row. writes, row_writes: (name of a value, where it is stored),
    with one element for each of the space, or for each row. totals: of columns over all rows. Arrays with an element
    for each of the space may have a gap behind every row (`row_pitch`); nothing is wrong with what a kernel leaves
    there. merged: whether a row's largest element and the sum of exponentials of what is below it come of one pass, in
    which the sum so far is scaled whenever a larger element is met. summed: the name of an operand of which every rank
    holds a part, and where these are.
    """

    dims: tuple[int, ...]
    columns: int
    reads: Sequence[KernelOperand]
    lines: Sequence[RowLine]
    writes: Sequence[tuple[str, Array]]
    row_writes: Sequence[tuple[str, Array]]
    totals: Sequence[LoopReduction] = ()
    merged: bool = False
    summed: tuple[str, RankSum] | None = None

    @property
    def length(self) -> int:
        """Elements of a row."""
        return math.prod(self.dims[len(self.dims) - self.columns :])

    def held_columns(self, read: KernelOperand) -> str:
        """all: the operand has an element for every column. none: one for a row. some: it is broadcast along a part."""
        if read.moved is not None:
            return "all"
        behind = [(n, size) for n, size in zip(read.shape, self.dims, strict=True)][len(self.dims) - self.columns :]
        if all(n == size for n, size in behind):
            return "all"
        return "none" if all(n == 1 for n, _ in behind) else "some"

    def lanes(self) -> int:
        """Neighbouring elements that a thread loads at once."""
        arrays = [read.array for read in self.reads if self.is_packed(read)] + [array for _, array in self.writes]
        lanes = 16 // max((array.dtype.itemsize for array in arrays), default=4)
        steps = [self.row_step(array) for array in arrays] or [self.length]
        while lanes > 1 and (
            any(step % lanes for step in steps) or any(address(a) % (lanes * a.dtype.itemsize) for a in arrays)
        ):
            lanes //= 2
        return lanes

    def row_step(self, array: Array) -> int:
        """Elements from the begin of a row to that of the next, of an array with an element for each of the space or
        for each column."""
        is_full = array.ndim > 1 and array.size == math.prod(self.dims) and self.length == array.shape[-1]
        return array.strides[-2] // array.itemsize if is_full and array.shape[-2] > 1 else self.length

    @property
    def has_gaps(self) -> bool:
        """Whether an array has gaps between its rows."""
        arrays = [read.array for read in self.reads if read.moved is None] + [array for _, array in self.writes]
        return any(self.row_step(array) != self.length for array in arrays)

    def is_packed(self, read: KernelOperand) -> bool:
        """Whether an operand is loaded in packs: where a row does not fill its last one there must be a gap to read."""
        if read.moved is not None:
            return False
        is_full = read.array.size == math.prod(self.dims)
        return self.held_columns(read) == "all" and (is_full or not self.has_gaps)

    def coordinates(self, element: str) -> list[str]:
        """C++ of the coordinates of the element of this number in its row."""
        kept = len(self.dims) - self.columns
        return [f"r{d}" for d in range(kept)] + [coordinate(element, self.dims[kept:], d) for d in range(self.columns)]

    def merges(self) -> dict[str, RowLine]:
        """By the name of such a sum the line that is the largest element; none where the chain is not `merged`."""
        found: dict[str, RowLine] = {}
        lines = {line.name: line for line in self.lines}
        for line in self.lines if self.merged else ():
            if line.total is None or line.total.how != "Sum" or line.total.count > 1:
                continue
            power = lines.get(line.reads[0])
            below = lines.get(power.reads[0]) if power is not None and len(power.reads) == 1 else None
            most = lines.get(below.reads[-1]) if below is not None and len(below.reads) == 2 else None
            if power is None or below is None or most is None or most.total is None or most.total.how != "Largest":
                continue
            is_power = power.text == f"exp({below.name})" and below.text == f"{most.reads[0]} - {most.name}"
            same = len({line.total.type, most.total.type}) == 1 and line.total.type in ("float", "double")
            if is_power and same and most not in found.values():
                found[line.name] = most
        return found

    def stages(self) -> tuple[dict[str, int], int]:
        """(the pass in which a value can be computed, how many passes there are). Of a row's value it is the first pass
        that can read it."""
        ready: dict[str, int] = {read.name: 0 for read in self.reads}
        merges = self.merges()
        for line in self.lines:
            after = max((ready[name] for name in line.reads if name in ready), default=0)
            if line.name in merges:
                after = ready[merges[line.name].name] - 1
            ready[line.name] = after + (line.total is not None)
        last = max([ready[name] for name, _ in self.writes], default=0)
        last = max([last, *(ready[line.name] - 1 for line in self.lines if line.total is not None)])
        last = max([last, *(ready[total.value] for total in self.totals)])
        return ready, last + 1
