"""A loop over a data set reads from these iterators the rows of one epoch after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset import config
from mspc.data.dataset.nodes.base import PipelineNode
from mspc.data.dataset.nodes.reading import read
from mspc.data.dataset.pipeline_random import DataPass
from mspc.data.dataset.row_values import Row, flag, given


class DatasetIterator:
    """Rows as lists, or as dicts where `names` is given. A loop over it reads one epoch; the next loop the next one.

    begin: gives the number of the next epoch and its first row. epochs: how many there are, -1 for any number.
    epoch, row: how far reading has come: the epoch's number, and how many of its rows were read.
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
        """What is read from the next epoch on shows element types and shapes alone: rows as the source has them."""
        self._types_only = True

    def get_col_names(self) -> list[str]:
        return list(self._node.columns)

    def release(self) -> None:
        """End reading, and the workers that read ahead."""
        close = getattr(self._rows, "close", None)
        if close is not None:
            close()
        self._rows, self._left = None, 0

    stop = release


def _as_given(value: Any, as_arrays: bool) -> Any:
    """A value as an array or a Tensor, a dict as a dict of them."""
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
