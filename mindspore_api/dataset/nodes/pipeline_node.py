"""Base classes of pipeline nodes. A node is one step of a data set; each reads the nodes before it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import KINDS, Location, MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.dataset.nodes.block import ROWS, Block, Column, Origin, joined, nbytes
from mspc.mindspore_api.dataset.nodes.prefetching import in_order, read_ahead
from mspc.mindspore_api.dataset.pipeline_random import DataPass
from mspc.mindspore_api.dataset.row_values import threads_of
from mspc.mindspore_api.dataset.samplers import BuiltinSampler, Sampler
from mspc.mindspore_api.errors import ApiValueError, raising_location


class PipelineNode:
    """Node of a pipeline: rows of columns. columns: their names. sources: the nodes that it reads."""

    is_own = True
    """Whether the node itself runs no user code in the thread that reads it."""

    def __init__(self, columns: Sequence[str], sources: Sequence[PipelineNode] = ()) -> None:
        self.columns = list(columns)
        self.sources = list(sources)

    @property
    def runs_ahead(self) -> bool:
        """Whether another thread may read the node: neither it nor its sources run user code in the reading thread."""
        return self.is_own and all(source.runs_ahead for source in self.sources)

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        """Yield the rows of one pass in blocks."""
        raise NotImplementedError

    def count(self, most: int | None = None) -> int:
        """Return the number of rows of a pass. A caller that needs at most `most` rows passes it, because a source may
        be endless."""
        counted = 0
        for block in self.blocks(DataPass.begin(0)):
            counted += len(block)
            if most is not None and counted >= most:
                return most
        return counted

    @property
    def batch_size(self) -> int:
        """Rows per batch, 1 without batches."""
        return self.sources[0].batch_size if self.sources else 1

    @property
    def repeat_count(self) -> int:
        return self.sources[0].repeat_count if self.sources else 1

    @property
    def classes(self) -> int | None:
        """Number of classes of the labels, or None if it is unknown."""
        return self.sources[0].classes if self.sources else None

    @property
    def class_indexing(self) -> dict[str, int]:
        """Class numbers by class name; empty if classes have no names."""
        return self.sources[0].class_indexing if self.sources else {}

    def place(self, column: str) -> int:
        """Return the index of a column. Raise ValueError for an unknown name."""
        if column not in self.columns:
            raise ApiValueError(
                f"there is no column {column!r}; there are {', '.join(map(repr, self.columns))}", code="E1101"
            )
        return self.columns.index(column)


class RowwiseNode(PipelineNode):
    """Node over one source that yields as many rows as the source."""

    def __init__(self, source: PipelineNode, columns: Sequence[str] | None = None) -> None:
        super().__init__(source.columns if columns is None else columns, [source])

    @property
    def source(self) -> PipelineNode:
        return self.sources[0]

    def count(self, most: int | None = None) -> int:
        return self.source.count(most)


@dataclass(frozen=True)
class RowFault:
    """Step of a pipeline, for error messages. step: its name. location: the line of the user's script that added it."""

    step: str
    location: Location | None

    def error(self, error: Exception, what: str, row: int, place: str = "") -> MspcError:
        """Return the error to raise when `what` raised `error` for a row."""
        said = error.message if isinstance(error, MspcError) else f"{type(error).__name__}: {error}".rstrip(": ")
        inner = raising_location(error) or self.location
        notes = list(error.notes) if isinstance(error, MspcError) else []
        if self.location is not None and inner != self.location:
            notes.append(f"{self.step} is called at {self.location}")
        kind = next((kind for kind in KINDS if isinstance(error, kind)), RuntimeError)
        origin = f", {place}" if place else ""
        return MspcError(f"{self.step}: {what} fails at row {row}{origin}: {said}", inner, notes, kind=kind)


def name_of(function: Any) -> str:
    """Return the name of an operation or a function for messages."""
    name = getattr(function, "__qualname__", "") or type(function).__name__
    return "the lambda" if name.endswith("<lambda>") else name.rpartition("<locals>.")[2]


DEPTH = 16
"""Number of blocks that are read in advance unless a script sets another number."""

GROUP_BYTES = 1 << 20
"""Size from which a block is large enough, even with few rows: a batch counts as one row."""


def read(node: PipelineNode, reading: DataPass, depth: int = DEPTH) -> Iterator[Block]:
    """Yield the blocks of a node, made in advance by a thread if no user code would run in that thread."""
    blocks = node.blocks(reading)
    return read_ahead(blocks, depth) if node.runs_ahead and not reading.types_only else blocks


def each_row(node: PipelineNode, reading: DataPass) -> Iterator[tuple[Block, int]]:
    """Yield every row as its block and its index in the block."""
    for block in read(node, reading):
        for i in range(len(block)):
            yield block, i


def grouped(blocks: Iterator[Block], size: int = ROWS) -> Iterator[Block]:
    """Yield the same rows in blocks of at least `size` rows or GROUP_BYTES, except for the last block."""
    waiting: list[Block] = []
    rows = held = 0
    for block in blocks:
        waiting.append(block)
        rows += len(block)
        held += nbytes(block)
        if rows >= size or held >= GROUP_BYTES:
            yield joined(waiting)
            waiting, rows, held = [], 0, 0
    if waiting:
        yield joined(waiting)


class Indexed(PipelineNode):
    """Rows that can be read by number. Subclasses define `length` and `fetch`.

    sampler: chooses the rows and their order. workers: number of threads that fetch.
    """

    def __init__(self, columns: Sequence[str], sampler: BuiltinSampler, workers: int = 1) -> None:
        super().__init__(columns)
        self.sampler = sampler
        self.workers = workers

    @property
    def runs_ahead(self) -> bool:
        return self.is_own and not self.sampler.runs_script()

    def length(self) -> int:
        """Return the number of rows of the source."""
        raise NotImplementedError

    def fetch(self, numbers: np.ndarray) -> tuple[Column, ...]:
        """Return the columns of these rows, copied to new memory."""
        raise NotImplementedError

    def describe(self, number: int) -> str:
        """Return the origin of a row for messages."""
        return ""

    def numbers(self, reading: DataPass) -> Iterator[np.ndarray]:
        """Yield row numbers in the blocks in which they are fetched."""
        rows = self.length()
        if isinstance(self.sampler, Sampler):
            yield from (np.array([number]) for number in self.sampler.numbers(rows))
            return
        order = np.asarray(self.sampler.order(rows, reading), np.int64)
        for first in range(0, len(order), ROWS):
            yield order[first : first + ROWS]

    def placed(self, reading: DataPass) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield (row numbers, their positions in the order of all shards)."""
        first = 0
        for numbers in self.numbers(reading):
            yield numbers, self.sampler.position(np.arange(first, first + len(numbers)))
            first += len(numbers)

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        return in_order(self._block, self.placed(reading), threads_of(self.workers) if self.runs_ahead else 1)

    def _block(self, placed: tuple[np.ndarray, np.ndarray]) -> Block:
        numbers, positions = placed
        return Block(self.fetch(numbers), Origin(self.describe, numbers), positions)

    def count(self, most: int | None = None) -> int:
        rows = self.length()
        if isinstance(self.sampler, Sampler):
            return sum(1 for _ in itertools.islice(self.sampler.numbers(rows), most))
        return self.sampler.count(rows)


class Arrays(Indexed):
    """Rows of arrays in memory."""

    def __init__(self, columns: Sequence[str], arrays: Sequence[np.ndarray], sampler: BuiltinSampler) -> None:
        super().__init__(columns, sampler)
        self.arrays = list(arrays)

    def length(self) -> int:
        return len(self.arrays[0])

    def fetch(self, numbers: np.ndarray) -> tuple[Column, ...]:
        return tuple(np.take(array, numbers, axis=0) for array in self.arrays)
