"""Blocks: rows that go through a pipeline together, stored column by column."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.dataset.row_values import Row

ROWS = 64
"""Number of rows per block of mspc's own sources."""
Column = np.ndarray | list[np.ndarray]
"""Values of one column: an array with one entry per row, or a list if rows differ in shape or type."""


@dataclass(frozen=True)
class Origin:
    """Origin of rows, reported only if one of them causes an error.

    describe: returns the origin of a source row by its number, "" if there is none. numbers: row numbers of the block.
    """

    describe: Callable[[int], str]
    numbers: np.ndarray


@dataclass(frozen=True)
class Block:
    """At least one row.

    columns: one entry per column. origin: None if unknown. positions: position of each row in the order of all shards.
    They seed the random numbers of the rows, so that shards draw the same numbers as one reader of all rows; None if a
    node counts its rows itself. Either all blocks of a node have positions or none has.
    """

    columns: tuple[Column, ...]
    origin: Origin | None = None
    positions: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.columns[0])

    def row(self, index: int) -> Row:
        return tuple(column[index, ...] if isinstance(column, np.ndarray) else column[index] for column in self.columns)

    def part(self, first: int, last: int) -> Block:
        """Return rows first to last, excluding last, as a view."""
        if first == 0 and last >= len(self):
            return self
        origin = None if self.origin is None else Origin(self.origin.describe, self.origin.numbers[first:last])
        positions = None if self.positions is None else self.positions[first:last]
        return Block(tuple(column[first:last] for column in self.columns), origin, positions)

    def place(self, index: int) -> str:
        """Return the origin of a row for messages; "" if unknown."""
        return "" if self.origin is None else self.origin.describe(int(self.origin.numbers[index]))

    @staticmethod
    def of_row(row: Row, origin: Origin | None = None, position: int | None = None) -> Block:
        positions = None if position is None else np.array([position])
        return Block(tuple(value[None] for value in row), origin, positions)


def column_of(values: Sequence[np.ndarray]) -> Column:
    """Return the values of one column, stacked if they have one shape and type, as a list otherwise."""
    first = values[0]
    if all(value.shape == first.shape and value.dtype == first.dtype for value in values):
        return np.stack(values)
    return list(values)


def joined(blocks: Sequence[Block]) -> Block:
    """Concatenate blocks."""
    if len(blocks) == 1:
        return blocks[0]
    columns = tuple(_joined(columns) for columns in zip(*(block.columns for block in blocks), strict=True))
    known = [block.positions for block in blocks if block.positions is not None]
    positions = np.concatenate(known) if len(known) == len(blocks) else None
    describe = _source_of(blocks)
    if describe is None:
        return Block(columns, None, positions)
    numbers = np.concatenate([block.origin.numbers for block in blocks if block.origin is not None])
    return Block(columns, Origin(describe, numbers), positions)


def _joined(columns: Sequence[Column]) -> Column:
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    if len(arrays) == len(columns) and len({(array.shape[1:], array.dtype) for array in arrays}) == 1:
        return np.concatenate(arrays)
    return [value for column in columns for value in column_values(column)]


def picked(rows: Sequence[tuple[Block, int]]) -> Block:
    """Return a block of rows taken from several blocks, in the given order."""
    blocks = list({id(block): block for block, _ in rows}.values())
    columns: list[Column] = []
    for place in range(len(blocks[0].columns)):
        columns.append(_joined([block.columns[place][i : i + 1] for block, i in rows]))
    positions = None
    if all(block.positions is not None for block in blocks):
        positions = np.array([block.positions[i] for block, i in rows if block.positions is not None])
    describe = _source_of(blocks)
    if describe is None:
        return Block(tuple(columns), None, positions)
    numbers = np.array([block.origin.numbers[i] for block, i in rows if block.origin is not None])
    return Block(tuple(columns), Origin(describe, numbers), positions)


def _source_of(blocks: Sequence[Block]) -> Callable[[int], str] | None:
    """Return the `describe` that all these blocks share, or None if they do not share one."""
    origins = [block.origin for block in blocks if block.origin is not None]
    if len(origins) < len(blocks) or any(origin.describe != origins[0].describe for origin in origins):
        return None
    return origins[0].describe


def column_values(column: Column) -> list[np.ndarray]:
    return [column[i, ...] for i in range(len(column))] if isinstance(column, np.ndarray) else column


PIECE_BYTES = 8 << 20
"""Approximate size in bytes of the results that a thread makes at once."""
LEAST_BYTES = 1 << 20
"""Size in bytes below which arrays are not pooled."""
MOST_WAITING = 8
"""Maximum number of arrays in the pool."""


class ReusedMemory:
    """Pool of arrays. Memory is reused once no array or view refers to it: fresh memory from the system costs more time
    than writing a batch."""

    def __init__(self) -> None:
        self._free: deque[np.ndarray] = deque(maxlen=MOST_WAITING)
        self.least = LEAST_BYTES

    def array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an array with undefined contents."""
        size = math.prod(shape) * dtype.itemsize
        if size < self.least or dtype.hasobject:
            return np.empty(shape, dtype)
        raw = self._taken(size)
        # All views of this array refer to it and not to `raw`, because it is made through a memoryview.
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
    """Columns of a block that is made in pieces. rows: number of rows of the block."""

    def __init__(self, rows: int, memory: ReusedMemory) -> None:
        self.rows = rows
        self._memory = memory
        self._lock = threading.Lock()
        self._columns: dict[int, np.ndarray] = {}

    def part(self, column: int, first: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray | None:
        """Return the memory for some rows of a column, or None if other rows of the column have another shape or
        type."""
        with self._lock:
            if column not in self._columns:
                self._columns[column] = self._memory.array((self.rows, *shape[1:]), dtype)
            found = self._columns[column]
        return found[first : first + shape[0]] if (found.shape[1:], found.dtype) == (shape[1:], dtype) else None

    def column(self, column: int) -> np.ndarray:
        """Return a column of which all rows were requested."""
        return self._columns[column]


@dataclass
class Pace:
    """Number of rows per piece. rows: small until the size of results is known."""

    rows: int = 8

    def learn(self, columns: Sequence[Column], rows: int) -> None:
        size = max(1, nbytes(Block(tuple(columns))) // rows)
        self.rows = min(ROWS, max(1, PIECE_BYTES // size))


@dataclass(frozen=True)
class RowSlice:
    """Rows of a block that are going to be changed. source: that block. begin: index of the first row in it. first:
    index of the first row in the target. number: number of the first row in its pass."""

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
        """Return the memory of the target for these rows of a column, or None if they do not fit."""
        found = self.target.part(column, self.first, shape, dtype) if shape[0] == self.count else None
        if found is not None:
            self.in_place.add(column)
        return found


def pieces(blocks: Iterator[Block], size: int | None, pace: Pace, memory: ReusedMemory) -> Iterator[RowSlice]:
    """Yield the rows of blocks in pieces. The pieces make up targets of `size` rows, or one target per block if `size`
    is None."""
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
    """Return (the source rows of all pieces of a target, the columns made from them)."""
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


def nbytes(block: Block) -> int:
    return sum(sum(value.nbytes for value in c) if isinstance(c, list) else c.nbytes for c in block.columns)
