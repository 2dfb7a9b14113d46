"""Node that changes columns by operations: mspc's own run over whole blocks, user functions run row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.dataset.nodes.base import PipelineNode, RowFault, RowwiseNode, each_row, grouped, name_of
from mspc.mindspore_api.dataset.nodes.block import (
    ROWS,
    Block,
    Column,
    Pace,
    RowSlice,
    column_of,
    column_values,
    pieces,
    united,
)
from mspc.mindspore_api.dataset.nodes.prefetching import in_order
from mspc.mindspore_api.dataset.nodes.processes import Arena, Task, by_crew, can_fork, in_processes
from mspc.mindspore_api.dataset.operation import Chain, Operation, Room, in_one_pass
from mspc.mindspore_api.dataset.pipeline_random import DataPass, PipelineDraws, own_generators, seed_row
from mspc.mindspore_api.dataset.row_values import Row, as_column, given, threads_of
from mspc.mindspore_api.errors import ApiValueError


@dataclass(frozen=True)
class Change:
    """Effect of a `map` on its input columns.

    operations: Operations and functions, applied in order. outputs: names of the resulting columns. key: seeds its
    random numbers. fault: names the step in errors. seeds: whether the global generators are seeded for every row
    before user functions run, so that the result does not depend on the process that runs them.
    """

    operations: Sequence[Any]
    outputs: Sequence[str]
    key: int
    fault: RowFault
    seeds: bool

    @cached_property
    def chain(self) -> Chain:
        return Chain(self.operations)

    def block(
        self, piece: RowSlice, columns: tuple[Column, ...], positions: np.ndarray, key: int
    ) -> tuple[Column, ...]:
        """Return the columns made from those of a piece, in the memory of its target if they fit. Every operation must
        be mspc's own."""
        draws = PipelineDraws(key, positions)
        for at, (place, link) in enumerate(self.chain.links):
            inside = draws.inside(place)
            ends = at == len(self.chain.links) - 1
            columns = tuple(
                _passed(link, column, inside, partial(piece.room, i) if ends else None)
                for i, column in enumerate(columns)
            )
        made = self._counted(tuple(_without_images(column) for column in columns))
        return tuple(_in_place(piece, i, column) for i, column in enumerate(made))

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


def _passed(link: Any, column: Column, draws: PipelineDraws, room: Room | None) -> Column:
    """Return a column after one operation, or after several that share one pass over memory."""
    if not isinstance(link, list):
        return link.column(column, draws)
    if isinstance(column, np.ndarray):
        return in_one_pass(link, column, room)
    for operation in link:
        column = operation.column(column, draws)
    return column


def _in_place(piece: RowSlice, place: int, column: Column) -> Column:
    if piece.is_all or place in piece.in_place or not isinstance(column, np.ndarray):
        return column
    part = piece.room(place, column.shape, column.dtype)
    if part is None:
        return column
    part[...] = column
    return part


def _without_images(column: Column) -> Column:
    return column if isinstance(column, np.ndarray) else [as_column(value) for value in column]


@dataclass(frozen=True)
class _MappedPiece:
    """Result for a piece. columns: the new ones, or None if an operation failed; then `before` has the rows before the
    failing one, and `error` the error."""

    piece: RowSlice
    columns: tuple[Column, ...] | None
    before: Sequence[Block] = ()
    error: MspcError | None = None


class Mapped(RowwiseNode):
    """Changes columns. workers: number of threads that share the work, or of processes if the change seeds
    generators."""

    def __init__(self, source: PipelineNode, change: Change, inputs: Sequence[str], workers: int) -> None:
        self.change = change
        self.taken = [source.place(name) for name in inputs]
        names: list[str] = []
        for i, name in enumerate(source.columns):
            names += change.outputs if i == self.taken[0] else [] if i in self.taken else [name]
        super().__init__(source, names)
        self.workers = workers
        self._pace = Pace()
        self.vectorised = all(isinstance(operation, Operation) for operation in change.operations)
        self.is_known = all(type(operation).__module__.startswith("mspc.") for operation in change.operations)
        self.in_processes = change.seeds and workers > 1 and not self.vectorised
        self.is_own = self.vectorised or self.in_processes

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        key = reading.key(self.change.key)
        if self.vectorised:
            return self._by_blocks(reading, key)
        if self.in_processes:
            return self._by_processes(reading, key)
        return self._by_rows(reading, key)

    def _by_blocks(self, reading: DataPass, key: int) -> Iterator[Block]:
        own, needed = self.source.runs_ahead and not reading.types_only, reading.needed
        blocks = self.source.blocks(reading)
        size = None
        if own and needed > 1:
            # Batches, or groups of them, are written to their final memory, so no copy is needed to join them.
            size = needed * max(1, ROWS // needed)
            size = min(size, self.source.count(size))
        waiting: list[tuple[RowSlice, tuple[Column, ...]]] = []
        for made in self._made(grouped(blocks) if own else grouped(blocks, needed), size, key, own):
            piece = made.piece
            if made.columns is not None:
                waiting.append((piece, made.columns))
            if waiting and (made.error is not None or piece.first + piece.count == piece.target.rows):
                yield self._placed(*united(waiting))
                waiting = []
            if made.error is not None:
                yield from made.before
                raise made.error
        if waiting:
            yield self._placed(*united(waiting))

    def _made(self, blocks: Iterator[Block], size: int | None, key: int, own: bool) -> Iterator[_MappedPiece]:
        """Yield the changed pieces of blocks. Threads change them first; in a long pass processes take over."""
        workers = threads_of(self.workers) if own else 1
        arena = Arena(workers if self.is_known and can_fork() else 1)
        found = pieces(blocks, size, self._pace, arena)
        for made in in_order(lambda piece: self._changed(piece, key), arena.before(found), workers):
            arena.learn(made.columns)
            yield made
        first = next(found, None)
        if first is None:
            return
        arena.open(first.target.rows)

        def taken() -> Iterator[tuple[RowSlice, tuple[Column, ...], np.ndarray]]:
            for piece in chain([first], found):
                block = piece.block
                yield piece, tuple(block.columns[i] for i in self.taken), _positions(block, piece.number)

        def change(piece: RowSlice, columns: tuple[Column, ...], positions: np.ndarray) -> object:
            return self.change.block(piece, columns, positions, key)

        for piece, columns in by_crew(change, taken(), arena, self.change.fault):
            yield self._changed(piece, key) if columns is None else _MappedPiece(piece, columns)

    def _changed(self, piece: RowSlice, key: int) -> _MappedPiece:
        block = piece.block
        taken = tuple(block.columns[i] for i in self.taken)
        try:
            columns = self.change.block(piece, taken, _positions(block, piece.number), key)
        except Exception:
            piece.in_place.clear()
            rows, error = self._up_to_fault(block, piece.number, key)
            if error is not None:
                parts = [block.part(i, i + 1) for i in range(len(rows))]
                before = [self._placed(part, _single(row)) for part, row in zip(parts, rows, strict=True)]
                return _MappedPiece(piece, None, before, error)
            columns = tuple(column_of(values) for values in zip(*rows, strict=True))
        self._pace.learn(columns, len(block))
        return _MappedPiece(piece, columns)

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

    def _by_processes(self, reading: DataPass, key: int) -> Iterator[Block]:
        waiting_blocks: list[Block] = []

        def tasks() -> Iterator[Task]:
            for number, (block, i) in enumerate(each_row(self.source, reading)):
                waiting_blocks.append(block.part(i, i + 1))
                position = number if block.positions is None else int(block.positions[i])
                row = tuple(column_values(block.columns[place])[i] for place in self.taken)
                yield Task(number, row, position, block.place(i))

        def work(task: Task) -> Row:
            return self.change.row(task.row, task.number, task.position, key, task.place)

        for row in in_processes(work, tasks(), self.workers, self.change.fault):
            yield self._placed(waiting_blocks.pop(0), _single(row))

    def _placed(self, block: Block, made: tuple[Column, ...]) -> Block:
        """Return the block with its input columns replaced."""
        columns: list[Column] = []
        for i, column in enumerate(block.columns):
            columns += made if i == self.taken[0] else () if i in self.taken else (column,)
        return Block(tuple(columns), block.origin, block.positions)


def _positions(block: Block, first: int) -> np.ndarray:
    """Return the positions that seed the random numbers of rows, or their numbers in this node if the block has
    none."""
    return np.arange(first, first + len(block)) if block.positions is None else block.positions


def _single(row: Row) -> tuple[np.ndarray, ...]:
    """Return the columns of a block of one row."""
    return tuple(value[None] for value in row)
