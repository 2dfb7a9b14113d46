"""Writing of records into one file or a set of files. A file is moved to its path only when it is complete."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mspc.ir.files.atomic_writing import TemporaryPath, cannot_write, new_file, remove, write_atomically
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.mindspore_api.mindrecord.file_format import (
    BLOB,
    HEADER_SIZE,
    HEADER_SIZES,
    LENGTH,
    PAGE_SIZE,
    PAGE_SIZES,
    RAW,
    Header,
    RecordField,
    Scalar,
    fields_of,
    pack,
)
from mspc.mindspore_api.mindrecord.filereader import INDEX
from mspc.mindspore_api.setting_kind import place_of_caller, say_once

MAX_SHARDS = 1000
_NO_BYTES = bytes(4)
"""Placeholder bytes of a record without blob fields."""
_INDEX_TYPES = {"int32": "INTEGER", "int64": "INTEGER", "float32": "REAL", "float64": "REAL", "string": "TEXT"}


class FileWriter:
    """Writes records. The files are moved to their paths by `commit`.

    Args:
        file_name: of the file; several files get their number as a suffix. shard_num: number of files that share the
            records. overwrite: whether existing files are replaced.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind. RuntimeError: files exist already, or a method is
            called at the wrong time.
    """

    def __init__(self, file_name: str, shard_num: int = 1, overwrite: bool = False) -> None:
        if not isinstance(file_name, str | os.PathLike) or not str(file_name):
            raise ApiTypeError(f"FileWriter: file_name must be the name of a file, not {file_name!r}")
        if isinstance(shard_num, bool) or not isinstance(shard_num, int) or not 1 <= shard_num <= MAX_SHARDS:
            raise ApiValueError(f"FileWriter: shard_num must be an integer from 1 to {MAX_SHARDS}, not {shard_num!r}")
        digits = len(str(shard_num - 1))
        numbers = [""] if shard_num == 1 else [str(number).zfill(digits) for number in range(shard_num)]
        self._paths = [Path(f"{file_name}{number}") for number in numbers]
        there = next((path for path in self._paths if path.exists()), None)
        if there is not None and not overwrite:
            raise ApiRuntimeError(f"FileWriter: {str(there)!r} is there already", ["overwrite=True replaces it"])
        self._sizes = {"header_size": HEADER_SIZE, "page_size": PAGE_SIZE}
        self._fields: tuple[RecordField, ...] = ()
        self._description = ""
        self._indexed: tuple[str, ...] | None = None
        self._shards: list[_ShardWriter] = []
        self._is_committed = False

    def add_schema(self, content: Mapping[str, Any], desc: str | None = None) -> None:
        """Define the fields of a record: `{"label": {"type": "int32"}, "box": {"type": "float32", "shape": [-1, 4]},
        "image": {"type": "bytes"}}`; desc: their description. Raise ValueError for no such dict, RuntimeError for a
        second schema."""
        self._check_open("add_schema", is_before_rows=True)
        if self._fields:
            raise ApiRuntimeError("FileWriter.add_schema: the records have a schema already")
        try:
            self._fields = fields_of(content)
        except ValueError as error:
            raise ApiValueError(f"FileWriter.add_schema: {error}") from None
        self._description = desc or ""

    def add_index(self, index_fields: Sequence[str]) -> None:
        """Choose the fields of the index; by default all that are one number or string. Raise ValueError for other
        fields."""
        self._check_open("add_index", is_before_rows=True)
        if not isinstance(index_fields, list | tuple) or not index_fields:
            raise ApiTypeError(f"FileWriter.add_index: index_fields must be a list of names, not {index_fields!r}")
        known = {field.name: field for field in self._fields}
        for name in index_fields:
            if name not in known:
                raise ApiValueError(f"FileWriter.add_index: the schema has no field {name!r}")
            if known[name].is_blob:
                raise ApiValueError(f"FileWriter.add_index: {name!r} is no single number or string")
        self._indexed = tuple(dict.fromkeys(index_fields))

    def set_header_size(self, header_size: int) -> None:
        """Set the size of the header in bytes, 16 KiB to 128 MiB. Raise ValueError for other sizes."""
        self._set_size("header_size", header_size, HEADER_SIZES)

    def set_page_size(self, page_size: int) -> None:
        """Set the size of a page in bytes, 32 KiB to 256 MiB; the bytes of a record must fit into one page. Raise
        ValueError for other sizes."""
        self._set_size("page_size", page_size, PAGE_SIZES)

    def _set_size(self, name: str, value: Any, limits: tuple[int, int]) -> None:
        self._check_open(f"set_{name}", is_before_rows=True)
        if type(value) is not int or not limits[0] <= value <= limits[1] or value % 4:
            raise ApiValueError(f"FileWriter.set_{name}: {value!r} is no multiple of 4 from {limits[0]} to {limits[1]}")
        self._sizes[name] = value

    def write_raw_data(self, raw_data: list[dict[str, Any]], parallel_writer: bool = False) -> None:
        """Write records, dicts by field name; each file gets its share of them. parallel_writer changes nothing.

        Raises:
            TypeError, ValueError: a record lacks a field, or a value does not fit its field. RuntimeError: there is no
                schema, or a record is larger than a page.
        """
        self._check_open("write_raw_data")
        if not isinstance(raw_data, list) or not all(isinstance(row, dict) for row in raw_data):
            raise ApiTypeError("FileWriter.write_raw_data: raw_data must be a list of dicts")
        if parallel_writer:
            say_once("parallel_writer", f"{place_of_caller()}FileWriter.write_raw_data(parallel_writer=True) changes "
                     "nothing here: records are written in their order")  # fmt: skip
        for number, row in enumerate(raw_data):
            self._check_row(number, row)
        shards = self._started()
        for place, shard in enumerate(shards):
            first, last = (len(raw_data) * n // len(shards) for n in (place, place + 1))
            for row in raw_data[first:last]:
                shard.add(row)

    def commit(self) -> None:
        """Move the files to their paths, each with its index. Raise MspcError if they cannot be written."""
        self._check_open("commit")
        self._is_committed = True
        for shard in self._started():
            shard.finish(self._description, tuple(path.name for path in self._paths))

    def _started(self) -> list[_ShardWriter]:
        if not self._shards:
            if not self._fields:
                raise ApiRuntimeError("FileWriter: the records have no schema", ["call add_schema first"])
            indexed = self._indexed
            if indexed is None:
                indexed = tuple(field.name for field in self._fields if not field.is_blob)
            self._shards = [
                _ShardWriter(path, number, self._fields, indexed, **self._sizes)
                for number, path in enumerate(self._paths)
            ]
        return self._shards

    def _check_open(self, function: str, is_before_rows: bool = False) -> None:
        if self._is_committed:
            raise ApiRuntimeError(f"FileWriter.{function}: the records are committed")
        if is_before_rows and self._shards:
            raise ApiRuntimeError(f"FileWriter.{function}: it comes before the first record")

    def _check_row(self, number: int, row: dict[str, Any]) -> None:
        for field in self._fields:
            if field.name not in row:
                raise ApiValueError(f"FileWriter.write_raw_data: record {number} has no {field.name!r}")
            why = field.misfit(row[field.name])
            if why:
                raise ApiValueError(f"FileWriter.write_raw_data: record {number}: {field.name} {why}")
        for name in row.keys() - {field.name for field in self._fields}:
            text = f"FileWriter.write_raw_data: {name!r} is no field of the schema, and is not written"
            say_once(f"record field {name}", f"{place_of_caller()}{text}")


class _ShardWriter:
    """One file under a temporary name while it grows. A group of records has one page of bytes and one of values."""

    def __init__(
        self, path: Path, number: int, fields: tuple[RecordField, ...], indexed: tuple[str, ...], header_size: int,
        page_size: int,
    ) -> None:  # fmt: skip
        self.path = path
        self.number = number
        self.fields = fields
        self.indexed = indexed
        self.header_size, self.page_size = header_size, page_size
        self.pages: list[dict[str, Any]] = []
        self.rows: list[tuple[Any, ...]] = []
        self.saved = 0
        self._groups = 0
        self._raw: dict[str, Any] = {}
        self._blob: dict[str, Any] = {}
        try:
            self.beside: TemporaryPath = new_file(path.parent, path.name)
        except OSError as error:
            raise cannot_write(path, error) from None

    def add(self, row: dict[str, Any]) -> None:
        """Write a record. Raise RuntimeError if it is larger than a page, MspcError if the disk is full."""
        values = pack(self._values(row))
        blob = self._bytes(row)
        for what, part in (("values", values), ("bytes", blob)):
            if LENGTH.size + len(part) > self.page_size:
                raise ApiRuntimeError(
                    f"FileWriter: the {what} of a record take {len(part)} bytes, and a page has {self.page_size}",
                    ["set_page_size makes pages larger"],
                )
        if not self._fits(self._blob, blob) or not self._fits(self._raw, values):
            self._begin_group(len(values))
        raw_begin, blob_begin = self._raw["page_size"], self._blob["page_size"]
        self._write(self._raw, values)
        self._write(self._blob, blob)
        number = len(self.rows)
        self._blob["end_row_id"] = number + 1
        self.rows.append((
            number, self._raw["page_id"], raw_begin, self._raw["page_size"], self._blob["page_type_id"],
            self._blob["page_id"], blob_begin, self._blob["page_size"],
            *(each for name in self.indexed for each in (0, _plain(row[name]))),
        ))  # fmt: skip

    def _values(self, row: dict[str, Any]) -> dict[str, Scalar]:
        values = {field.name: _plain(row[field.name]) for field in self.fields if not field.is_blob}
        for field in self.fields:
            if field.type.startswith("float") and field.name in values:
                values[field.name] = float(values[field.name])
        return values or {"id": 0}

    def _bytes(self, row: dict[str, Any]) -> bytes:
        parts = [(field, field.packed(row[field.name])) for field in self.fields if field.is_blob]
        self.saved += sum(row[field.name].nbytes - len(part) for field, part in parts if field.type.startswith("int"))
        if len(parts) <= 1:
            return parts[0][1] if parts else _NO_BYTES
        return b"".join(len(part).to_bytes(8, "big") + part for _, part in parts)

    def _fits(self, page: dict[str, Any], part: bytes) -> bool:
        return bool(page) and page["page_size"] + LENGTH.size + len(part) <= self.page_size

    def _begin_group(self, values: int) -> None:
        """Begin a new page of bytes, and a new page of values if the last one is full."""
        group, self._groups = self._groups, self._groups + 1
        self._blob = self._page(BLOB, group, [{"id": 0, "offset": 0}])
        if not self._raw or self._raw["page_size"] + LENGTH.size + values > self.page_size:
            raws = sum(page["page_type"] == RAW for page in self.pages)
            self._raw = self._page(RAW, raws, [])
        self._raw["row_group_ids"].append({"id": group, "offset": self._raw["page_size"]})

    def _page(self, kind: str, number: int, groups: list[dict[str, int]]) -> dict[str, Any]:
        row = len(self.rows) if kind == BLOB else 0
        page = {
            "end_row_id": row, "page_id": len(self.pages), "page_size": 0, "page_type": kind, "page_type_id": number,
            "row_group_ids": groups, "shard_id": self.number, "start_row_id": row,
        }  # fmt: skip
        self.pages.append(page)
        return page

    def _write(self, page: dict[str, Any], part: bytes) -> None:
        place = self.header_size + page["page_id"] * self.page_size + page["page_size"]
        self._put(LENGTH.pack(len(part)) + part, place)
        page["page_size"] += LENGTH.size + len(part)

    def _put(self, raw: bytes, place: int) -> None:
        try:
            while raw:
                done = os.pwrite(self.beside.descriptor, raw, place)
                raw, place = raw[done:], place + done
        except OSError as error:
            raise cannot_write(self.path, error) from None

    def finish(self, description: str, shards: tuple[str, ...]) -> None:
        """Write header and index, and move both files to their paths."""
        header = Header(self.header_size, self.page_size, tuple(self.pages), self.fields, description, self.indexed,
                        shards, self.number, self.saved)  # fmt: skip
        try:
            self._put(header.text(), 0)
            os.ftruncate(self.beside.descriptor, max(os.fstat(self.beside.descriptor).st_size, self.header_size))
            os.fsync(self.beside.descriptor)
            os.replace(self.beside.path, self.path)
        except ValueError as error:
            raise ApiRuntimeError(f"FileWriter.commit: {error}", ["set_header_size makes it larger"]) from None
        except OSError as error:
            raise cannot_write(self.path, error) from None
        finally:
            remove(self.beside.path)
            self.beside.release()
        index = _index(self.path.name, self.fields, self.indexed, self.rows)
        write_atomically(Path(f"{self.path}{INDEX}"), lambda file: file.write(index))


def _plain(value: Any) -> Scalar:
    return value.item() if hasattr(value, "item") else value


def _index(name: str, fields: tuple[RecordField, ...], indexed: tuple[str, ...], rows: list[tuple[Any, ...]]) -> bytes:
    """Return the index of a file: a table of its records' places with the values of some fields, and a table of its
    name."""
    types = {field.name: _INDEX_TYPES[field.type] for field in fields if not field.is_blob}
    columns = ["ROW_ID", "PAGE_ID_RAW", "PAGE_OFFSET_RAW", "PAGE_OFFSET_RAW_END", "ROW_GROUP_ID", "PAGE_ID_BLOB",
               "PAGE_OFFSET_BLOB", "PAGE_OFFSET_BLOB_END"]  # fmt: skip
    made = [f"{column} INT NOT NULL" for column in columns]
    made += [text for i, each in enumerate(indexed) for text in (f"INC_{i} INT", f"{each}_0 {types[each]}")]
    keys = ", ".join(["ROW_ID", *(f"INC_{i}" for i in range(len(indexed)))])
    with contextlib.closing(sqlite3.connect(":memory:")) as index:
        index.execute(f"CREATE TABLE INDEXES({', '.join(made)}, PRIMARY KEY({keys}))")
        index.executemany(f"INSERT INTO INDEXES VALUES({', '.join('?' * len(made))})", rows)
        index.execute("CREATE TABLE SHARD_NAME(NAME TEXT NOT NULL)")
        index.execute("INSERT INTO SHARD_NAME VALUES(?)", (name,))
        index.commit()
        return index.serialize()
