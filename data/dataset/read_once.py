"""An iterator that cannot be started again, as a generator object or an open file, gives its rows once."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

from mspc.api.errors import ApiRuntimeError
from mspc.data.dataset.row_values import Row

LIMIT = 256 << 20
"""Bytes of rows that are stored between counting them and reading them."""


def is_read_once(source: Any) -> bool:
    """Whether a source of rows is an iterator that cannot be started again. One of a class of the user's may: its
    `__iter__` is Python."""
    if not hasattr(source, "__next__"):
        return False
    return not isinstance(getattr(type(source), "__iter__", None), FunctionType)


class ReadOnce:
    """The one epoch that such an iterator is good for. What is read of it is stored as long as it takes at most `LIMIT`
    bytes, so that the epoch may be counted, or looked into, before it is read.

    Args: rows: the rows of the iterator. source: how messages name it.
    """

    def __init__(self, rows: Iterator[Row], source: str) -> None:
        self._rows = rows
        self._source = source
        self._epoch: int | None = None
        self._stored: list[Row] | None = []
        self._made = 0
        self._nbytes = 0

    def epoch(self, number: int) -> Iterator[Row]:
        """The rows of an epoch from its begin on. Raises RuntimeError for a second epoch."""
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
