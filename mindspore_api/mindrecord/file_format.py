"""Format of record files: the header with the fields and the places of pages, and the encoding of values.

A file is a header, in JSON after its length (eight bytes, little-endian), then pages of one size. A page holds rows of
values ("RAW_DATA") or of bytes ("BLOB_DATA"). Source: files that MindSpore 2.10 wrote.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.regular import check_regular
from mspc.ir.late_dataclass import dataclass

HEADER_SIZE, PAGE_SIZE = 1 << 24, 1 << 25
"""Default number of bytes of a header and of a page."""
HEADER_SIZES, PAGE_SIZES = (1 << 14, 1 << 27), (1 << 15, 1 << 28)
"""Minimum and maximum number of bytes of a header and of a page."""
VERSION = "3.0"
RAW, BLOB = "RAW_DATA", "BLOB_DATA"
LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Header:
    """Header of a file.

    pages: entry of each page, in order, as stored in the file. fields: of a record. indexed: names of the fields in the
    index. shards: names of all files of the set. shard: the number of this one.
    """

    header_size: int
    page_size: int
    pages: tuple[Mapping[str, Any], ...]
    fields: tuple[RecordField, ...]
    description: str
    indexed: tuple[str, ...]
    shards: tuple[str, ...]
    shard: int
    compressed: int = 0

    def begin(self, page: int) -> int:
        """Return the file offset of a page."""
        return self.header_size + page * self.page_size

    def text(self) -> bytes:
        """Return the header as bytes.

        Raises:
            ValueError: it does not fit into `header_size`.
        """
        indexed = [{"index_field": name, "schema_id": 0} for name in self.indexed] or None
        schema = {
            "blob_fields": [field.name for field in self.fields if field.is_blob],
            "desc": self.description,
            "schema": {field.name: field.described for field in self.fields},
        }
        content = {
            "header_size": self.header_size, "index_fields": indexed, "page": list(self.pages),
            "page_size": self.page_size, "compression_size": self.compressed, "schema": [schema],
            "shard_addresses": list(self.shards), "shard_id": self.shard, "statistics": None, "version": VERSION,
        }  # fmt: skip
        raw = json.dumps(content, separators=(",", ":")).encode()
        if LENGTH.size + len(raw) > self.header_size:
            raise ValueError(f"the header takes {LENGTH.size + len(raw)} bytes, and set_header_size allows "
                             f"{self.header_size}")  # fmt: skip
        return LENGTH.pack(len(raw)) + raw


def damaged(path: Path | str, why: str) -> MspcError:
    """Return the error for a file that is no record file, or is incomplete."""
    return MspcError(f"{str(path)!r} is no complete file of records: {why}")


def read_header(function: str, path: Path) -> Header:
    """Return the header of a file. Raise MspcError if the file is missing, cannot be read, or is damaged."""
    try:
        check_regular(path)
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            first = file.read(LENGTH.size)
            length = LENGTH.unpack(first)[0] if len(first) == LENGTH.size else 0
            raw = file.read(length) if length <= HEADER_SIZES[1] else b""
    except FileNotFoundError:
        raise MspcError(f"{function}: there is no file {str(path)!r}") from None
    except OSError as error:
        raise MspcError(f"{function}: cannot read {str(path)!r}: {error.strerror}") from None
    if not length or len(raw) != length:
        raise damaged(path, "it has no header")
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        raise damaged(path, "its header cannot be read") from None
    if not isinstance(content, dict):
        raise damaged(path, "its header cannot be read")
    if content.get("version") != VERSION:
        raise damaged(path, f"it is of version {content.get('version')!r}, not {VERSION!r}")
    try:
        found = _header(content)
    except (KeyError, IndexError, TypeError, AttributeError):
        raise damaged(path, "its header lacks entries") from None
    except ValueError as error:
        raise damaged(path, str(error)) from None
    if found.begin(len(found.pages) - 1) > size:
        raise damaged(path, f"it has {size} bytes, and its {len(found.pages)} pages take more")
    return found


def _header(content: dict[str, Any]) -> Header:
    """Raise KeyError, IndexError, TypeError, AttributeError or ValueError for missing or wrong entries."""
    for name, (least, most) in (("header_size", HEADER_SIZES), ("page_size", PAGE_SIZES)):
        if type(content[name]) is not int or not least <= content[name] <= most:
            raise ValueError(f"{name} is {content[name]!r}, not between {least} and {most}")
    if len(content["schema"]) != 1:
        raise ValueError(f"it has {len(content['schema'])} schemas, not 1")
    pages = tuple(sorted(content["page"], key=lambda page: page["page_id"]))
    if [page["page_id"] for page in pages] != list(range(len(pages))) or any(
        type(page["page_size"]) is not int or not 0 <= page["page_size"] <= content["page_size"] for page in pages
    ):
        raise ValueError("its pages are not numbered, or larger than pages may be")
    shards = tuple(map(os.path.basename, content["shard_addresses"]))
    if type(content["shard_id"]) is not int or not 0 <= content["shard_id"] < len(shards):
        raise ValueError(f"shard_id is {content['shard_id']!r}, and the set has {len(shards)} files")
    schema = content["schema"][0]
    return Header(
        content["header_size"], content["page_size"], pages, fields_of(schema["schema"]), str(schema.get("desc", "")),
        tuple(each["index_field"] for each in content["index_fields"] or ()), shards, content["shard_id"],
        int(content.get("compression_size") or 0),
    )  # fmt: skip


TYPES = ("bytes", "string", "int32", "int64", "float32", "float64")
_NAME = re.compile(r"\w+", re.ASCII)


@dataclass(frozen=True)
class RecordField:
    """Field of records. type: one of TYPES. shape: of an array, with at most one -1; None for a single value."""

    name: str
    type: str
    shape: tuple[int, ...] | None = None

    @property
    def is_blob(self) -> bool:
        """Whether the field is in the pages of bytes, not among the values that can be indexed."""
        return self.type == "bytes" or self.shape is not None

    @property
    def described(self) -> dict[str, Any]:
        return {"type": self.type} if self.shape is None else {"shape": list(self.shape), "type": self.type}

    def packed(self, value: Any) -> bytes:
        """Return the bytes of a blob value that `misfit` has accepted."""
        if self.type == "bytes":
            return bytes(value)
        array = np.asarray(value)
        return pack_integers(array) if array.dtype.kind == "i" else array.tobytes()

    def array(self, raw: bytes) -> np.ndarray:
        """Return the value of a blob; bytes become one dimension of UInt8. Raise ValueError if the bytes do not fit the
        field."""
        if self.type == "bytes":
            return np.frombuffer(raw, np.uint8).copy()
        dtype = np.dtype(self.type)
        if dtype.kind == "f" and len(raw) % dtype.itemsize:
            raise ValueError(f"{self.name} has {len(raw)} bytes, which are no {self.type}")
        found = unpack_integers(raw, dtype) if dtype.kind == "i" else np.frombuffer(raw, dtype).copy()
        shape = self.shape or ()
        known = math.prod(size for size in shape if size != -1)
        if found.size % known if -1 in shape else found.size != known:
            raise ValueError(f"{self.name} has {found.size} elements, which is no shape {list(shape)}")
        return found.reshape(shape)

    def scalar(self, value: Any) -> np.ndarray:
        """Return a single value as an array. Raise ValueError if it is of another kind."""
        wanted = str if self.type == "string" else int if self.type.startswith("int") else (int, float)
        if not isinstance(value, wanted):
            raise ValueError(f"{self.name} is {value!r}, which is no {self.type}")
        try:
            return np.array(value, None if self.type == "string" else self.type)
        except OverflowError:
            raise ValueError(f"{self.name} is {value}, which is no {self.type}") from None

    def misfit(self, value: Any) -> str:
        """Return why a value cannot be written, or "" if it can."""
        if self.type == "bytes":
            return "" if isinstance(value, bytes | bytearray) else f"must be bytes, not {type(value).__name__}"
        if self.shape is not None:
            return self._misfit_of_array(value)
        if self.type == "string":
            return "" if isinstance(value, str) else f"must be a string, not {value!r}"
        kinds = (int, np.integer) if self.type.startswith("int") else (int, float, np.integer, np.floating)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return f"must be a number of {self.type}, not {value!r}"
        if self.type.startswith("int") and not np.iinfo(self.type).min <= value <= np.iinfo(self.type).max:
            return f"must be a number of {self.type}, not {value}"
        return ""

    def _misfit_of_array(self, value: Any) -> str:
        if not isinstance(value, np.ndarray) or value.dtype != np.dtype(self.type):
            shown = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            return f"must be an array of {self.type}, not {shown}"
        shape = self.shape or ()
        known = math.prod(size for size in shape if size != -1)
        if value.size % known if -1 in shape else value.size != known:
            return f"must have the shape {list(shape)}, not {list(value.shape)}"
        return ""


def fields_of(content: Any) -> tuple[RecordField, ...]:
    """Return the fields of a schema `{name: {"type": type, "shape": shape}}`, in the order of their names.

    Raises:
        ValueError: it is no schema; the text gives the reason.
    """
    if not isinstance(content, Mapping) or not content:
        raise ValueError("a schema is a dict of fields, and has one at least")
    return tuple(_field(name, content[name]) for name in sorted(content, key=str))


def _field(name: Any, about: Any) -> RecordField:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"a field has a name of letters, digits and _, not {name!r}")
    if not isinstance(about, Mapping) or "type" not in about:
        raise ValueError(f"field {name!r} must be a dict with a type, not {about!r}")
    other = [key for key in about if key not in ("type", "shape")]
    if other:
        raise ValueError(f"field {name!r} has {other[0]!r}; it takes type and shape")
    if about["type"] not in TYPES:
        raise ValueError(f"field {name!r} has the type {about['type']!r}, which is not one of {', '.join(TYPES)}")
    if "shape" not in about:
        return RecordField(name, about["type"])
    shape = about["shape"]
    if about["type"] in ("bytes", "string"):
        raise ValueError(f"field {name!r} of {about['type']} takes no shape")
    sizes = shape if isinstance(shape, list | tuple) else ()
    if not sizes or not all(type(size) is int and (size > 0 or size == -1) for size in sizes):
        raise ValueError(f"field {name!r} has the shape {shape!r}, which is no list of sizes above 0, or -1")
    if sizes.count(-1) > 1:
        raise ValueError(f"field {name!r} has the shape {shape!r}; one size may be -1")
    return RecordField(name, about["type"], tuple(sizes))


Scalar = int | float | str
_WIDTHS = (1, 2, 4, 8)
"""Bytes of an integer, by its two-bit code."""
_FIXED = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
"""Formats of numbers, by their first byte."""
_SIZED = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
"""Formats of string lengths, by the first byte."""


def pack(values: Mapping[str, Scalar]) -> bytes:
    """Encode at most 65535 values by name as a map, in the order of the names."""
    count = len(values)
    head = bytes([0x80 | count]) if count < 16 else struct.pack(">BH", 0xDE, count)
    return head + b"".join(_text(name) + _value(values[name]) for name in sorted(values))


def _value(value: Scalar) -> bytes:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        is_short = not np.isfinite(value) or float(np.float32(value)) == value
        return struct.pack(">Bf", 0xCA, value) if is_short else struct.pack(">Bd", 0xCB, value)
    if -32 <= value < 128:
        return struct.pack(">b", value) if value < 0 else bytes([value])
    for first in (0xCC, 0xCD, 0xCE, 0xCF) if value > 0 else (0xD0, 0xD1, 0xD2, 0xD3):
        width = struct.calcsize(_FIXED[first]) * 8
        if value < (1 << width) and value >= -(1 << (width - 1)):
            return bytes([first]) + struct.pack(_FIXED[first], value)
    raise ValueError(f"{value} has more than 64 bits")


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) < 32:
        return bytes([0xA0 | len(raw)]) + raw
    first = 0xD9 if len(raw) < 1 << 8 else 0xDA if len(raw) < 1 << 16 else 0xDB
    return bytes([first]) + struct.pack(_SIZED[first], len(raw)) + raw


def unpack(raw: bytes) -> dict[str, Scalar]:
    """Return the values of a map by name.

    Raises:
        ValueError: the bytes are no map of numbers and strings.
    """
    try:
        return _unpacked(raw)
    except (struct.error, IndexError, UnicodeDecodeError):
        raise ValueError("its values are unknown") from None


def _unpacked(raw: bytes) -> dict[str, Scalar]:
    first = raw[0]
    count, at = (first & 0x0F, 1) if first >> 4 == 8 else (struct.unpack_from(">H", raw, 1)[0], 3)
    if first >> 4 != 8 and first != 0xDE:
        raise ValueError("its values are no map")
    found: dict[str, Scalar] = {}
    for _ in range(count):
        name, at = _read(raw, at)
        value, at = _read(raw, at)
        if not isinstance(name, str):
            raise ValueError(f"a value has the name {name!r}")
        found[name] = value
    if at != len(raw):
        raise ValueError("there is more data after its values")
    return found


def _read(raw: bytes, at: int) -> tuple[Scalar, int]:
    first = raw[at]
    if first < 0x80 or first >= 0xE0:
        return (first if first < 0x80 else first - 0x100), at + 1
    if first in _FIXED:
        return struct.unpack_from(_FIXED[first], raw, at + 1)[0], at + 1 + struct.calcsize(_FIXED[first])
    if first >> 5 == 5:
        size, begin = first & 0x1F, at + 1
    elif first in _SIZED:
        size, begin = struct.unpack_from(_SIZED[first], raw, at + 1)[0], at + 1 + struct.calcsize(_SIZED[first])
    elif first in (0xC2, 0xC3):
        return first - 0xC2, at + 1
    else:
        raise ValueError(f"a value is of the kind {first:#04x}, which no record has")
    if begin + size > len(raw):
        raise ValueError("a string is longer than the record")
    return raw[begin : begin + size].decode("utf-8", "surrogateescape"), begin + size


def pack_integers(array: np.ndarray) -> bytes:
    """Encode an array of integers: their number (four bytes), a two-bit code for the width of each, then each integer,
    little-endian, in one, two, four or eight bytes."""
    flat = array.ravel().astype(np.int64)
    codes = sum(
        ((flat < -(1 << bits)) | (flat >= (1 << bits))).astype(np.uint8) for bits in (7, 15, 31)
    ) + np.zeros(flat.shape, np.uint8)  # fmt: skip
    padded = np.zeros(-(-len(flat) // 4) * 4, np.uint8)
    padded[: len(flat)] = codes
    quarters = padded.reshape(-1, 4) << np.array([6, 4, 2, 0], np.uint8)
    every = flat.astype("<i8").view(np.uint8).reshape(-1, 8)
    used = np.arange(8) < np.array(_WIDTHS)[codes.astype(np.intp)][:, None]
    return struct.pack(">I", len(flat)) + quarters.sum(1, dtype=np.uint8).tobytes() + every[used].tobytes()


def unpack_integers(raw: bytes, dtype: np.dtype) -> np.ndarray:
    """Return the integers encoded by `pack_integers`.

    Raises:
        ValueError: the length of the bytes does not match the number and widths of the integers.
    """
    count = int.from_bytes(raw[:4], "big")
    begin = 4 + -(-count // 4)
    if len(raw) < begin:
        raise ValueError("an array of integers is shorter than it says")
    packed = np.frombuffer(raw, np.uint8, begin - 4, 4)
    codes = ((packed[:, None] >> np.array([6, 4, 2, 0], np.uint8)) & 3).ravel()[:count]
    widths = np.array(_WIDTHS)[codes]
    ends = np.cumsum(widths)
    if len(raw) != begin + (int(ends[-1]) if count else 0):
        raise ValueError("an array of integers is not as long as it says")
    every = np.frombuffer(raw, np.uint8, offset=begin)
    found = np.empty(count, dtype)
    for width in sorted(set(widths.tolist())):
        chosen = widths == width
        places = (ends[chosen] - width)[:, None] + np.arange(width)
        found[chosen] = every[places].view(f"<i{width}")[:, 0]
    return found
