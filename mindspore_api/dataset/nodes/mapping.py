"""Node that changes columns by operations: mspc's own run over whole blocks, user functions run row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.dataset.nodes.block import Block, Column, column_of, column_values
from mspc.mindspore_api.dataset.nodes.pipeline_node import (
    PipelineNode,
    RowFault,
    RowwiseNode,
    each_row,
    grouped,
    name_of,
)
from mspc.mindspore_api.dataset.nodes.prefetching import in_order
from mspc.mindspore_api.dataset.operation import Operation
from mspc.mindspore_api.dataset.pipeline_random import DataPass, PipelineDraws, own_generators, seed_row
from mspc.mindspore_api.dataset.row_values import Row, as_column, given, threads_of
from mspc.mindspore_api.errors import ApiValueError


@dataclass(frozen=True)
class Change:
    """Effect of a `map` on its input columns.

    operations: Operations and functions, applied in order. outputs: names of the resulting columns. key: seeds its
    random numbers. fault: names the step in errors. seeds: whether the global generators are seeded for every row
    before user functions run, so that the result is the same for any rows read before.
    """

    operations: Sequence[Any]
    outputs: Sequence[str]
    key: int
    fault: RowFault
    seeds: bool

    def block(self, columns: tuple[Column, ...], positions: np.ndarray, key: int) -> tuple[Column, ...]:
        """Return the columns made from those of rows at these positions. Every operation must be mspc's own."""
        draws = PipelineDraws(key, positions)
        for place, operation in enumerate(self.operations):
            columns = tuple(operation.column(column, draws.inside(place)) for column in columns)
        return self._counted(tuple(map(_in_order, columns)))

    def row(self, values: tuple[Any, ...], number: int, position: int, key: int, place: str = "") -> Row:
        """Return the columns of the row with this number; its position seeds its random numbers. Raise MspcError for
        any error in an operation."""
        draws = PipelineDraws(key, np.array([position]))
        if self.seeds:
            seed_row(key, position)
        operation: Any = None
        try:
            for at, operation in enumerate(self.operations):
                values = _applied(operation, values, draws.inside(at))
            operation = self.operations[-1]
            return self._counted(tuple(as_column(value) for value in values))
        except Exception as error:
            raise self.fault.error(error, name_of(operation), number, place) from error

    def _counted(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(values) != len(self.outputs):
            raise ApiValueError(
                f"the operations return {len(values)} columns, not {len(self.outputs)}: {', '.join(self.outputs)}",
                code="E1101",
            )
        return values


def _applied(operation: Any, values: tuple[Any, ...], draws: PipelineDraws) -> tuple[Any, ...]:
    if isinstance(operation, Operation):
        return tuple(operation.one(value, draws) for value in values)
    made = operation(*(given(value) if isinstance(value, np.ndarray) else value for value in values))
    return made if isinstance(made, tuple) else (made,)


def _in_order(column: Column) -> Column:
    """Return a column with its rows one after the other in memory."""
    return np.ascontiguousarray(column) if isinstance(column, np.ndarray) else [as_column(value) for value in column]


_Changed = tuple[list[Block], MspcError | None]
"""The blocks made from one, and the error of the row after them, if an operation failed."""


class Mapped(RowwiseNode):
    """Changes columns. workers: number of threads that share the work of mspc's own operations."""

    def __init__(self, source: PipelineNode, change: Change, inputs: Sequence[str], workers: int) -> None:
        self.change = change
        self.taken = [source.place(name) for name in inputs]
        names: list[str] = []
        for i, name in enumerate(source.columns):
            names += change.outputs if i == self.taken[0] else [] if i in self.taken else [name]
        super().__init__(source, names)
        self.workers = workers
        self.vectorised = all(isinstance(operation, Operation) for operation in change.operations)
        self.is_own = self.vectorised

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        key = reading.key(self.change.key)
        if self.vectorised:
            return self._by_blocks(reading, key)
        return self._by_rows(reading, key)

    def _by_blocks(self, reading: DataPass, key: int) -> Iterator[Block]:
        """Yield changed blocks. Threads share the work if no user code runs in them; else no row is read that the
        reader does not need."""
        ahead = self.source.runs_ahead and not reading.types_only
        blocks = self.source.blocks(reading)
        numbered = _numbered(grouped(blocks) if ahead else grouped(blocks, reading.needed))
        for made, error in in_order(lambda item: self._changed(*item, key), numbered, self._threads(ahead)):
            yield from made
            if error is not None:
                raise error

    def _threads(self, ahead: bool) -> int:
        return threads_of(self.workers) if ahead else 1

    def _changed(self, first: int, block: Block, key: int) -> _Changed:
        """Return the changed block, whose first row has the number `first` in its pass. If an operation fails, change
        row by row, to find the row and to yield those before it."""
        taken = tuple(block.columns[i] for i in self.taken)
        try:
            return [self._placed(block, self.change.block(taken, _positions(block, first), key))], None
        except Exception:
            rows, error = self._up_to_fault(block, first, key)
        if error is None:
            columns = tuple(column_of(values) for values in zip(*rows, strict=True))
            return [self._placed(block, columns)], None
        parts = [block.part(i, i + 1) for i in range(len(rows))]
        return [self._placed(part, _single(row)) for part, row in zip(parts, rows, strict=True)], error

    def _up_to_fault(self, block: Block, first: int, key: int) -> tuple[list[Row], MspcError | None]:
        """Return the rows of a block before the first one in which an operation fails, and the error or None."""
        made: list[Row] = []
        for i in range(len(block)):
            try:
                values = tuple(column_values(block.columns[place])[i] for place in self.taken)
                position = int(_positions(block, first)[i])
                made.append(self.change.row(values, first + i, position, key, block.place(i)))
            except MspcError as error:
                return made, error
        return made, None

    def _by_rows(self, reading: DataPass, key: int) -> Iterator[Block]:
        for number, (block, i) in enumerate(each_row(self.source, reading)):
            values = tuple(np.array(column_values(block.columns[place])[i]) for place in self.taken)
            position = number if block.positions is None else int(block.positions[i])
            with own_generators() if self.change.seeds else nullcontext():
                row = self.change.row(values, number, position, key, block.place(i))
            yield self._placed(block.part(i, i + 1), _single(row))

    def _placed(self, block: Block, made: tuple[Column, ...]) -> Block:
        """Return the block with its input columns replaced."""
        columns: list[Column] = []
        for i, column in enumerate(block.columns):
            columns += made if i == self.taken[0] else () if i in self.taken else (column,)
        return Block(tuple(columns), block.origin, block.positions)


def _numbered(blocks: Iterator[Block]) -> Iterator[tuple[int, Block]]:
    """Yield every block after the number of its first row."""
    number = 0
    for block in blocks:
        yield number, block
        number += len(block)


def _positions(block: Block, first: int) -> np.ndarray:
    """Return the positions that seed the random numbers of rows, or their numbers in this node if the block has
    none."""
    return np.arange(first, first + len(block)) if block.positions is None else block.positions


def _single(row: Row) -> tuple[np.ndarray, ...]:
    """Return the columns of a block of one row."""
    return tuple(value[None] for value in row)
