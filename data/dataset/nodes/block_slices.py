"""Several threads make a block here, each some of the rows, straight into the memory of the complete block."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import field

import numpy as np

from mspc.data.dataset.nodes.base import ROWS
from mspc.data.dataset.nodes.block import Block, Column, joined
from mspc.data.dataset.nodes.prefetching import nbytes
from mspc.ir.late_dataclass import dataclass

PIECE_BYTES = 8 << 20
"""About so many bytes of results a thread makes at once."""
LEAST_BYTES = 1 << 20
"""Smaller arrays come from NumPy as any other."""
MOST_WAITING = 8
"""Most arrays that wait to be used again."""


class ReusedMemory:
    """Arrays whose memory is used again when nobody holds them or a view of them any more: the system takes longer to
    give fresh memory than a batch takes to be written."""

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque(maxlen=MOST_WAITING)
        self.least = LEAST_BYTES

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array with any contents."""
        size = math.prod(shape) * dtype.itemsize
        if size < self.least or dtype.hasobject:
            return np.empty(shape, dtype)
        raw = self._taken(size)
        # All views of this array hold it, not the bytes below: those come through a memoryview.
        array = np.frombuffer(memoryview(raw), np.uint8, size).view(dtype).reshape(shape)
        holder = array.base
        assert isinstance(holder, np.ndarray)
        weakref.finalize(holder, self._returned, raw).atexit = False
        return array

    def _returned(self, raw: np.ndarray) -> None:
        self._free.append(raw)

    def _taken(self, size: int) -> np.ndarray:
        for _ in range(len(self._free)):
            try:
                raw = self._free.pop()
            except IndexError:  # another thread took it
                break
            if raw.size == size:
                return raw
            self._free.appendleft(raw)
        return np.empty(size, np.uint8)


class BlockColumns:
    """The columns of a block that is made in pieces. rows: of the block."""

    def __init__(self, rows: int, memory: ReusedMemory) -> None:
        self.rows = rows
        self._memory = memory
        self._lock = threading.Lock()
        self._columns: dict[int, np.ndarray] = {}

    def part(self, column: int, first: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        """The memory for some rows of a column, None where others of its rows have another shape or type."""
        with self._lock:
            if column not in self._columns:
                self._columns[column] = self._memory.array((self.rows, *shape[1:]), dtype)
            found = self._columns[column]
        return found[first : first + shape[0]] if (found.shape[1:], found.dtype) == (shape[1:], dtype) else None

    def column(self, column: int) -> np.ndarray:
        """A column of which all rows were requested."""
        return self._columns[column]


@dataclass
class Pace:
    """How many rows make a piece. rows: few before it is known how large results are."""

    rows: int = 8

    def learn(self, columns: Sequence[Column], rows: int) -> None:
        size = max(1, nbytes(Block(tuple(columns))) // rows)
        self.rows = min(ROWS, max(1, PIECE_BYTES // size))


@dataclass(frozen=True)
class RowSlice:
    """Rows of a block, to be changed. source: that block. begin: the first row there. first: the first row in the
    whole that is made. number: of the first row in its pass."""

    source: Block
    begin: int
    count: int
    target: BlockColumns
    first: int
    number: int
    in_place: set[int] = field(default_factory=set)

    @property
    def block(self) -> Block:
        return self.source.part(self.begin, self.begin + self.count)

    @property
    def is_all(self) -> bool:
        return self.count == self.target.rows

    def room(self, column: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        """Memory in the whole for these rows of a column."""
        found = self.target.part(column, self.first, shape, dtype) if shape[0] == self.count else None
        if found is not None:
            self.in_place.add(column)
        return found


def pieces(blocks: Iterator[Block], size: int | None, pace: Pace, memory: ReusedMemory) -> Iterator[RowSlice]:
    """The rows of blocks in pieces of wholes of `size` rows, or of every block."""
    target: BlockColumns | None = None
    number = filled = 0
    for block in blocks:
        begin = 0
        while begin < len(block):
            if target is None:
                target, filled = BlockColumns(size or len(block), memory), 0
            count = min(pace.rows, len(block) - begin, target.rows - filled)
            yield RowSlice(block, begin, count, target, filled, number)
            begin, filled, number = begin + count, filled + count, number + count
            if filled == target.rows:
                target = None


def united(made: Sequence[tuple[RowSlice, tuple[Column, ...]]]) -> tuple[Block, tuple[Column, ...]]:
    """(the rows that all pieces of a whole were made of, the columns that were made of them)"""
    first, last = made[0][0], made[-1][0]
    if len(made) == 1:
        return first.block, made[0][1]
    if all(piece.source is first.source for piece, _ in made):
        source = first.source.part(first.begin, last.begin + last.count)
    else:
        source = joined([piece.block for piece, _ in made])
    rows = sum(piece.count for piece, _ in made)
    columns: list[Column] = []
    for place in range(len(made[0][1])):
        if all(place in piece.in_place for piece, _ in made):
            columns.append(first.target.column(place)[:rows])
        else:
            columns += joined([Block((found[place],)) for _, found in made]).columns
    return source, tuple(columns)
