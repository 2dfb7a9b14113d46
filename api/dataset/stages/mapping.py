"""Columns changed by operations: whole blocks at once by mspc's own, row by row by functions of the user."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from mspc.api.dataset.draws import Draws, Pass, own_generators, seed_row
from mspc.api.dataset.operation import Operation
from mspc.api.dataset.rows import Row, as_column, threads_of
from mspc.api.dataset.stages.ahead import in_order
from mspc.api.dataset.stages.base import Stage, Step
from mspc.api.dataset.stages.block import Block, Column, column_values
from mspc.api.dataset.stages.faults import RowFault, name_of
from mspc.api.dataset.stages.processes import Task, in_processes
from mspc.api.dataset.stages.reading import each_row, grouped
from mspc.api.errors import ApiValueError
from mspc.ir.diagnostics import MspcError


@dataclass(frozen=True)
class Change:
    """What a map does to the columns that it takes.

    operations: Operations and functions, one after another. outputs: names of the columns that they give. key: of its
    random numbers. fault: says what fails. seeds: whether functions of the user find the global generators seeded for
    every row, so that it does not matter which process runs them.
    """

    operations: Sequence[Any]
    outputs: Sequence[str]
    key: int
    fault: RowFault
    seeds: bool

    def block(self, columns: tuple[Column, ...], positions: np.ndarray, key: int) -> tuple[Column, ...]:
        """The columns of a block; every operation is one of mspc's own."""
        draws = Draws(key, positions)
        for place, operation in enumerate(self.operations):
            inside = draws.inside(place)
            columns = tuple(operation.column(column, inside) for column in columns)
        return self._counted(tuple(_without_images(column) for column in columns))

    def row(self, values: tuple[Any, ...], number: int, position: int, key: int, place: str = "") -> Row:
        """The columns of the row with this number, which draws what its position has. Raises MspcError for whatever an
        operation raises."""
        draws = Draws(key, np.array([position]))
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
                f"the operations return {len(values)} columns, not {len(self.outputs)}: {', '.join(self.outputs)}"
            )
        return values


def _applied(operation: Any, values: tuple[Any, ...], draws: Draws) -> tuple[Any, ...]:
    if isinstance(operation, Operation):
        return tuple(operation.one(value, draws) for value in values)
    made = operation(*values)
    return made if isinstance(made, tuple) else (made,)


def _without_images(column: Column) -> Column:
    return column if isinstance(column, np.ndarray) else [as_column(value) for value in column]


class Mapped(Step):
    """Columns changed. workers: how many threads, or processes where the change seeds generators, share the work."""

    def __init__(self, source: Stage, change: Change, inputs: Sequence[str], workers: int) -> None:
        self.change = change
        self.taken = [source.place(name) for name in inputs]
        names: list[str] = []
        for i, name in enumerate(source.columns):
            names += change.outputs if i == self.taken[0] else [] if i in self.taken else [name]
        super().__init__(source, names)
        self.workers = workers
        self.vectorised = all(isinstance(operation, Operation) for operation in change.operations)
        self.in_processes = change.seeds and workers > 1 and not self.vectorised
        self.is_own = self.vectorised or self.in_processes

    def blocks(self, reading: Pass) -> Iterator[Block]:
        key = reading.key(self.change.key)
        if self.vectorised:
            return self._by_blocks(reading, key)
        if self.in_processes:
            return self._by_processes(reading, key)
        return self._by_rows(reading, key)

    def _by_blocks(self, reading: Pass, key: int) -> Iterator[Block]:
        blocks = self.source.blocks(reading)
        own = self.source.runs_ahead
        numbered = _numbered(grouped(blocks) if own else grouped(blocks, reading.needed))

        def work(item: tuple[int, Block]) -> tuple[list[Block], MspcError | None]:
            return self._changed(item[1], item[0], key)

        for made, error in in_order(work, numbered, threads_of(self.workers) if own else 1):
            yield from made
            if error is not None:
                raise error

    def _changed(self, block: Block, first: int, key: int) -> tuple[list[Block], MspcError | None]:
        """The changed block. Where an operation fails, the rows before that one, and the error."""
        taken = tuple(block.columns[i] for i in self.taken)
        try:
            return [self._placed(block, self.change.block(taken, _positions(block, first), key))], None
        except Exception:
            return self._up_to_fault(block, first, key)

    def _up_to_fault(self, block: Block, first: int, key: int) -> tuple[list[Block], MspcError | None]:
        made: list[Block] = []
        for i in range(len(block)):
            try:
                values = tuple(column_values(block.columns[place])[i] for place in self.taken)
                position = int(_positions(block, first)[i])
                row = self.change.row(values, first + i, position, key, block.place(i))
            except MspcError as error:
                return made, error
            made.append(self._placed(block.part(i, i + 1), tuple(value[None] for value in row)))
        return made, None

    def _by_rows(self, reading: Pass, key: int) -> Iterator[Block]:
        for number, (block, i) in enumerate(each_row(self.source, reading)):
            values = tuple(np.array(column_values(block.columns[place])[i]) for place in self.taken)
            position = number if block.positions is None else int(block.positions[i])
            with own_generators() if self.change.seeds else nullcontext():
                row = self.change.row(values, number, position, key, block.place(i))
            yield self._placed(block.part(i, i + 1), tuple(value[None] for value in row))

    def _by_processes(self, reading: Pass, key: int) -> Iterator[Block]:
        kept: list[Block] = []

        def tasks() -> Iterator[Task]:
            for number, (block, i) in enumerate(each_row(self.source, reading)):
                kept.append(block.part(i, i + 1))
                position = number if block.positions is None else int(block.positions[i])
                row = tuple(column_values(block.columns[place])[i] for place in self.taken)
                yield Task(number, row, position, block.place(i))

        def work(task: Task) -> Row:
            return self.change.row(task.row, task.number, task.position, key, task.place)

        for row in in_processes(work, tasks(), self.workers, self.change.fault):
            yield self._placed(kept.pop(0), tuple(value[None] for value in row))

    def _placed(self, block: Block, made: tuple[Column, ...]) -> Block:
        """The block with its taken columns replaced."""
        columns: list[Column] = []
        for i, column in enumerate(block.columns):
            columns += made if i == self.taken[0] else () if i in self.taken else (column,)
        return Block(tuple(columns), block.origin, block.positions)


def _positions(block: Block, first: int) -> np.ndarray:
    """What rows draw numbers by: their positions, or their numbers in this stage."""
    return np.arange(first, first + len(block)) if block.positions is None else block.positions


def _numbered(blocks: Iterator[Block]) -> Iterator[tuple[int, Block]]:
    first = 0
    for block in blocks:
        yield first, block
        first += len(block)
