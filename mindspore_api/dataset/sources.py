"""Data sets with rows from Python generators and arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import dtype_of
from mspc.mindspore_api.dataset.nodes.block import Block
from mspc.mindspore_api.dataset.nodes.pipeline_node import Arrays, Indexed, PipelineNode, RowFault
from mspc.mindspore_api.dataset.origins import MappableDataset, UnionBaseDataset
from mspc.mindspore_api.dataset.pipeline_random import DataPass
from mspc.mindspore_api.dataset.row_values import Row, as_column, flag, names_of, workers_of
from mspc.mindspore_api.dataset.samplers import select_sampler
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError, caller_location


class GeneratorDataset(MappableDataset, UnionBaseDataset):
    """Rows from Python. If a source does not know its length, a pass over it counts the rows. These rows are stored for
    the first reader if they take at most `LIMIT` bytes, so that the source does not run again.

    Args:
        source: a function that returns an iterator (called anew for every epoch), an iterable, or an object with
            `__getitem__` and `__len__`, which is shuffled unless `shuffle` is False. An iterator that cannot be started
            again, such as a generator object, serves one epoch.
        column_names: names of the columns, or one string. column_types: element types to convert to.
        num_samples: maximum number of rows. num_shards, shard_id: every num_shards-th row from shard_id on.
        num_parallel_workers, python_multiprocessing: checked, and change nothing: one thread reads the rows.

    Raises:
        TypeError, ValueError, RuntimeError: an argument is of the wrong kind, or excludes another. RuntimeError, in an
            epoch: the source yields no rows any more.
    """

    def __init__(
        self, source: Any, column_names: Any = None, column_types: Any = None, schema: Any = None,
        num_samples: int | None = None, num_parallel_workers: int = 1, shuffle: Any = None,
        sampler: Any = None, num_shards: int | None = None, shard_id: int | None = None,
        python_multiprocessing: bool = True, max_rowsize: Any = None, batch_sampler: Any = None,
        collate_fn: Any = None,
    ) -> None:  # fmt: skip
        name = "GeneratorDataset"
        if column_names is None:
            raise ApiValueError("GeneratorDataset: column_names is missing")
        names = names_of(name, "column_names", column_names)
        if schema is not None:
            raise ApiValueError("GeneratorDataset: schema is not supported")
        if batch_sampler is not None or collate_fn is not None:
            given = "collate_fn" if batch_sampler is None else "batch_sampler"
            raise ApiValueError(f"GeneratorDataset: {given} is not supported", ["batch() takes a per_batch_map"])
        types = None if column_types is None else [dtype_of(t).numpy for t in column_types]
        if types is not None and len(types) != len(names):
            raise ApiValueError(f"GeneratorDataset: {len(types)} column_types for {len(names)} columns", code="E1101")
        checked = _Checked(names, types)
        fault = RowFault(name, caller_location())
        flag(name, "python_multiprocessing", python_multiprocessing)
        workers_of(name, num_parallel_workers, 1)
        if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
            chosen = select_sampler(name, sampler, shuffle, num_samples, num_shards, shard_id)
            super().__init__(_Items(source, checked, chosen, fault))
            return
        if not (callable(source) or hasattr(source, "__iter__") or hasattr(source, "__next__")):
            raise ApiTypeError(f"GeneratorDataset: source {type(source).__name__} gives no rows")
        if shuffle or sampler is not None:
            raise ApiValueError(
                "GeneratorDataset: only a source with __getitem__ and __len__ can be shuffled or sampled"
            )
        select_sampler(name, None, False, num_samples, num_shards, shard_id)
        super().__init__(_Stream(source, checked, num_samples or None, (num_shards or 1, shard_id or 0), fault))


class _Checked:
    """Converts the values from a source to rows."""

    def __init__(self, names: Sequence[str], types: Sequence[Any] | None) -> None:
        self.names = names
        self.types = types

    def __call__(self, values: Any) -> Row:
        columns = values if isinstance(values, (tuple, list)) else (values,)
        if len(columns) != len(self.names):
            raise ApiValueError(
                f"GeneratorDataset: a row has {len(columns)} columns, column_names has {len(self.names)}", code="E1101"
            )
        row = tuple(as_column(column) for column in columns)
        if self.types is None:
            return row
        return tuple(column.astype(kind) for column, kind in zip(row, self.types, strict=True))


class _Items(Indexed):
    """Rows of an object with `__getitem__`."""

    is_own = False

    def __init__(self, source: Any, checked: _Checked, sampler: Any, fault: RowFault) -> None:
        super().__init__(checked.names, sampler, 1)
        self.items = source
        self.checked = checked
        self.fault = fault

    def length(self) -> int:
        return len(self.items)

    def row(self, number: int) -> Row:
        """Return a row. Raise MspcError for any error of the object."""
        try:
            return self.checked(self.items[number])
        except MspcError:
            raise
        except Exception as error:
            raise self.fault.error(error, f"{type(self.items).__name__}.__getitem__", number) from error

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        numbers = (number for piece in self.numbers(reading) for number in piece.tolist())
        for place, number in enumerate(numbers):
            yield Block.of_row(self.row(number), None, self.sampler.position(place))


class _Stream(PipelineNode):
    """Rows of a function or an iterable. limit: maximum number of rows. shards: (number of shards, index of this
    one)."""

    is_own = False

    def __init__(
        self, source: Any, checked: _Checked, limit: int | None, shards: tuple[int, int], fault: RowFault
    ) -> None:
        super().__init__(checked.names)
        self.source = source
        self.checked = checked
        self.limit = limit
        self.shards = shards
        self.fault = fault
        self.rows: int | None = None
        self.stored: Iterator[Row] | None = None
        self.gave_rows = False
        self.once = ReadOnce(self._pass(), type(source).__name__) if is_read_once(source) else None

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        if self.once is not None:
            rows = self.once.epoch(reading.epoch)
        else:
            rows, self.stored = self._pass() if self.stored is None else self.stored, None
        shards, shard = self.shards
        return (Block.of_row(row, None, shard + shards * place) for place, row in enumerate(rows))

    def _pass(self) -> Iterator[Row]:
        shards, shard = self.shards
        made = given = 0
        for i, values in enumerate(self._values()):
            given += 1
            self.gave_rows = True
            if i % shards == shard:
                made += 1
                yield self.checked(values)
            if made == self.limit:
                return
        if self.gave_rows and not given:
            raise ApiRuntimeError(
                "GeneratorDataset: the source gave rows in an earlier epoch and gives none in this one",
                notes=["give a function that returns a new iterator: it is called for every epoch"],
            )

    def _values(self) -> Iterator[Any]:
        """Yield the remaining values of the source. Raise MspcError for any error of the source."""
        given = 0
        try:
            values = _started(self.source)
            while True:
                try:
                    value = next(values)
                except StopIteration:
                    return
                yield value
                given += 1
        except MspcError:
            raise
        except Exception as error:
            raise self.fault.error(error, _shown(self.source), given) from error

    def count(self, most: int | None = None) -> int:
        if self.once is not None:
            return sum(1 for _ in itertools.islice(self.once.epoch(0), most))
        if self.rows is not None:
            return self.rows
        count, is_all = self._counted(most)
        if is_all:
            self.rows = count
        return count

    def _counted(self, most: int | None) -> tuple[int, bool]:
        """Return (number of rows, at most `most`; whether these are all). The rows are stored unless they are too
        large."""
        stored: list[Row] | None = []
        count = nbytes = 0
        made = self._pass()
        for row in itertools.islice(made, most):
            count += 1
            nbytes += sum(column.nbytes for column in row)
            if nbytes > LIMIT:
                stored = None
            if stored is not None:
                stored.append(row)
        is_all = most is None or count < most
        self.stored = None if stored is None else itertools.chain(stored, () if is_all else made)
        return count, is_all


def _started(source: Any) -> Iterator[Any]:
    if callable(source):
        return iter(source())
    if hasattr(source, "__iter__"):
        return iter(source)
    return map(lambda _: next(source), itertools.count())  # ends when the source ends


def _shown(source: Any) -> str:
    return "the source" if type(source).__name__ == "function" else f"the source {type(source).__name__}"


class NumpySlicesDataset(MappableDataset, UnionBaseDataset):
    """Rows of arrays: row i holds the i-th element of each array.

    Args: data: an array or list, a tuple of arrays of one length, or a dict by column name.
    """

    def __init__(
        self, data: Any, column_names: Any = None, num_samples: int | None = None, num_parallel_workers: int = 1,
        shuffle: Any = None, sampler: Any = None, num_shards: int | None = None,
        shard_id: int | None = None,
    ) -> None:  # fmt: skip
        name = "NumpySlicesDataset"
        if isinstance(data, dict):
            names, columns = list(data), list(data.values())
        else:
            columns = list(data) if isinstance(data, tuple) else [data]
            names = [f"column_{i}" for i in range(len(columns))]
        if column_names is not None:
            names = names_of(name, "column_names", column_names)
        arrays = [as_column(column) for column in columns]
        if len(names) != len(arrays):
            raise ApiValueError(f"NumpySlicesDataset: {len(arrays)} columns, {len(names)} names", code="E1101")
        if not arrays or len({array.shape[:1] for array in arrays}) != 1 or not arrays[0].ndim:
            raise ApiValueError("NumpySlicesDataset: the columns have different lengths", code="E1101")
        workers_of(name, num_parallel_workers, 1)
        chosen = select_sampler(name, sampler, shuffle, num_samples, num_shards, shard_id)
        super().__init__(Arrays(names, arrays, chosen))


LIMIT = 256 << 20
"""Maximum number of bytes of rows that are stored after counting, for the first reader."""


def is_read_once(source: Any) -> bool:
    """Return whether a source of rows is an iterator that cannot be started again. An iterator of a user's class, with
    `__iter__` in Python, may be restartable."""
    if not hasattr(source, "__next__"):
        return False
    return not isinstance(getattr(type(source), "__iter__", None), FunctionType)


class ReadOnce:
    """The only epoch of an iterator that cannot be started again. The rows read from it are stored as long as they take
    at most `LIMIT` bytes, so that the epoch can be counted or inspected before it is read.

    Args: rows: the rows of the iterator. source: its name in messages.
    """

    def __init__(self, rows: Iterator[Row], source: str) -> None:
        self._rows = rows
        self._source = source
        self._epoch: int | None = None
        self._stored: list[Row] | None = []
        self._made = 0
        self._nbytes = 0

    def epoch(self, number: int) -> Iterator[Row]:
        """Yield the rows of an epoch from its beginning. Raise RuntimeError for a second epoch."""
        if self._epoch is None:
            self._epoch = number
        if number != self._epoch:
            raise self._error("cannot be read for a second epoch")
        return self._from_begin()

    def _from_begin(self) -> Iterator[Row]:
        at = 0
        while True:
            if at == self._made:
                row = next(self._rows, None)
                if row is None:
                    return
                self._keep(row)
            elif self._stored is None:
                raise self._error(f"holds more than {LIMIT >> 20} MiB, so it cannot be counted and then read")
            else:
                row = self._stored[at]
            at += 1
            yield row

    def _keep(self, row: Row) -> None:
        self._made += 1
        self._nbytes += sum(column.nbytes for column in row)
        if self._nbytes > LIMIT:
            self._stored = None
        if self._stored is not None:
            self._stored.append(row)

    def _error(self, what: str) -> ApiRuntimeError:
        return ApiRuntimeError(
            f"GeneratorDataset: the source is a {self._source} object, which gives its rows once; it {what}",
            notes=["give a function that returns a new iterator: it is called for every epoch"],
        )
