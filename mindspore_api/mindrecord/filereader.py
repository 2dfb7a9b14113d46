"""Sequential reading of record files."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.mindspore_api.mindrecord.file_format import LENGTH, Header, RecordField, Scalar, damaged, read_header, unpack


def record_files(function: str, what: str, files: Any) -> Path | list[Path]:
    """Return the files that an argument names: one of a set, or a list of them. Raise TypeError for anything else."""
    if isinstance(files, list | tuple) and files and all(isinstance(file, str | os.PathLike) for file in files):
        return [Path(file) for file in files]
    if isinstance(files, str | os.PathLike) and str(files):
        return Path(files)
    raise ApiTypeError(f"{function}: {what} must be the name of a file or a list of names, not {files!r}")


class FileReader:
    """Reads records in their order.

    Args:
        file_name: one file of a set, to read the whole set, or a list of files. num_consumer: number of threads that
            may read; the records do not depend on it. columns: names of fields, by default all.

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
            raise ApiTypeError(f"{name}: columns must be a list of names, not {columns!r}", code="E1101")
        self._records: RecordSet | None = RecordSet(name, record_files(name, "file_name", file_name))
        self._fields = self._records.chosen(name, columns or None)

    def _open(self, function: str) -> RecordSet:
        if self._records is None:
            raise ApiRuntimeError(f"FileReader.{function}: the reader is closed")
        return self._records

    def get_next(self) -> Iterator[dict[str, Any]]:
        """Yield every record as a dict: bytes, strings, numbers, and arrays if a field has a shape. Raise MspcError if
        one is damaged."""
        records = self._open("get_next")
        for number in range(len(records)):
            shard, place = records.place(number)
            yield {
                field.name: _plain(field.type, field.is_blob, value)
                for field, value in zip(self._fields, shard.record(place, self._fields), strict=True)
            }

    def len(self) -> int:
        """Return the number of records."""
        return len(self._open("len"))

    def schema(self) -> dict[str, Any]:
        """Return the fields: `{name: {"type": type, "shape": shape}}`."""
        return {field.name: field.described for field in self._open("schema").fields}

    def close(self) -> None:
        """Close the files."""
        for shard in self._open("close").shards if self._records else ():
            shard.close()
        self._records = None


def _plain(kind: str, is_blob: bool, value: np.ndarray) -> Any:
    if kind == "bytes":
        return value.tobytes()
    return value if is_blob else value.item()


INDEX = ".db"
"""Suffix of an index, appended to the name of its file."""
_PLACES = ("PAGE_ID_RAW, PAGE_OFFSET_RAW, PAGE_OFFSET_RAW_END, PAGE_ID_BLOB, PAGE_OFFSET_BLOB, PAGE_OFFSET_BLOB_END")


class Shard:
    """One file of records and its index, open for reading.

    Raises:
        MspcError: the file or its index is missing, cannot be read, or is damaged.
    """

    def __init__(self, function: str, path: Path) -> None:
        self.path = path
        self.header: Header = read_header(function, path)
        self.blobs = [field for field in self.header.fields if field.is_blob]
        self.places = self._read_index(function)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._closing = weakref.finalize(self, os.close, self._descriptor)
        self._check_places()

    def __len__(self) -> int:
        return len(self.places)

    def close(self) -> None:
        """Close the file."""
        self._closing()

    def __deepcopy__(self, _: Any) -> Shard:
        return self  # immutable, and it has an open file

    def _read_index(self, function: str) -> np.ndarray:
        """Return for every record, in order: page, begin and end of its values, then of its bytes."""
        path = Path(f"{self.path}{INDEX}")
        if not path.is_file():
            raise MspcError(f"{function}: there is no index {str(path)!r} beside the file of records")
        try:
            with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as index:
                rows = index.execute(f"SELECT ROW_ID, {_PLACES} FROM INDEXES ORDER BY ROW_ID").fetchall()
        except sqlite3.Error as error:
            raise MspcError(f"{str(path)!r} is no complete index of records: {error}") from None
        except UnicodeDecodeError:  # from a message of SQLite with contents of the file
            raise MspcError(f"{str(path)!r} is no complete index of records: its tables have no names") from None
        try:
            found = np.array(rows, np.int64).reshape(-1, 7)
        except (ValueError, TypeError, OverflowError):
            raise MspcError(f"{str(path)!r} is no complete index of records: a place is no number") from None
        if not np.array_equal(found[:, 0], np.arange(len(found))):
            raise MspcError(f"{str(path)!r} is no complete index of records: records are not numbered from 0 on")
        return found[:, 1:]

    def _check_places(self) -> None:
        """Raise MspcError if a record is outside of the pages or of the file."""
        size = os.fstat(self._descriptor).st_size
        lengths = np.array([page["page_size"] for page in self.header.pages], np.int64)
        for page, begin, end in (self.places[:, :3].T, self.places[:, 3:].T):
            is_page = (page >= 0) & (page < len(lengths))
            inside = is_page & (begin >= 0) & (end - begin >= LENGTH.size)
            inside[is_page] &= end[is_page] <= lengths[page[is_page]]
            in_file = inside & (self.header.header_size + page * self.header.page_size + end <= size)
            for ok, why in ((inside, "is outside its page"), (in_file, f"is after the end, at {size} bytes")):
                if not ok.all():
                    raise damaged(self.path, f"record {int(np.argmin(ok))} {why}")

    def describe(self, number: int) -> str:
        return f"record {number} of {str(self.path)!r}"

    def values(self, number: int) -> dict[str, Scalar]:
        """Return the single-value fields of a record. Raise MspcError if it is damaged."""
        page, begin, end = self.places[number, :3].tolist()
        try:
            return unpack(self._row(page, begin, end))
        except ValueError as error:
            raise damaged(self.path, f"record {number}: {error}") from None

    def bytes_of(self, number: int) -> dict[str, bytes]:
        """Return the bytes of the blob fields of a record. Raise MspcError if it is damaged."""
        if not self.blobs:
            return {}
        page, begin, end = self.places[number, 3:].tolist()
        raw = self._row(page, begin, end)
        if len(self.blobs) == 1:
            return {self.blobs[0].name: raw}
        found: dict[str, bytes] = {}
        at = 0
        for field in self.blobs:
            size = int.from_bytes(raw[at : at + 8], "big")
            if at + 8 + size > len(raw):
                raise damaged(self.path, f"record {number}: {field.name} is longer than the record")
            found[field.name] = raw[at + 8 : at + 8 + size]
            at += 8 + size
        return found

    def _row(self, page: int, begin: int, end: int) -> bytes:
        raw = os.pread(self._descriptor, end - begin, self.header.begin(page) + begin)
        if len(raw) != end - begin or LENGTH.unpack_from(raw)[0] != len(raw) - LENGTH.size:
            raise damaged(self.path, f"a record at byte {self.header.begin(page) + begin} is not as long as it says")
        return raw[LENGTH.size :]

    def record(self, number: int, fields: Sequence[RecordField]) -> list[np.ndarray]:
        """Return some fields of a record. Raise MspcError if it is damaged."""
        blobs = self.bytes_of(number) if any(field.is_blob for field in fields) else {}
        values = self.values(number) if not all(field.is_blob for field in fields) else {}
        found: list[np.ndarray] = []
        for field in fields:
            if field.name not in (blobs if field.is_blob else values):
                raise damaged(self.path, f"record {number} has no {field.name!r}")
            try:
                value: Any = blobs[field.name] if field.is_blob else values[field.name]
                found.append(field.array(value) if field.is_blob else field.scalar(value))
            except ValueError as error:
                raise damaged(self.path, f"record {number}: {error}") from None
        return found


class RecordSet:
    """Records of several files in sequence.

    Args: files: one of a set, with the others in the same folder, or a list of the files to read.

    Raises:
        MspcError: a file is missing or damaged, or has other fields than the first one.
    """

    def __init__(self, function: str, files: Path | Sequence[Path]) -> None:
        paths = _all_files(function, files) if isinstance(files, Path) else files
        self.shards = [Shard(function, path) for path in paths]
        self.fields = self.shards[0].header.fields
        for shard in self.shards[1:]:
            if shard.header.fields != self.fields:
                raise MspcError(f"{function}: {str(shard.path)!r} has other fields than {str(self.shards[0].path)!r}")
        self._ends = np.cumsum([len(shard) for shard in self.shards])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def place(self, number: int) -> tuple[Shard, int]:
        """Return (the file of a record, the record's number in that file)."""
        index = int(np.searchsorted(self._ends, number, side="right"))
        return self.shards[index], number - (int(self._ends[index - 1]) if index else 0)

    def chosen(self, function: str, names: Sequence[str] | None) -> list[RecordField]:
        """Return the fields of these names, all fields for None. Raise MspcError for an unknown name."""
        known = {field.name: field for field in self.fields}
        for name in names or ():
            if name not in known:
                raise MspcError(f"{function}: the records have no field {name!r}; they have {', '.join(known)}")
        return list(self.fields) if names is None else [known[name] for name in names]


def _all_files(function: str, path: Path) -> list[Path]:
    shards = read_header(function, path).shards
    if len(shards) == 1:
        return [path]
    for name in shards:
        if not (path.parent / name).is_file():
            raise MspcError(f"{function}: {str(path)!r} is one of {len(shards)} files, and {name!r} is not beside it")
    return [path.parent / name for name in shards]
