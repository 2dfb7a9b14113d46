"""Data sets of scripts. Each step adds a node to the pipeline.

Every pass over a data set is an epoch. Random operations are sampled anew for each epoch from the seed of `set_seed`,
with equal results on all ranks and for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.dataset import config
from mspc.mindspore_api.dataset.nodes.block import Block
from mspc.mindspore_api.dataset.nodes.mapping import BatchChange, Batched
from mspc.mindspore_api.dataset.nodes.pipeline_node import PipelineNode, RowFault, read
from mspc.mindspore_api.dataset.nodes.selection import (
    Concatenated,
    Filtered,
    Projected,
    Repeated,
    RowRange,
    Shuffled,
    Zipped,
)
from mspc.mindspore_api.dataset.pipeline_random import DataPass
from mspc.mindspore_api.dataset.row_values import (
    Row,
    common_shape,
    distinct,
    flag,
    given,
    integer,
    names_of,
    next_shuffle,
    workers_of,
)
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError, caller_location

_MAP_OPTIONS = ("python_multiprocessing", "max_rowsize", "cache", "callbacks", "offload")


class Dataset:
    """Rows of columns; a row is a tuple of arrays. node: yields the rows."""

    def __init__(self, node: PipelineNode) -> None:
        self._node = node
        self._epoch = 0
        self._first_row = 0
        self.asked_step = 0
        """The step set by `set_init_step`, until reading continues from it."""

    # Looking at it --------------------------------------------------------------------------------

    @property
    def column_names(self) -> list[str]:
        return list(self._node.columns)

    def get_col_names(self) -> list[str]:
        return list(self._node.columns)

    def get_dataset_size(self) -> int:
        """Return the number of rows (after `batch`: of batches) of an epoch. Raise ValueError for an endless data
        set."""
        return self._node.count()

    def __len__(self) -> int:
        return self._node.count()

    def get_batch_size(self) -> int:
        """Return the number of rows per batch, 1 before `batch`."""
        return self._node.batch_size

    def get_repeat_count(self) -> int:
        return self._node.repeat_count

    def num_classes(self) -> int | None:
        """Return the number of classes of the labels, or None if it is unknown."""
        return self._node.classes

    def get_class_indexing(self) -> dict[str, Any]:
        """Return class numbers by class name; empty if classes have no names."""
        return dict(self._node.class_indexing)

    def output_shapes(self, estimate: bool = False) -> list[list[int | None]]:
        """Return the shapes of the columns of the first row; with `estimate` those of all rows, with None for sizes
        that differ.

        Raises:
            ValueError: rows of a column differ in their number of dimensions.
        """
        if not estimate:
            return [list(column[0].shape) for column in self._first().columns]
        found: list[set[tuple[int, ...]]] = [set() for _ in self._node.columns]
        for block in self._node.blocks(DataPass.begin(0)):
            for shapes, column in zip(found, block.columns, strict=True):
                shapes.update(row.shape for row in column)
        return [common_shape(name, shapes) for name, shapes in zip(self._node.columns, found, strict=True)]

    def output_types(self) -> list[Any]:
        """Return the NumPy element types of the columns of the first row."""
        return [column[0].dtype for column in self._first().columns]

    def _first(self) -> Block:
        for block in self._node.blocks(DataPass.begin(0)):
            return block
        raise ApiValueError("the data set has no rows")

    # Reading --------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        return self.create_tuple_iterator(num_epochs=1)

    def create_tuple_iterator(
        self, columns: Any = None, num_epochs: int = -1, output_numpy: bool = False, do_copy: bool = False
    ) -> DatasetIterator:
        """Return an iterator over the rows of an epoch as lists of Tensors, or of arrays with `output_numpy`. Another
        loop over it yields the next epoch, `num_epochs` times in all, endlessly for -1. Raise ValueError for an unknown
        column."""
        names = None if columns is None else names_of("create_tuple_iterator", "columns", columns)
        places = None if names is None else [self._node.place(name) for name in names]
        return DatasetIterator(self._node, self._next_epoch, num_epochs, output_numpy, places=places)

    def create_dict_iterator(
        self, num_epochs: int = -1, output_numpy: bool = False, do_copy: bool = False
    ) -> DatasetIterator:
        """Return the same iterator with rows as dicts by column name."""
        return DatasetIterator(self._node, self._next_epoch, num_epochs, output_numpy, names=self.column_names)

    def _next_epoch(self) -> tuple[int, int]:
        """Return (number of the epoch to read next, its first row), and advance both."""
        found = self._epoch, self._first_row
        self._epoch, self._first_row, self.asked_step = self._epoch + 1, 0, 0
        return found

    def peek(self) -> Any:
        """Return the next row without consuming it, or None if there is none."""
        place = (self._epoch, self._first_row)
        rows = DatasetIterator(self._node, lambda: place, 1, False)
        try:
            return next(rows, None)
        finally:
            rows.release()

    def set_init_step(self, init_step: int) -> None:
        """Continue reading after `init_step` rows of epochs, as a resumed run requests. Random operations are sampled
        as if the rows before had been read."""
        steps = integer("set_init_step", "init_step", init_step, 0)
        self.asked_step = steps
        self._epoch, self._first_row = divmod(steps, self.get_dataset_size()) if steps else (0, 0)

    def get_init_step(self) -> int:
        """Return the number of rows of all epochs read so far."""
        return self._epoch * self.get_dataset_size() + self._first_row if self._epoch else self._first_row

    # Steps ----------------------------------------------------------------------------------------

    def batch(
        self, batch_size: Any, drop_remainder: bool = False, num_parallel_workers: int | None = None,
        per_batch_map: Callable[..., Any] | None = None, input_columns: Any = None, output_columns: Any = None,
        python_multiprocessing: bool = False, max_rowsize: Any = None,
    ) -> Dataset:  # fmt: skip
        """Stack rows; `drop_remainder` drops the last, smaller batch.

        Args:
            batch_size: rows of a batch, or a function of BatchInfo that returns them.
            per_batch_map: a function of lists of arrays, one list per input column (all columns without
                `input_columns`), and of a BatchInfo. It returns such lists for the output columns.
        """
        change = None
        if per_batch_map is not None:
            inputs = self.column_names if input_columns is None else names_of("batch", "input_columns", input_columns)
            outputs = inputs if output_columns is None else names_of("batch", "output_columns", output_columns)
            change = BatchChange(_function("batch", "per_batch_map", per_batch_map), inputs, outputs)
        elif input_columns is not None or output_columns is not None:
            raise ApiValueError("batch: input_columns and output_columns need a per_batch_map", code="E1101")
        workers_of("batch", num_parallel_workers, 1)
        size = batch_size if callable(batch_size) else integer("batch", "batch_size", batch_size)
        fault = RowFault("batch", caller_location())
        return Dataset(Batched(self._node, size, flag("batch", "drop_remainder", drop_remainder), fault, change))

    def map(
        self, operations: Any, input_columns: Any = None, output_columns: Any = None, column_order: Any = None,
        num_parallel_workers: int | None = None, **options: Any,
    ) -> Dataset:  # fmt: skip
        """Change columns by operations in sequence; each takes the input columns and returns the output columns.

        mspc's own operations run over blocks of rows in `num_parallel_workers` threads, user functions in the thread
        that reads. With `python_multiprocessing=True` NumPy's and Python's generators are seeded for every row;
        otherwise they have the state that the script left.
        """
        from mspc.mindspore_api.dataset.nodes.mapping import Change, Mapped
        from mspc.mindspore_api.dataset.operation import flattened  # late: only `map` needs it

        listed = list(operations) if isinstance(operations, (list, tuple)) else [operations]
        for option in options:
            if option not in _MAP_OPTIONS:
                raise ApiTypeError(f"map has no argument {option!r}")
        if options.get("callbacks"):
            raise ApiValueError("map: callbacks are not supported")
        found = flattened([_function("map", "operations", operation) for operation in listed])
        if not found:
            raise ApiValueError("map: operations is empty")
        inputs = self.column_names[:1] if input_columns is None else names_of("map", "input_columns", input_columns)
        outputs = inputs if output_columns is None else names_of("map", "output_columns", output_columns)
        seeds = flag("map", "python_multiprocessing", options.get("python_multiprocessing") or False)
        workers = workers_of("map", num_parallel_workers, config.get_num_parallel_workers())
        change = Change(found, outputs, next_shuffle(), RowFault("map", caller_location()), seeds)
        mapped = Dataset(Mapped(self._node, change, inputs, workers))
        distinct("map", "columns", mapped.column_names)
        return mapped if column_order is None else mapped.project(column_order)

    def filter(
        self, predicate: Callable[..., Any], input_columns: Any = None, num_parallel_workers: int | None = None
    ) -> Dataset:
        """Select the rows for which the predicate of the input columns is true."""
        names = self.column_names if input_columns is None else names_of("filter", "input_columns", input_columns)
        workers_of("filter", num_parallel_workers, 1)
        fault = RowFault("filter", caller_location())
        return Dataset(Filtered(self._node, _function("filter", "predicate", predicate), names, fault))

    def shuffle(self, buffer_size: int) -> Dataset:
        """Put rows in random order, sampled from a window of `buffer_size` rows."""
        return Dataset(Shuffled(self._node, integer("shuffle", "buffer_size", buffer_size), next_shuffle()))

    def repeat(self, count: int | None = None) -> Dataset:
        """Repeat the rows `count` times in one epoch; endlessly without a count, or with -1."""
        times = None if count is None or count == -1 else integer("repeat", "count", count, most=2**31 - 1)
        return Dataset(Repeated(self._node, times))

    def take(self, count: int = -1) -> Dataset:
        """Select the first `count` rows, -1 for all."""
        return self if count == -1 else Dataset(RowRange(self._node, 0, integer("take", "count", count)))

    def skip(self, count: int) -> Dataset:
        """Skip the first `count` rows."""
        return Dataset(RowRange(self._node, integer("skip", "count", count, 0), None))

    def split(self, sizes: Sequence[Any], randomize: bool = True) -> tuple[Dataset, ...]:
        """Return data sets with these numbers of rows, or these shares of all rows. With `randomize` the order is
        random, but the same in every epoch. Raise ValueError or RuntimeError for sizes that do not fit."""
        from mspc.mindspore_api.dataset.pipeline import sizes_of_splits  # late: few scripts split

        key = next_shuffle() if flag("split", "randomize", randomize) else 0
        rows = self.get_dataset_size()
        node = Shuffled(self._node, rows, key, fixed=True) if key else self._node
        found: list[Dataset] = []
        first = 0
        for size in sizes_of_splits(sizes, rows):
            found.append(Dataset(RowRange(node, first, first + size)))
            first += size
        return tuple(found)

    def project(self, columns: Any) -> Dataset:
        """Select these columns, in this order."""
        return Dataset(Projected(self._node, names_of("project", "columns", columns)))

    def rename(self, input_columns: Any, output_columns: Any) -> Dataset:
        """Rename columns."""
        old = names_of("rename", "input_columns", input_columns)
        new = names_of("rename", "output_columns", output_columns)
        if len(old) != len(new):
            raise ApiValueError(f"rename: {len(old)} input columns, {len(new)} output columns", code="E1101")
        names = self.column_names
        for before, after in zip(old, new, strict=True):
            names[self._node.place(before)] = after
        return Dataset(Projected(self._node, self.column_names, distinct("rename", "columns", names)))

    def concat(self, datasets: Any) -> Dataset:
        """Append the rows of other data sets with the same columns."""
        others = datasets if isinstance(datasets, (list, tuple)) else [datasets]
        return Dataset(Concatenated([stage_of("concat", other) for other in (self, *others)]))

    def __add__(self, other: Dataset) -> Dataset:
        return self.concat(other)

    def zip(self, datasets: Any) -> Dataset:
        """Join rows of this data set and of others side by side, as many as the shortest has."""
        others = datasets if isinstance(datasets, (list, tuple)) else [datasets]
        return Dataset(Zipped([stage_of("zip", other) for other in (self, *others)]))

    def apply(self, apply_func: Callable[[Dataset], Any]) -> Dataset:
        """Return the data set that a function makes of this one. Raise TypeError if it returns no data set."""
        made = _function("apply", "apply_func", apply_func)(self)
        stage_of("apply", made)
        return made


def zip_datasets(datasets: Any) -> Dataset:
    """Join rows of several data sets side by side, as many as the shortest has."""
    if not isinstance(datasets, (list, tuple)) or not datasets:
        raise ApiTypeError(f"zip takes a tuple of data sets, not {datasets!r}")
    return Dataset(Zipped([stage_of("zip", dataset) for dataset in datasets]))


def stage_of(function: str, dataset: Any) -> PipelineNode:
    """Return the node of a data set. Raise TypeError for anything else."""
    if not isinstance(dataset, Dataset):
        raise ApiTypeError(f"{function} takes data sets, not {type(dataset).__name__}")
    return dataset._node


def _function(step: str, what: str, function: Any) -> Any:
    if not callable(function) or isinstance(function, type):
        shown = function.__name__ if isinstance(function, type) else repr(function)
        raise ApiTypeError(f"{step}: {shown} is no operation" if what == "operations" else
                           f"{step}: {what} must be a function, not {shown}")  # fmt: skip
    return function


class DatasetIterator:
    """Rows as lists, or as dicts if `names` is given. Each loop over it reads one epoch, the next loop the next epoch.

    begin: returns the number of the next epoch and its first row. epochs: number of epochs, -1 for any number. epoch,
    row: progress of reading: the epoch's number, and the number of its rows read.
    """

    def __init__(
        self, node: PipelineNode, begin: Callable[[], tuple[int, int]], epochs: int, as_arrays: Any,
        places: Sequence[int] | None = None, names: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        if isinstance(epochs, bool) or not isinstance(epochs, int):
            raise ApiTypeError(f"num_epochs must be an integer, not {epochs!r}")
        if epochs < 1 and epochs != -1:
            raise ApiValueError(f"num_epochs {epochs} must be positive, or -1 for any number")
        self._node = node
        self._begin = begin
        self._left = epochs
        self._as_arrays = flag("create iterator", "output_numpy", as_arrays or False)
        self._places = places
        self._names = names
        self._rows: Iterator[Row] | None = None
        self._types_only = False
        self.epoch = -1
        self.row = 0

    def __iter__(self) -> DatasetIterator:
        return self

    def __next__(self) -> Any:
        if self._rows is None:
            if self._left == 0:
                raise StopIteration
            self._left -= 1 if self._left > 0 else 0
            self.epoch, self.row = self._begin()
            self._rows = _rows(self._node, DataPass.begin(self.epoch, self._types_only), self.row)
        row = next(self._rows, None)
        if row is None:
            self._rows = None
            raise StopIteration
        self.row += 1
        return self._given(row)

    def _given(self, row: Row) -> Any:
        chosen = row if self._places is None else tuple(row[place] for place in self._places)
        values = [_as_given(given(value), self._as_arrays) for value in chosen]
        return values if self._names is None else dict(zip(self._names, values, strict=True))

    def glance(self) -> None:
        """Read only element types and shapes from the next epoch on: rows come in the order of the source."""
        self._types_only = True

    def get_col_names(self) -> list[str]:
        return list(self._node.columns)

    def release(self) -> None:
        """End reading, and stop the workers that read in advance."""
        close = getattr(self._rows, "close", None)
        if close is not None:
            close()
        self._rows, self._left = None, 0

    stop = release


def _as_given(value: Any, as_arrays: bool) -> Any:
    """Return a value as an array or a Tensor, and a dict as a dict of them."""
    if isinstance(value, dict):
        return {key: _as_given(each, as_arrays) for key, each in value.items()}
    return value if as_arrays else Tensor.from_array(value)


def _rows(node: PipelineNode, reading: DataPass, first: int) -> Iterator[Row]:
    passed = 0
    for block in read(node, reading, config.get_prefetch_size()):
        if passed + len(block) <= first:
            passed += len(block)
            continue
        for i in range(max(0, first - passed), len(block)):
            yield block.row(i)
        passed += len(block)


def sizes_of_splits(sizes: Sequence[Any], rows: int) -> list[int]:
    """Return numbers of rows from numbers or shares. The rounding remainder goes to the first part that can take it.

    Raises:
        TypeError: `sizes` is no list of integers or of floats. ValueError: a share is not from 0 to 1, or their sum is
            not 1. RuntimeError: the parts do not add up to all rows, or one is empty.
    """
    given = list(sizes) if isinstance(sizes, (list, tuple)) else []
    if given and all(isinstance(size, int) and not isinstance(size, bool) for size in given):
        if any(size < 1 for size in given) or sum(given) != rows:
            raise ApiRuntimeError(f"split: sizes {given} must be positive and {rows} in all, the rows of the data set")
        return given
    if not given or not all(isinstance(size, float) for size in given):
        raise ApiTypeError(f"split: sizes must be a list of integers or of floats, not {sizes!r}")
    if any(not 0 < share <= 1 for share in given) or abs(sum(given) - 1) > 1e-9:
        raise ApiValueError(f"split: the shares {given} must be above 0 and 1 in all")
    counts = [round(share * rows) for share in given]
    left = rows - sum(counts)
    for place, count in enumerate(counts):
        if count + left > 0:
            counts[place] += left
            break
    if min(counts) < 1:
        raise ApiRuntimeError(f"split: the shares {given} of {rows} rows leave a part without rows")
    return counts
