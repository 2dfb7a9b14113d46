"""The beginning of a file of records says where its pages lie and what its fields are.

A file is a header, in JSON behind its length (eight bytes, little end first), then pages of one size. A page has rows
of values ("RAW_DATA") or of bytes ("BLOB_DATA"). Source: files that MindSpore 2.10 wrote.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mspc.data.mindrecord.schema import RecordField, fields_of
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.regular import check_regular
from mspc.ir.late_dataclass import dataclass

HEADER_SIZE, PAGE_SIZE = 1 << 24, 1 << 25
"""Bytes of a header and of a page unless a script says otherwise."""
HEADER_SIZES, PAGE_SIZES = (1 << 14, 1 << 27), (1 << 15, 1 << 28)
"""The least and the most that they may be."""
VERSION = "3.0"
RAW, BLOB = "RAW_DATA", "BLOB_DATA"
LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Header:
    """What is at the beginning of a file.

    pages: of each page, in order, as the file says it. fields: of a record. indexed: names of the fields that the index
    has. shards: names of all files of the set. shard: the number of this one.
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
        """Where a page begins."""
        return self.header_size + page * self.page_size

    def text(self) -> bytes:
        """The header as bytes.

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
    """The error of a file that is no file of records, or not complete."""
    return MspcError(f"{str(path)!r} is no complete file of records: {why}")


def read_header(function: str, path: Path) -> Header:
    """The header of a file.

    Raises:
        MspcError: the file is missing, cannot be read, or is damaged.
    """
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
        raise damaged(path, "its header lacks what it should have") from None
    except ValueError as error:
        raise damaged(path, str(error)) from None
    if found.begin(len(found.pages) - 1) > size:
        raise damaged(path, f"it has {size} bytes, and its {len(found.pages)} pages take more")
    return found


def _header(content: dict[str, Any]) -> Header:
    """Raises KeyError, IndexError, TypeError, AttributeError or ValueError for what is missing or wrong."""
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
