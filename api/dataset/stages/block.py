"""Blocks: rows that go through a pipeline together, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mspc.api.dataset.rows import Row

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
    """At least one row. columns: one entry per column. origin: None where it is not known."""

    columns: tuple[Column, ...]
    origin: Origin | None = None

    def __len__(self) -> int:
        return len(self.columns[0])

    def row(self, index: int) -> Row:
        return tuple(column[index, ...] if isinstance(column, np.ndarray) else column[index] for column in self.columns)

    def rows(self) -> Iterator[Row]:
        return map(self.row, range(len(self)))

    def part(self, first: int, last: int) -> Block:
        """Rows first to last, without last; a view."""
        if first == 0 and last >= len(self):
            return self
        origin = None if self.origin is None else Origin(self.origin.describe, self.origin.numbers[first:last])
        return Block(tuple(column[first:last] for column in self.columns), origin)

    def place(self, index: int) -> str:
        """Where a row comes from, for messages; "" where it is not known."""
        return "" if self.origin is None else self.origin.describe(int(self.origin.numbers[index]))

    @staticmethod
    def of_row(row: Row, origin: Origin | None = None) -> Block:
        return Block(tuple(value[None] for value in row), origin)

    @staticmethod
    def of_rows(rows: Sequence[Row]) -> Block:
        """Rows copied into one block."""
        if len(rows) == 1:
            return Block.of_row(rows[0])
        return Block(tuple(column_of(values) for values in zip(*rows, strict=True)))


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
    origins = [block.origin for block in blocks if block.origin is not None]
    if len(origins) < len(blocks) or any(origin.describe != origins[0].describe for origin in origins):
        return Block(columns)
    return Block(columns, Origin(origins[0].describe, np.concatenate([origin.numbers for origin in origins])))


def _joined(columns: Sequence[Column]) -> Column:
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    if len(arrays) == len(columns) and len({(array.shape[1:], array.dtype) for array in arrays}) == 1:
        return np.concatenate(arrays)
    return [value for column in columns for value in column_values(column)]


def column_values(column: Column) -> list[np.ndarray]:
    return [column[i, ...] for i in range(len(column))] if isinstance(column, np.ndarray) else column
