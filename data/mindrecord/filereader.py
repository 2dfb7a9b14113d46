"""This module reads records one after another, as a script asks for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mspc.api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.data.mindrecord.shard import RecordSet


def record_files(function: str, what: str, files: Any) -> Path | list[Path]:
    """The files that an argument names: one of a set, or a list of them. Raises TypeError for anything else."""
    if isinstance(files, list | tuple) and files and all(isinstance(file, str | os.PathLike) for file in files):
        return [Path(file) for file in files]
    if isinstance(files, str | os.PathLike) and str(files):
        return Path(files)
    raise ApiTypeError(f"{function}: {what} must be the name of a file or a list of names, not {files!r}")


class FileReader:
    """Reads records in their order.

    Args:
        file_name: one file of a set, all of which are read, or a list of files. num_consumer: how many threads may
            read; it changes nothing in what is read. columns: names of fields, all of them without it.

    Raises:
        MspcError: a file is missing or damaged, or has no such field. TypeError, ValueError: an argument is of the
            wrong kind.
    """

    def __init__(self, file_name: Any, num_consumer: int = 4, columns: Any = None, operator: Any = None) -> None:
        name = "FileReader"
        if operator is not None:
            raise ApiValueError(f"{name}: operator is not supported")
        if isinstance(num_consumer, bool) or not isinstance(num_consumer, int) or num_consumer < 1:
            raise ApiValueError(f"{name}: num_consumer must be an integer above 0, not {num_consumer!r}")
        if columns is not None and not (isinstance(columns, list) and all(isinstance(each, str) for each in columns)):
            raise ApiTypeError(f"{name}: columns must be a list of names, not {columns!r}")
        self._records: RecordSet | None = RecordSet(name, record_files(name, "file_name", file_name))
        self._fields = self._records.chosen(name, columns or None)

    def _open(self, function: str) -> RecordSet:
        if self._records is None:
            raise ApiRuntimeError(f"FileReader.{function}: the reader is closed")
        return self._records

    def get_next(self) -> Iterator[dict[str, Any]]:
        """Every record as a dict: bytes, strings, numbers, and arrays where a field has a shape. Raises MspcError where
        one is damaged."""
        records = self._open("get_next")
        for number in range(len(records)):
            shard, place = records.place(number)
            yield {
                field.name: _plain(field.type, field.is_blob, value)
                for field, value in zip(self._fields, shard.record(place, self._fields), strict=True)
            }

    def len(self) -> int:
        """How many records there are."""
        return len(self._open("len"))

    def schema(self) -> dict[str, Any]:
        """The fields: `{name: {"type": type, "shape": shape}}`."""
        return {field.name: field.described for field in self._open("schema").fields}

    def close(self) -> None:
        """Let go of the files."""
        for shard in self._open("close").shards if self._records else ():
            shard.close()
        self._records = None


def _plain(kind: str, is_blob: bool, value: np.ndarray) -> Any:
    if kind == "bytes":
        return value.tobytes()
    return value if is_blob else value.item()
