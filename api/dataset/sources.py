"""Where rows come from: Python generators and arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mspc.api.dataset.pipeline import Dataset
from mspc.api.dataset.read_once import KEPT, ReadOnce, is_read_once
from mspc.api.dataset.rows import Row, as_column, next_shuffle, shuffled_order, whole
from mspc.api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.ir.types import dtype_of


class IndexedDataset(Dataset):
    """Rows that can be reached by number: in order or shuffled, all or one shard's.

    Shard s of n holds rows s, s + n, s + 2 n, ...; the last ones are filled up from the first, so that
    all shards have the same number of rows.
    """

    def __init__(
        self, column_names: Sequence[str], shuffle: bool, num_samples: int | None, num_shards: int | None,
        shard_id: int | None, sampler: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(column_names)
        if (num_shards is None) != (shard_id is None):
            raise ApiValueError("num_shards and shard_id must be given together")
        self.shards = 1 if num_shards is None else whole("data set", "num_shards", num_shards)
        self.shard = 0 if shard_id is None else whole("data set", "shard_id", shard_id, 0)
        if self.shard >= self.shards:
            raise ApiValueError(f"shard_id {shard_id} must be below num_shards {num_shards}")
        self.limit = None if num_samples is None else whole("data set", "num_samples", num_samples)
        self.sampler = sampler
        self.key = next_shuffle() if shuffle and sampler is None else 0

    def length(self) -> int:
        """Number of rows of the source."""
        raise NotImplementedError

    def row(self, index: int) -> Row:
        raise NotImplementedError

    def count(self, most: int | None = None) -> int:
        if self.sampler is not None:
            return sum(1 for _ in itertools.islice(self.sampler, most))
        rows = math.ceil(self.length() / self.shards)
        return rows if self.limit is None else min(rows, self.limit)

    def rows(self, epoch: int) -> Iterator[Row]:
        if self.sampler is not None:
            for index in self.sampler:
                yield self.row(int(index))
            return
        size = self.length()
        order = shuffled_order(size, self.key, epoch) if self.key else range(size)
        for i in range(self.count()):
            yield self.row(int(order[(self.shard + i * self.shards) % size]))


class GeneratorDataset(Dataset):
    """Rows from Python. A source that cannot tell its length is counted by a pass over it, whose rows are kept for the
    first reader as long as they take at most `KEPT` bytes, so that it is not run once more.

    Args:
        source: a function that returns an iterator (called anew for every epoch), an iterable, or an object with
            `__getitem__` and `__len__`, which is shuffled unless `shuffle` is False. An iterator that cannot be
            started again, such as a generator object, is good for one epoch.
        column_names: names of the columns, or one string. column_types: element types to convert to.
        num_samples: at most so many rows. num_shards, shard_id: every num_shards-th row from shard_id on.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind. RuntimeError, in an epoch: the source gives no rows any
            more.
    """

    def __init__(
        self, source: Any, column_names: Any = None, column_types: Any = None, schema: Any = None,
        num_samples: int | None = None, num_parallel_workers: int = 1, shuffle: bool | None = None,
        sampler: Any = None, num_shards: int | None = None, shard_id: int | None = None, **_: Any,
    ) -> None:  # fmt: skip
        if column_names is None:
            raise ApiValueError("GeneratorDataset: column_names is missing")
        names = [column_names] if isinstance(column_names, str) else list(column_names)
        super().__init__(names)
        self._types = None if column_types is None else [dtype_of(t).numpy for t in column_types]
        if self._types is not None and len(self._types) != len(names):
            raise ApiValueError(f"GeneratorDataset: {len(self._types)} column_types for {len(names)} columns")
        random_access = hasattr(source, "__getitem__") and hasattr(source, "__len__")
        if not (
            random_access or callable(source) or hasattr(source, "__iter__") or hasattr(source, "__next__")
        ):
            raise ApiTypeError(f"GeneratorDataset: source {type(source).__name__} gives no rows")
        self.source = source
        self._indexed: IndexedDataset | None = None
        if random_access:
            drawn = shuffle is not False and sampler is None
            self._indexed = _Items(
                source, self._checked, names, drawn, num_samples, num_shards, shard_id, sampler
            )
        elif shuffle or sampler is not None:
            raise ApiValueError(
                "GeneratorDataset: only a source with __getitem__ and __len__ can be shuffled or sampled"
            )
        self._limit = num_samples
        self._shards = (num_shards or 1, shard_id or 0)
        self._count: int | None = None
        self._kept: Iterator[Row] | None = None
        self._gave_rows = False
        self._once = ReadOnce(self._pass(), type(source).__name__) if is_read_once(source) else None

    def rows(self, epoch: int) -> Iterator[Row]:
        if self._indexed is not None:
            return self._indexed.rows(epoch)
        if self._once is not None:
            return self._once.epoch(epoch)
        kept, self._kept = self._kept, None
        return self._pass() if kept is None else kept

    def _pass(self) -> Iterator[Row]:
        shards, shard = self._shards
        made = given = 0
        if self._limit == 0:
            return
        for i, values in enumerate(_values(self.source)):
            given += 1
            self._gave_rows = True
            if i % shards == shard:
                made += 1
                yield self._checked(values)
            if made == self._limit:
                return
        if self._gave_rows and not given:
            raise ApiRuntimeError(
                "GeneratorDataset: the source gave rows in an earlier epoch and gives none in this one",
                notes=["give a function that returns a new iterator: it is called for every epoch"],
            )

    def count(self, most: int | None = None) -> int:
        if self._indexed is not None:
            return self._indexed.count(most)
        if self._once is not None:
            return sum(1 for _ in itertools.islice(self._once.epoch(0), most))
        if self._count is not None:
            return self._count
        count, whole_pass = self._counted(most)
        if whole_pass:
            self._count = count
        return count

    def _counted(self, most: int | None) -> tuple[int, bool]:
        """(number of rows, at most `most`; whether these are all). The rows are kept unless they are too large."""
        kept: list[Row] | None = []
        count = nbytes = 0
        made = self._pass()
        for row in itertools.islice(made, most):
            count += 1
            nbytes += sum(column.nbytes for column in row)
            if nbytes > KEPT:
                kept = None
            if kept is not None:
                kept.append(row)
        whole_pass = most is None or count < most
        self._kept = None if kept is None else itertools.chain(kept, () if whole_pass else made)
        return count, whole_pass

    def _checked(self, values: Any) -> Row:
        columns = values if isinstance(values, (tuple, list)) else (values,)
        if len(columns) != len(self.column_names):
            raise ApiValueError(
                f"GeneratorDataset: a row has {len(columns)} columns, "
                f"column_names has {len(self.column_names)}"
            )
        row = tuple(as_column(column) for column in columns)
        if self._types is None:
            return row
        return tuple(column.astype(kind) for column, kind in zip(row, self._types, strict=True))


def _values(source: Any) -> Iterator[Any]:
    """What the source gives from now on."""
    if callable(source):
        return iter(source())
    if hasattr(source, "__iter__"):
        return iter(source)
    return map(lambda _: next(source), itertools.count())  # ends where the source does


class _Items(IndexedDataset):
    """The rows of an object with `__getitem__`."""

    def __init__(self, source: Any, checked: Callable[[Any], Row], *settings: Any) -> None:
        super().__init__(*settings)
        self.source = source
        self.checked = checked

    def length(self) -> int:
        return len(self.source)

    def row(self, index: int) -> Row:
        return self.checked(self.source[index])


class NumpySlicesDataset(IndexedDataset):
    """Rows of arrays: row i holds the i-th element of each.

    Args: data: an array, a tuple or list of arrays of one length, or a dict by column name.
    """

    def __init__(
        self, data: Any, column_names: Any = None, num_samples: int | None = None,
        num_parallel_workers: int = 1,
        shuffle: bool | None = None, sampler: Any = None, num_shards: int | None = None,
        shard_id: int | None = None,
    ) -> None:  # fmt: skip
        if isinstance(data, dict):
            names, columns = list(data), list(data.values())
        else:
            columns = list(data) if isinstance(data, tuple) else [data]
            names = [f"column_{i}" for i in range(len(columns))]
        if column_names is not None:
            names = [column_names] if isinstance(column_names, str) else list(column_names)
        self.columns = [as_column(column) for column in columns]
        if len(names) != len(self.columns):
            raise ApiValueError(f"NumpySlicesDataset: {len(self.columns)} columns, {len(names)} names")
        if len({column.shape[:1] for column in self.columns}) != 1 or not self.columns[0].ndim:
            raise ApiValueError("NumpySlicesDataset: the columns have different lengths")
        super().__init__(names, shuffle is not False, num_samples, num_shards, shard_id, sampler)

    def length(self) -> int:
        return len(self.columns[0])

    def row(self, index: int) -> Row:
        return tuple(column[index] for column in self.columns)
