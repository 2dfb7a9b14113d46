"""Which values every pass over a unit computes, reads again or holds from an earlier one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType
from mspc.ops.device import computing_type

_CALL = re.compile(r"\b(?!real|T\b|float|double|bool|absolute|clip|fabs|i8|u8|i64|u16|u32)[a-z_]\w*(?:<\w+>)?\(")
"""A call that costs more than to store a value and read it again."""
_CHEAP = 4
"""Operations that are made again rather than held."""
_NAME = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class LoopInput:
    """An operand: its name in expressions, its element type, and its step in elements along each dimension, 0 where it
    is broadcast."""

    name: str
    dtype: DType
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Total:
    """A reduction by `how` (Sum, Product, Largest, Smallest) of `value`, whose element type is `accumulates`; the
    result has `dtype`. count: what the total is divided by."""

    value: str
    how: str
    count: int
    accumulates: DType
    dtype: DType


@dataclass(frozen=True, slots=True)
class LoopValue:
    """A value: its name, element type and expression, and the names that this reads. total: the reduction of a row
    that it is. by_row: there is one for every row."""

    name: str
    dtype: DType
    text: str
    reads: tuple[str, ...]
    total: Total | None = None
    by_row: bool = False


class Passes:
    """The passes of a nest.

    ready: the pass in which a value can be computed first; of a row's value the first that can read it. first: the
    pass in which a value of elements is computed. held: those that later passes read from memory.
    """

    def __init__(
        self, reads: Sequence[LoopInput], lines: Sequence[LoopValue], stored: Sequence[str], columns: int, count: int
    ) -> None:
        """stored: the elements' values that the last pass is for. columns: so many of `count` dimensions are a row."""
        self.reads = {read.name: read for read in reads}
        self.lines = {line.name: line for line in lines}
        self._inner = range(count - columns, count)
        self._places = {read.name: i for i, read in enumerate(reads)}
        self._stored = list(stored)
        self.ready: dict[str, int] = dict.fromkeys(self.reads, 0)
        for line in lines:
            after = max((self.ready[name] for name in line.reads if name in self.ready), default=0)
            self.ready[line.name] = after + (line.total is not None)
        last = max([self.ready[name] for name in self._stored if name in self.ready], default=0)
        ends = [self.ready[line.name] - 1 for line in lines if line.total is not None]
        self.count = max([last, *ends]) + 1
        self.first: dict[str, int] = {}
        self.held: dict[str, LoopValue] = {}
        self._needed: list[list[str]] = []
        for number in range(self.count):
            self._needed.append(self._found(number))
            for name in self._needed[-1]:
                self.first.setdefault(name, number)

    def of_row(self, read: LoopInput) -> bool:
        """Whether an operand has one element for a row."""
        return bool(self._inner) and not any(read.strides[d] for d in self._inner)

    def totals_of(self, number: int) -> list[tuple[LoopValue, Total]]:
        """The reductions of rows that a pass makes."""
        return [
            (line, line.total)
            for line in self.lines.values()
            if line.total is not None and self.ready[line.name] - 1 == number
        ]

    def needed(self, number: int) -> list[str]:
        """The elements' values that a pass needs, in the order of their computation."""
        return self._needed[number]

    def type_of(self, name: str) -> str:
        line = self.lines.get(name)
        return computing_type(line.dtype if line is not None else self.reads[name].dtype)

    def place_of(self, name: str) -> int:
        """Which operand a name is."""
        return self._places[name]

    def words(self) -> set[str]:
        """All names in expressions."""
        return set(_NAME.findall(" ".join(line.text for line in self.lines.values())))

    def _found(self, number: int) -> list[str]:
        wanted = [line.reads[0] for line, _ in self.totals_of(number)]
        wanted += self._stored if number == self.count - 1 else []
        found: dict[str, None] = {}

        def visit(name: str) -> None:
            line = self.lines.get(name)
            if name in found or (line is None and name not in self.reads) or (line is not None and line.by_row):
                return
            if line is None and self.of_row(self.reads[name]):
                return
            if line is not None and self.first.get(name, number) < number and self._is_costly(line):
                self.held[name] = line
            elif line is not None:
                for other in line.reads:
                    visit(other)
            found[name] = None

        for name in wanted:
            visit(name)
        return list(found)

    def _is_costly(self, line: LoopValue) -> bool:
        return self._cost(line) > _CHEAP

    def _cost(self, line: LoopValue) -> int:
        """Operations of a value of elements, those that it is made of among them."""
        if line.by_row:
            return 0
        return cost_of(line.text) + sum(self._cost(self.lines[name]) for name in line.reads if name in self.lines)


def cost_of(text: str) -> int:
    """Operations of an expression."""
    return 2 * _CHEAP if _CALL.search(text) else 1
