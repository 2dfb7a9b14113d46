"""Data sets as pipelines: a source of rows, and what is done to them one step after another, all in Python.

A row is a tuple of NumPy arrays, one per column. Every pass over a data set is an epoch; shuffling
draws a new order for each, from the seed of `set_seed`, equal on all ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mspc.api.common import seed
from mspc.api.common.tensor import Tensor
from mspc.api.dataset.rows import _WHAT, Row, as_column, next_shuffle, whole
from mspc.api.errors import ApiTypeError, ApiValueError


class Dataset:
    """Rows of columns.

    column_names: names of the columns. Subclasses give `rows(epoch)` and `count()`.
    """

    def __init__(self, column_names: Sequence[str]) -> None:
        self.column_names = list(column_names)
        self._epoch = 0

    def rows(self, epoch: int) -> Iterator[Row]:
        """The rows of one pass; `epoch` counts the passes from 0."""
        raise NotImplementedError

    def count(self, most: int | None = None) -> int:
        """Number of rows of a pass. Whoever needs to know of `most` only says so: a source may be endless."""
        return sum(1 for _ in itertools.islice(self.rows(0), most))

    # Looking at it --------------------------------------------------------------------------------

    def get_dataset_size(self) -> int:
        """Number of rows (after `batch`: of batches) of an epoch."""
        return self.count()

    def __len__(self) -> int:
        return self.count()

    def get_col_names(self) -> list[str]:
        return list(self.column_names)

    def get_batch_size(self) -> int:
        """Rows per batch, 1 before `batch`."""
        return 1

    def get_repeat_count(self) -> int:
        return 1

    def output_shapes(self) -> list[list[int]]:
        """Shapes of the columns of the first row."""
        return [list(column.shape) for column in self._first_row()]

    def output_types(self) -> list[Any]:
        """NumPy element types of the columns of the first row."""
        return [column.dtype for column in self._first_row()]

    def _first_row(self) -> Row:
        for row in self.rows(0):
            return row
        raise ApiValueError("the data set has no rows")

    # Reading --------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[list[Any]]:
        return (list(row) for row in self.create_tuple_iterator())

    def create_tuple_iterator(
        self, columns: Sequence[str] | None = None, num_epochs: int = -1, output_numpy: bool = False,
        do_copy: bool = True,
    ) -> Iterator[tuple[Any, ...]]:  # fmt: skip
        """The rows of one epoch as tuples of Tensors, or of arrays with `output_numpy`. Raises
        ValueError for an unknown column."""
        places = None if columns is None else [self.place(name) for name in columns]
        return self._read(places, output_numpy)

    def create_dict_iterator(
        self, num_epochs: int = -1, output_numpy: bool = False, do_copy: bool = True
    ) -> Iterator[dict[str, Any]]:
        """The rows of one epoch as dicts by column name."""
        for row in self._read(None, output_numpy):
            yield dict(zip(self.column_names, row, strict=True))

    def _read(self, places: list[int] | None, output_numpy: bool) -> Iterator[tuple[Any, ...]]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        for row in self.rows(epoch):
            chosen = row if places is None else tuple(row[i] for i in places)
            yield chosen if output_numpy else tuple(Tensor.from_array(column) for column in chosen)

    def place(self, column: str) -> int:
        """Index of a column. Raises ValueError for an unknown one."""
        if column not in self.column_names:
            raise ApiValueError(
                f"there is no column {column!r}; there are {', '.join(map(repr, self.column_names))}"
            )
        return self.column_names.index(column)

    # Steps ----------------------------------------------------------------------------------------

    def batch(
        self, batch_size: int, drop_remainder: bool = False, num_parallel_workers: Any = None, **kwargs: Any
    ) -> Dataset:
        """Rows stacked; the last, smaller batch is left out with `drop_remainder`."""
        if kwargs:
            raise ApiValueError(f"batch: {', '.join(kwargs)} is not supported")
        return Batched(self, whole("batch", "batch_size", batch_size), drop_remainder)

    def map(
        self, operations: Any, input_columns: Any = None, output_columns: Any = None,
        column_order: Any = None,
        num_parallel_workers: Any = None, **_: Any,
    ) -> Dataset:  # fmt: skip
        """Columns changed by one operation after another; each takes the input columns and returns
        the output columns.
        """
        return Mapped(self, operations, _names(input_columns), _names(output_columns))

    def shuffle(self, buffer_size: int) -> Dataset:
        """Rows in random order, drawn from a window of `buffer_size` rows."""
        return Shuffled(self, whole("shuffle", "buffer_size", buffer_size))

    def repeat(self, count: int | None = None) -> Dataset:
        """The rows `count` times over in one epoch."""
        if count in (None, -1):
            raise ApiValueError(
                "repeat without a count is not supported; give the number of passes to Model.train"
            )
        return Repeated(self, whole("repeat", "count", count))

    def take(self, count: int = -1) -> Dataset:
        """The first `count` rows, -1 for all."""
        return self if count == -1 else Part(self, 0, whole("take", "count", count))

    def skip(self, count: int) -> Dataset:
        """The rows after the first `count`."""
        return Part(self, whole("skip", "count", count, 0), None)

    def filter(self, predicate: Callable[..., Any], input_columns: Any = None, **_: Any) -> Dataset:
        """The rows for which the predicate of the input columns holds."""
        return Filtered(self, predicate, _names(input_columns))

    def project(self, columns: Any) -> Dataset:
        """These columns, in this order."""
        return Projected(self, _names(columns) or [])

    def rename(self, input_columns: Any, output_columns: Any) -> Dataset:
        """Columns under other names."""
        old, new = _names(input_columns) or [], _names(output_columns) or []
        if len(old) != len(new):
            raise ApiValueError(f"rename: {len(old)} input columns, {len(new)} output columns")
        renamed = Projected(self, self.column_names)
        for a, b in zip(old, new, strict=True):
            renamed.column_names[self.place(a)] = b
        return renamed

    def concat(self, datasets: Any) -> Dataset:
        """The rows of this data set, then those of others with the same columns."""
        return Concatenated([self, *(datasets if isinstance(datasets, (list, tuple)) else [datasets])])

    def __add__(self, other: Dataset) -> Dataset:
        return self.concat(other)


class _Step(Dataset):
    """What is done to the rows of `source`."""

    def __init__(self, source: Dataset, column_names: Sequence[str] | None = None) -> None:
        super().__init__(source.column_names if column_names is None else column_names)
        self.source = source

    def count(self, most: int | None = None) -> int:
        return self.source.count(most)

    def get_batch_size(self) -> int:
        return self.source.get_batch_size()

    def get_repeat_count(self) -> int:
        return self.source.get_repeat_count()


class Batched(_Step):
    """Rows stacked."""

    def __init__(self, source: Dataset, size: int, drop_remainder: bool) -> None:
        super().__init__(source)
        self.size = size
        self.drop_remainder = drop_remainder

    def rows(self, epoch: int) -> Iterator[Row]:
        waiting: list[Row] = []
        for row in self.source.rows(epoch):
            waiting.append(row)
            if len(waiting) == self.size:
                yield self._stacked(waiting)
                waiting = []
        if waiting and not self.drop_remainder:
            yield self._stacked(waiting)

    def _stacked(self, rows: list[Row]) -> Row:
        columns: list[np.ndarray] = []
        for name, values in zip(self.column_names, zip(*rows, strict=True), strict=True):
            shapes = {value.shape for value in values}
            if len(shapes) > 1:
                listed = ", ".join(map(str, sorted(shapes)))
                raise ApiValueError(f"batch: rows of column {name!r} have different shapes: {listed}")
            columns.append(np.stack(values))
        return tuple(columns)

    def count(self, most: int | None = None) -> int:
        rows = self.source.count(None if most is None else most * self.size)
        return rows // self.size if self.drop_remainder else -(-rows // self.size)

    def get_batch_size(self) -> int:
        return self.size


class Mapped(_Step):
    """Columns changed."""

    def __init__(
        self, source: Dataset, operations: Any, inputs: list[str] | None, outputs: list[str] | None
    ) -> None:
        self.operations = list(operations) if isinstance(operations, (list, tuple)) else [operations]
        for operation in self.operations:
            if not callable(operation):
                raise ApiTypeError(f"map: {operation!r} is no operation")
        inputs = inputs or source.column_names[:1]
        outputs = outputs or inputs
        self.taken = [source.place(name) for name in inputs]
        names: list[str] = []
        for i, name in enumerate(source.column_names):
            names += outputs if i == self.taken[0] else [] if i in self.taken else [name]
        super().__init__(source, names)
        self.outputs = outputs

    def rows(self, epoch: int) -> Iterator[Row]:
        for row in self.source.rows(epoch):
            values: Any = tuple(row[i] for i in self.taken)
            for operation in self.operations:
                values = operation(*values)
                values = values if isinstance(values, tuple) else (values,)
            if len(values) != len(self.outputs):
                raise ApiValueError(
                    f"map: the operations return {len(values)} columns, not {', '.join(self.outputs)}"
                )
            made: list[np.ndarray] = []
            for i, column in enumerate(row):
                made += (
                    [as_column(v) for v in values]
                    if i == self.taken[0]
                    else []
                    if i in self.taken
                    else [column]
                )
            yield tuple(made)


class Shuffled(_Step):
    """Rows in random order."""

    def __init__(self, source: Dataset, window: int) -> None:
        super().__init__(source)
        self.window = window
        self.key = next_shuffle()

    def rows(self, epoch: int) -> Iterator[Row]:
        generator = seed.generator(_WHAT, self.key, epoch)
        window: list[Row] = []
        for row in self.source.rows(epoch):
            window.append(row)
            if len(window) > self.window:
                yield _drawn(window, generator)
        while window:
            yield _drawn(window, generator)


def _drawn(window: list[Row], generator: Any) -> Row:
    place = int(generator.integers(len(window)))
    window[place], window[-1] = window[-1], window[place]
    return window.pop()


class Repeated(_Step):
    """Rows several times over."""

    def __init__(self, source: Dataset, times: int) -> None:
        super().__init__(source)
        self.times = times

    def rows(self, epoch: int) -> Iterator[Row]:
        for i in range(self.times):
            yield from self.source.rows(epoch * self.times + i)

    def count(self, most: int | None = None) -> int:
        return self.source.count(most) * self.times

    def get_repeat_count(self) -> int:
        return self.times * self.source.get_repeat_count()


class Part(_Step):
    """Rows first to last, without last; None for all that follow."""

    def __init__(self, source: Dataset, first: int, last: int | None) -> None:
        super().__init__(source)
        self.first = first
        self.last = last

    def rows(self, epoch: int) -> Iterator[Row]:
        yield from itertools.islice(self.source.rows(epoch), self.first, self.last)

    def count(self, most: int | None = None) -> int:
        ends = [end for end in (self.last, None if most is None else self.first + most) if end is not None]
        rows = self.source.count(min(ends, default=None))
        return max(0, min([rows, *ends]) - self.first)


class Filtered(_Step):
    """Rows for which a predicate holds."""

    def __init__(self, source: Dataset, predicate: Callable[..., Any], columns: list[str] | None) -> None:
        super().__init__(source)
        self.predicate = predicate
        self.taken = [source.place(name) for name in columns or source.column_names]

    def rows(self, epoch: int) -> Iterator[Row]:
        for row in self.source.rows(epoch):
            if self.predicate(*(row[i] for i in self.taken)):
                yield row

    def count(self, most: int | None = None) -> int:
        return sum(1 for _ in itertools.islice(self.rows(0), most))


class Projected(_Step):
    """Some columns."""

    def __init__(self, source: Dataset, columns: list[str]) -> None:
        self.taken = [source.place(name) for name in columns]
        super().__init__(source, columns)

    def rows(self, epoch: int) -> Iterator[Row]:
        for row in self.source.rows(epoch):
            yield tuple(row[i] for i in self.taken)


class Concatenated(Dataset):
    """The rows of several data sets."""

    def __init__(self, sources: list[Dataset]) -> None:
        super().__init__(sources[0].column_names)
        self.sources = sources
        for source in sources[1:]:
            if source.column_names != self.column_names:
                raise ApiValueError(f"concat: columns {source.column_names} are not {self.column_names}")

    def rows(self, epoch: int) -> Iterator[Row]:
        for source in self.sources:
            yield from source.rows(epoch)

    def count(self, most: int | None = None) -> int:
        found = 0
        for source in self.sources:
            if most is not None and found >= most:
                break
            found += source.count(None if most is None else most - found)
        return found

    def get_batch_size(self) -> int:
        return self.sources[0].get_batch_size()


def _names(columns: Any) -> list[str] | None:
    if columns is None:
        return None
    return [columns] if isinstance(columns, str) else list(columns)
