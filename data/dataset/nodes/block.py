"""A block is rows that go through a pipeline together, column by column."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mspc.data.dataset.row_values import Row
from mspc.ir.late_dataclass import dataclass

Column = np.ndarray | list[np.ndarray]
"""Values of one column: an array whose first axis counts rows, or a list where rows differ in shape or type."""


@dataclass(frozen=True)
class Origin:
    """Where rows come from, told only when one of them is at fault.

    describe: gives the place of a row of the source by its number, "" for none. numbers: of the rows of the block.
    """

    describe: Callable[[int], str]
    numbers: np.ndarray


@dataclass(frozen=True)
class Block:
    """At least one row.

    columns: one entry per column. origin: None where it is not known. positions: of the rows in the order of all
    shards, by which they draw random numbers, so that shards draw what one reader of everything would; None where a
    stage counts its rows itself. All blocks of one stage have them, or none has.
    """

    columns: tuple[Column, ...]
    origin: Origin | None = None
    positions: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.columns[0])

    def row(self, index: int) -> Row:
        return tuple(column[index, ...] if isinstance(column, np.ndarray) else column[index] for column in self.columns)

    def part(self, first: int, last: int) -> Block:
        """Rows first to last, without last; a view."""
        if first == 0 and last >= len(self):
            return self
        origin = None if self.origin is None else Origin(self.origin.describe, self.origin.numbers[first:last])
        positions = None if self.positions is None else self.positions[first:last]
        return Block(tuple(column[first:last] for column in self.columns), origin, positions)

    def place(self, index: int) -> str:
        """Where a row comes from, for messages; "" where it is not known."""
        return "" if self.origin is None else self.origin.describe(int(self.origin.numbers[index]))

    @staticmethod
    def of_row(row: Row, origin: Origin | None = None, position: int | None = None) -> Block:
        positions = None if position is None else np.array([position])
        return Block(tuple(value[None] for value in row), origin, positions)


def column_of(values: Sequence[np.ndarray]) -> Column:
    """Values of one column, stacked where their shapes and types allow it."""
    first = values[0]
    if all(value.shape == first.shape and value.dtype == first.dtype for value in values):
        return np.stack(values)
    return list(values)


def joined(blocks: Sequence[Block]) -> Block:
    """Blocks one behind another."""
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
    """Some rows, each of its block, one behind another."""
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
    """What gives the places of the rows of all these blocks, None where it is not one for all of them."""
    origins = [block.origin for block in blocks if block.origin is not None]
    if len(origins) < len(blocks) or any(origin.describe != origins[0].describe for origin in origins):
        return None
    return origins[0].describe


def column_values(column: Column) -> list[np.ndarray]:
    return [column[i, ...] for i in range(len(column))] if isinstance(column, np.ndarray) else column
