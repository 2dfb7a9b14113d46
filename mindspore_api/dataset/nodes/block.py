"""Blocks: rows that go through a pipeline together, stored column by column."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    places = range(len(blocks[0].columns))
    columns = [_joined([block.columns[place][i : i + 1] for block, i in rows]) for place in places]
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


def nbytes(block: Block) -> int:
    return sum(sum(value.nbytes for value in c) if isinstance(c, list) else c.nbytes for c in block.columns)
