"""These sources reach rows by their numbers: an order of them is divided into blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.nodes.base import ROWS, PipelineNode
from mspc.data.dataset.nodes.block import Block, Column, Origin
from mspc.data.dataset.nodes.prefetching import in_order
from mspc.data.dataset.pipeline_random import DataPass
from mspc.data.dataset.row_values import threads_of
from mspc.data.dataset.samplers import BuiltinSampler, PKSampler, Sampler


class Indexed(PipelineNode):
    """Rows by number. Subclasses give `length` and `fetch`.

    sampler: says which rows, and in which order. workers: how many threads fetch.
    """

    def __init__(self, columns: Sequence[str], sampler: BuiltinSampler, workers: int = 1) -> None:
        super().__init__(columns)
        self.sampler = sampler
        self.workers = workers

    @property
    def runs_ahead(self) -> bool:
        return self.is_own and not isinstance(self.sampler, Sampler)

    def length(self) -> int:
        """Number of rows of the source."""
        raise NotImplementedError

    def fetch(self, numbers: np.ndarray) -> tuple[Column, ...]:
        """The columns of these rows, in memory of their own."""
        raise NotImplementedError

    def labels(self) -> np.ndarray | None:
        """The class of every row, None where it is not known before rows are read."""
        return None

    def describe(self, number: int) -> str:
        """Where a row comes from, for messages."""
        return ""

    def numbers(self, reading: DataPass) -> Iterator[np.ndarray]:
        """Numbers of rows, in the blocks in which they are fetched."""
        rows = self.length()
        if isinstance(self.sampler, Sampler):
            yield from (np.array([self._checked(i, rows)]) for i in _flat(self.sampler.indices(rows)))
            return
        order = np.asarray(self.sampler.order(rows, self.labels, reading), np.int64)
        for first in range(0, len(order), ROWS):
            yield order[first : first + ROWS]

    def placed(self, reading: DataPass) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(numbers of rows, their positions in the order of all shards)"""
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
            return sum(1 for _ in itertools.islice(_flat(self.sampler.indices(rows)), most))
        if isinstance(self.sampler, PKSampler):
            return len(self.sampler.order(rows, self.labels, DataPass(0, 0)))
        return self.sampler.count(rows)

    def _checked(self, number: object, rows: int) -> int:
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
            raise ApiTypeError(f"the sampler gives {number!r}, which is no number of a row")
        if not 0 <= number < rows:
            raise ApiValueError(f"the sampler gives row {number}, but the data set has {rows} rows")
        return int(number)


def _flat(numbers: Iterable[object]) -> Iterator[object]:
    """A sampler may give lists of numbers."""
    for number in numbers:
        if isinstance(number, (list, tuple)) or (isinstance(number, np.ndarray) and number.ndim):
            yield from number
        else:
            yield number.item() if isinstance(number, np.ndarray) else number


class Arrays(Indexed):
    """Rows of arrays in memory."""

    def __init__(
        self, columns: Sequence[str], arrays: Sequence[np.ndarray], sampler: BuiltinSampler,
        labels: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        super().__init__(columns, sampler)
        self.arrays = list(arrays)
        self._labels = labels

    def length(self) -> int:
        return len(self.arrays[0])

    def fetch(self, numbers: np.ndarray) -> tuple[Column, ...]:
        return tuple(np.take(array, numbers, axis=0) for array in self.arrays)

    def labels(self) -> np.ndarray | None:
        return self._labels


