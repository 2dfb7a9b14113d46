"""Samplers: they choose the rows of a source for an epoch, and their order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any

import numpy as np

from mspc.mindspore_api.dataset.pipeline_random import DataPass
from mspc.mindspore_api.dataset.row_values import integer, next_shuffle
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError


class Shuffle(StrEnum):
    """Ways to shuffle a source. Only GLOBAL and FALSE are accepted, because sources here do not know files."""

    FALSE = "false"
    ADAPTIVE = "adaptive"
    GLOBAL = "global"
    PARTIAL = "partial"
    FILES = "files"
    INFILE = "infile"


class BuiltinSampler:
    """Chooses row numbers. num_samples: maximum number of rows, None for all.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind.
    """

    def __init__(self, num_samples: int | None = None) -> None:
        name = type(self).__name__
        self.num_samples = None if num_samples is None else integer(name, "num_samples", num_samples, 0) or None
        self._key = next_shuffle() if self.is_shuffled() else 0

    def is_shuffled(self) -> bool:
        return False

    def is_sharded(self) -> bool:
        return False

    def order(self, rows: int, reading: DataPass) -> Sequence[int] | np.ndarray:
        """Return the row numbers of one pass over a source of `rows` rows. Raise ValueError for rows that the source
        lacks."""
        return self._limited(self._order(rows, reading))

    def runs_script(self) -> bool:
        """Return whether a script wrote this sampler."""
        return isinstance(self, Sampler)

    def position(self, place: Any) -> Any:
        """Return the position in the order of all shards of the row at index `place` of this shard; elementwise for an
        array."""
        return place

    def count(self, rows: int) -> int:
        """Return the length of `order` without computing the order if possible."""
        found = self._count(rows)
        return found if self.num_samples is None else min(found, self.num_samples)

    def _limited(self, order: Any) -> Any:
        return order if self.num_samples is None else order[: self.num_samples]

    def _order(self, rows: int, reading: DataPass) -> Any:
        raise NotImplementedError

    def _count(self, rows: int) -> int:
        return rows


class Sampler(BuiltinSampler):
    """Base class of samplers in scripts. `__iter__` yields row numbers below `dataset_size`, the number of rows of the
    source. A subclass may omit the call of this class's `__init__`."""

    num_samples: int | None = None

    def __init__(self, num_samples: int | None = None) -> None:
        super().__init__(num_samples)
        self.dataset_size = 0

    def __iter__(self) -> Iterator[int]:
        raise NotImplementedError(f"{type(self).__name__} has no __iter__")

    def numbers(self, rows: int) -> Iterator[int]:
        """Yield the row numbers of an epoch over `rows` rows. Raise TypeError or ValueError for invalid numbers."""
        self.dataset_size = rows
        return (_row_number(i, rows) for i in _flat(itertools.islice(iter(self), self.num_samples)))


def _flat(numbers: Iterable[Any]) -> Iterator[object]:
    """Yield single numbers: a sampler may return lists of numbers."""
    for number in numbers:
        if isinstance(number, (list, tuple)) or (isinstance(number, np.ndarray) and number.ndim):
            yield from number
        else:
            yield number.item() if isinstance(number, np.ndarray) else number


def _row_number(number: object, rows: int) -> int:
    if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
        raise ApiTypeError(f"the sampler gives {number!r}, which is no number of a row")
    if not 0 <= number < rows:
        raise ApiValueError(f"the sampler gives row {number}, but the data set has {rows} rows")
    return int(number)


class IterSampler(Sampler):
    """Row numbers from an iterable."""

    def __init__(self, sampler: Any, num_samples: int | None = None) -> None:
        super().__init__(num_samples)
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        return iter(self.sampler)


class SequentialSampler(BuiltinSampler):
    """Rows in order, from `start_index` on."""

    def __init__(self, start_index: int | None = None, num_samples: int | None = None) -> None:
        super().__init__(num_samples)
        self.start_index = integer("SequentialSampler", "start_index", start_index or 0, 0)

    def _order(self, rows: int, reading: DataPass) -> Any:
        self._check(rows)
        return np.arange(self.start_index, rows)

    def _count(self, rows: int) -> int:
        self._check(rows)
        return rows - self.start_index

    def _check(self, rows: int) -> None:
        if self.start_index and self.start_index >= rows:
            raise ApiValueError(f"SequentialSampler: start_index {self.start_index} is not below the {rows} rows")


class RandomSampler(BuiltinSampler):
    """Rows in random order, which changes every epoch. replacement: a row may occur more than once."""

    def __init__(
        self, replacement: bool = False, num_samples: int | None = None, shuffle: Any = Shuffle.GLOBAL
    ) -> None:
        _check_shuffle("RandomSampler", shuffle)
        super().__init__(num_samples)
        self.replacement = replacement

    def is_shuffled(self) -> bool:
        return True

    def _order(self, rows: int, reading: DataPass) -> Any:
        generator = reading.generator(self._key)
        return generator.integers(0, rows, self._size(rows)) if self.replacement else generator.permutation(rows)

    def _size(self, rows: int) -> int:
        return self.num_samples or rows

    def _count(self, rows: int) -> int:
        return self._size(rows) if self.replacement else rows


class DistributedSampler(BuiltinSampler):
    """One shard: rows s, s + n, s + 2 n, ... of the order that all shards share. The order is continued from its
    beginning, so that all shards have the same number of rows.

    Raises:
        RuntimeError: shard_id is not below num_shards, or offset is given.
    """

    def __init__(
        self, num_shards: int, shard_id: int, shuffle: Any = True, num_samples: int | None = None, offset: int = -1
    ) -> None:
        self.num_shards = integer("DistributedSampler", "num_shards", num_shards)
        self.shard_id = integer("DistributedSampler", "shard_id", shard_id, 0)
        if self.shard_id >= self.num_shards:
            raise ApiRuntimeError(f"DistributedSampler: shard_id {shard_id} must be below num_shards {num_shards}")
        if offset != -1:
            raise ApiRuntimeError(f"DistributedSampler: offset={offset!r} is not supported", ["leave it out"])
        self.shuffle = _check_shuffle("DistributedSampler", shuffle)
        super().__init__(num_samples)

    def is_shuffled(self) -> bool:
        return self.shuffle

    def is_sharded(self) -> bool:
        return self.num_shards > 1

    def position(self, place: Any) -> Any:
        return self.shard_id + self.num_shards * place

    def _order(self, rows: int, reading: DataPass) -> Any:
        if not rows:
            return np.arange(0)
        # The key is the same for every sampler: shards that one script makes one after another share one order.
        order = reading.generator(0).permutation(rows) if self.shuffle else np.arange(rows)
        return order[(self.shard_id + self.num_shards * np.arange(self._count(rows))) % rows]

    def _count(self, rows: int) -> int:
        return math.ceil(rows / self.num_shards)


class SubsetSampler(BuiltinSampler):
    """The rows with these numbers, in this order."""

    def __init__(self, indices: Any, num_samples: int | None = None) -> None:
        super().__init__(num_samples)
        name = type(self).__name__
        if isinstance(indices, str) or not hasattr(indices, "__iter__"):
            indices = [indices]
        self.indices = [integer(name, "an index", index, 0) for index in itertools.islice(indices, self.num_samples)]

    def _order(self, rows: int, reading: DataPass) -> Any:
        wrong = next((index for index in self.indices if index >= rows), None)
        if wrong is not None:
            raise ApiValueError(f"{type(self).__name__}: index {wrong} is not below the {rows} rows of the data set")
        return np.array(self.indices, np.int64)

    def _count(self, rows: int) -> int:
        return len(self.indices)


def select_sampler(
    name: str, sampler: Any, shuffle: Any, num_samples: int | None, num_shards: int | None, shard_id: int | None
) -> BuiltinSampler:
    """Return the sampler that the arguments of a source request.

    Raises:
        RuntimeError: arguments that exclude or need each other. TypeError, ValueError: one is of the wrong kind.
    """
    if (num_shards is None) != (shard_id is None):
        given, missing = ("num_shards", "shard_id") if shard_id is None else ("shard_id", "num_shards")
        raise ApiRuntimeError(f"{name}: {given} is given, but {missing} is not", [
            "give both: num_shards=get_group_size(), shard_id=get_rank()"])  # fmt: skip
    if num_shards is not None:
        integer(name, "num_shards", num_shards)
        if integer(name, "shard_id", shard_id, 0) >= num_shards:
            raise ApiValueError(f"{name}: shard_id {shard_id} must be below num_shards {num_shards}")
    limit = None if num_samples is None else integer(name, "num_samples", num_samples, 0) or None
    if sampler is not None:
        if shuffle is not None:
            raise ApiRuntimeError(f"{name}: sampler and shuffle are both given; the sampler says the order")
        if num_shards is not None:
            raise ApiRuntimeError(f"{name}: sampler and num_shards are both given", ["take a DistributedSampler"])
        return _given_sampler(name, sampler, limit)
    shuffled = _check_shuffle(name, True if shuffle is None else shuffle)
    if not shuffled and num_shards is None:
        return SequentialSampler(num_samples=limit)
    # Without shards it is shard 0 of 1, so that its order equals the one that shards divide.
    return DistributedSampler(num_shards or 1, shard_id or 0, shuffled, limit)


def _given_sampler(name: str, sampler: Any, limit: int | None) -> BuiltinSampler:
    if isinstance(sampler, BuiltinSampler):
        if limit is not None:
            raise ApiValueError(f"{name}: sampler and num_samples are both given", ["give num_samples to the sampler"])
        return sampler
    if isinstance(sampler, (list, tuple, np.ndarray, int)) and not isinstance(sampler, bool):
        return SubsetSampler(sampler, limit)
    if hasattr(sampler, "__iter__") and not isinstance(sampler, str):
        return IterSampler(sampler, limit)
    raise ApiTypeError(f"{name}: sampler {sampler!r} is no sampler and gives no numbers of rows")


def _check_shuffle(name: str, shuffle: Any) -> bool:
    if isinstance(shuffle, bool):
        return shuffle
    if not isinstance(shuffle, Shuffle):
        raise ApiTypeError(f"{name}: shuffle must be True, False or a Shuffle, not {shuffle!r}")
    if shuffle not in (Shuffle.GLOBAL, Shuffle.FALSE):
        raise ApiRuntimeError(f"{name}: {shuffle} is not supported", ["take Shuffle.GLOBAL or Shuffle.FALSE"])
    return shuffle is Shuffle.GLOBAL
