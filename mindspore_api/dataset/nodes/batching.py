"""Nodes that stack rows into batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.dataset.nodes.block import Block, Column, column_values, joined
from mspc.mindspore_api.dataset.nodes.pipeline_node import PipelineNode, RowFault, RowwiseNode, name_of, read
from mspc.mindspore_api.dataset.pipeline_random import DataPass
from mspc.mindspore_api.dataset.row_values import as_column, given, integer
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError


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
