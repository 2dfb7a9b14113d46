"""Nodes that stack rows into batches."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.dataset.nodes.base import PipelineNode, RowFault, RowwiseNode, name_of, read
from mspc.mindspore_api.dataset.nodes.block import Block, Column, column_values, joined
from mspc.mindspore_api.dataset.pipeline_random import DataPass
from mspc.mindspore_api.dataset.row_values import as_column, given, integer
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError

Padding = dict[str, tuple[Sequence[int | None] | None, Any]]
"""By column name: the shape to pad rows to, None for that of the largest row, and the fill value."""


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

    size: rows of a batch, or a function of BatchInfo. padding: how to pad rows of different shapes, or None for no
    padding.
    """

    def __init__(
        self, source: PipelineNode, size: Any, drop_remainder: bool, fault: RowFault, change: BatchChange | None = None,
        padding: Padding | None = None,
    ) -> None:  # fmt: skip
        self.size = size
        self.drop_remainder = drop_remainder
        self.change = change
        self.padding = padding
        self.fault = fault
        names: list[str] = []
        self.taken = [] if change is None else [source.place(name) for name in change.inputs]
        for i, name in enumerate(source.columns):
            remaining = [] if i in self.taken else [name]
            names += remaining if change is None or i != self.taken[0] else change.outputs
        for name in padding or ():
            source.place(name)
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
            if self.padding is None or self.padding.get(name, (None, 0))[0] is None:
                return column
        if self.padding is not None:
            shape, value = self.padding.get(name, (None, 0))
            return _padded(self.fault.step, name, column, shape, value)
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


class BucketBatched(Batched):
    """Stacks rows with others of similar length: each bucket makes batches of its own rows.

    names: the columns passed to `length`; without `length` the first size of the only column is the length. boundaries:
    a row belongs to the first bucket with a boundary above its length, or to one extra bucket. sizes: rows per batch of
    each bucket. to_boundary: sizes that `padding` leaves open become the bucket's boundary minus 1, not the size of the
    largest row.
    """

    def __init__(
        self, source: PipelineNode, names: Sequence[str], boundaries: Sequence[int], sizes: Sequence[int],
        length: Callable[..., Any] | None, padding: Padding, to_boundary: bool, drop_remainder: bool, fault: RowFault,
    ) -> None:  # fmt: skip
        super().__init__(source, lambda info: 1, drop_remainder, fault, None, padding)
        self.places = [source.place(name) for name in names]
        self.boundaries, self.sizes, self.length, self.to_boundary = boundaries, sizes, length, to_boundary

    def blocks(self, reading: DataPass) -> Iterator[Block]:
        waiting: list[list[Block]] = [[] for _ in self.sizes]
        number = 0
        for block in read(self.source, replace(reading, needed=1)):
            for i in range(len(block)):
                bucket = self._bucket(block, i, number)
                waiting[bucket].append(block.part(i, i + 1))
                number += 1
                if len(waiting[bucket]) == self.sizes[bucket]:
                    yield self._of_bucket(bucket, waiting[bucket], reading)
                    waiting[bucket] = []
        for bucket, rows in enumerate(waiting):
            if rows and not self.drop_remainder:
                yield self._of_bucket(bucket, rows, reading)

    def _bucket(self, block: Block, row: int, number: int) -> int:
        values = [block.row(row)[place] for place in self.places]
        if self.length is None:
            if not values[0].ndim:
                raise ApiTypeError(
                    f"{self.fault.step}: a row of column {self.source.columns[self.places[0]]!r} is a number and has "
                    "no length", ["element_length_function says the length of a row"], code="E1101",
                )  # fmt: skip
            length = values[0].shape[0]
        else:
            try:
                length = integer(self.fault.step, "a length", as_column(self.length(*map(given, values))).item(), 0)
            except Exception as error:
                raise self.fault.error(error, name_of(self.length), number, block.place(row)) from error
        return bisect_right(self.boundaries, length)

    def _of_bucket(self, bucket: int, rows: list[Block], reading: DataPass) -> Block:
        padding = self.padding
        if self.to_boundary and padding:
            if bucket == len(self.boundaries):
                raise ApiValueError(
                    f"{self.fault.step}: a row is as long as the last boundary, {self.boundaries[-1]}, or longer: "
                    "pad_to_bucket_boundary has no boundary for it", ["add a larger boundary"],
                )  # fmt: skip
            last = self.boundaries[bucket] - 1
            self.padding = {
                name: (None if shape is None else [last if size is None else size for size in shape], value)
                for name, (shape, value) in padding.items()
            }
        try:
            return self._stacked(rows, 0, reading)
        finally:
            self.padding = padding


def _padded(
    step: str, name: str, values: Sequence[np.ndarray], shape: Sequence[int | None] | None, fill: Any
) -> np.ndarray:
    rank = values[0].ndim
    if any(value.ndim != rank for value in values):
        raise ApiTypeError(f"{step}: rows of column {name!r} have different numbers of dimensions")
    if shape is not None and len(shape) != rank:
        raise ApiValueError(f"{step}: pad_info of column {name!r} has {len(shape)} sizes, its rows {rank} dimensions")
    largest = [max(value.shape[axis] for value in values) for axis in range(rank)]
    wanted = [size if given is None else given for given, size in zip(shape or [None] * rank, largest, strict=True)]
    if any(size > given for size, given in zip(largest, wanted, strict=True)):
        raise ApiValueError(f"{step}: a row of column {name!r} of shape {tuple(largest)} exceeds {tuple(wanted)}")
    kind = np.result_type(*values)
    fill = kind.type() if kind.kind in "US" and fill == 0 else fill  # strings are filled with the empty one
    result = np.full((len(values), *wanted), fill, kind)
    for i, value in enumerate(values):
        result[(i, *map(slice, value.shape))] = value
    return result
