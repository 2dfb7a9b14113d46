"""Node that changes columns by operations: mspc's own run over whole blocks, user functions run row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.dataset.nodes.block import Block, Column, column_of, column_values, joined
from mspc.mindspore_api.dataset.nodes.pipeline_node import (
    PipelineNode,
    RowFault,
    RowwiseNode,
    each_row,
    grouped,
    name_of,
    read,
)
from mspc.mindspore_api.dataset.nodes.prefetching import in_order
from mspc.mindspore_api.dataset.operation import Operation
from mspc.mindspore_api.dataset.pipeline_random import DataPass, PipelineDraws, own_generators, seed_row
from mspc.mindspore_api.dataset.row_values import Row, as_column, given, integer, threads_of
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError


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


# Batches of rows --------------------------------------------------------------------------------------
# Nodes that stack rows into batches.


@dataclass(frozen=True)
class BatchInfo:
    """Argument of functions over batches: the batch's number in its epoch and the epoch's number, both from 0."""

    batch: int
    epoch: int

    def get_batch_num(self) -> int:
        return self.batch

    def get_epoch_num(self) -> int:
        return self.epoch


@dataclass(frozen=True)
class BatchChange:
    """User function over the lists of rows of some columns."""

    function: Callable[..., Any]
    inputs: Sequence[str]
    outputs: Sequence[str]


class Batched(RowwiseNode):
    """Stacks rows.

    size: rows of a batch, or a function of BatchInfo.
    """

    def __init__(
        self, source: PipelineNode, size: Any, drop_remainder: bool, fault: RowFault, change: BatchChange | None = None
    ) -> None:
        self.size = size
        self.drop_remainder = drop_remainder
        self.change = change
        self.fault = fault
        names: list[str] = []
        self.taken = [] if change is None else [source.place(name) for name in change.inputs]
        for i, name in enumerate(source.columns):
            remaining = [] if i in self.taken else [name]
            names += remaining if change is None or i != self.taken[0] else change.outputs
        super().__init__(source, names)
        self.is_own = not callable(size) and change is None

    @property
    def batch_size(self) -> int:
        return 1 if callable(self.size) else self.size

    def count(self, most: int | None = None) -> int:
        if callable(self.size):
            return PipelineNode.count(self, most)
        rows = self.source.count(None if most is None else most * self.size)
        return rows // self.size if self.drop_remainder else -(-rows // self.size)

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        asked = replace(reading, needed=1 if callable(self.size) else self.size)
        blocks = self.source.blocks(asked) if self.is_own else read(self.source, asked)
        waiting: list[Block] = []
        rows = made = 0
        size = self._size(made, reading)
        for block in blocks:
            first = 0
            while len(block) - first + rows >= size:
                last = first + size - rows
                yield self._stacked([*waiting, block.part(first, last)], made, reading)
                waiting, rows, first, made = [], 0, last, made + 1
                size = self._size(made, reading)
            if first < len(block):
                waiting.append(block.part(first, len(block)))
                rows += len(block) - first
        if rows and not self.drop_remainder:
            yield self._stacked(waiting, made, reading)
        elif rows and not made:
            raise MspcError(
                f"{self.fault.step}: the data set has {rows} rows, fewer than one batch of {size}, and drop_remainder "
                "leaves them out", self.fault.location, ["take a smaller batch_size or drop_remainder=False"],
                kind=ValueError,
            )  # fmt: skip

    def _size(self, batch: int, reading: DataPass) -> int:
        if not callable(self.size):
            return self.size
        try:
            return integer(self.fault.step, "batch_size", self.size(BatchInfo(batch, reading.epoch)))
        except Exception as error:
            raise self.fault.error(error, name_of(self.size), batch) from error

    def _stacked(self, blocks: list[Block], number: int, reading: DataPass) -> Block:
        columns: list[Column] = list(joined(blocks).columns)
        names = self.source.columns
        if self.change is not None:
            columns, names = self._changed(columns, BatchInfo(number, reading.epoch)), self.columns
        stacked = (self._array(name, column) for name, column in zip(names, columns, strict=True))
        return Block(tuple(array[None] for array in stacked))

    def _array(self, name: str, column: Column) -> np.ndarray:
        if isinstance(column, np.ndarray):
            if column.dtype.hasobject and column.ndim:
                message = f"batch: rows of column {name!r} are dicts; a per_batch_map says how they are joined"
                raise ApiTypeError(message)
            return column
        shapes = {value.shape for value in column}
        if len(shapes) > 1:
            listed = ", ".join(map(str, sorted(shapes)))
            raise ApiValueError(f"batch: rows of column {name!r} have different shapes: {listed}")
        return np.stack(column)

    def _changed(self, columns: list[Column], info: BatchInfo) -> list[Column]:
        change = self.change
        assert change is not None
        try:
            lists = ([given(np.array(value)) for value in column_values(columns[i])] for i in self.taken)
            values = change.function(*lists, info)
            made = values if isinstance(values, tuple) else (values,)
            if len(made) != len(change.outputs):
                raise ApiValueError(f"it returns {len(made)} columns, not {len(change.outputs)}", code="E1101")
            results: list[Column] = []
            for column in made:  # a dict is the value of the whole batch
                results.append(as_column(column) if isinstance(column, dict) else [as_column(v) for v in column])
        except Exception as error:
            raise self.fault.error(error, name_of(change.function), info.batch) from error
        found: list[Column] = []
        for i, column in enumerate(columns):
            found += results if i == self.taken[0] else [] if i in self.taken else [column]
        return found
