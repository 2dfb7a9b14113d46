"""Adds checksums to strategy files, by which damage is noticed: MindSpore's formats have none, and its readers pass
over fields that they do not know.

A message begins with a field of its own, the CRC-32 of all bytes behind it; JSON has it as an entry, of the other
entries in one fixed spelling, so that spaces do not count. Files without one are MindSpore's, or older.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

from mspc.ir.files.tensors import FOUR, fields, put_varint

FIELD = 4095
"""The field's number, far from any that MindSpore has."""
ENTRY = "mspc_crc32"
"""The entry's name."""
EDITED = f"it is damaged; where it was edited by hand, take the entry {ENTRY!r} out"
_HEAD = put_varint(FIELD << 3 | FOUR)


def with_checksum(message: bytes) -> bytes:
    """A message with its checksum before it."""
    return _HEAD + struct.pack("<I", zlib.crc32(message)) + message


def without_checksum(data: bytes) -> bytes:
    """The message behind a checksum, or all of the data where there is none.

    Raises:
        ValueError: it is not what was written.
    """
    first = next(fields(data, 0, len(data)), None)
    if first is None or (first.number, first.kind) != (FIELD, FOUR):
        return data
    message = data[first.end :]
    if struct.unpack("<I", data[first.begin : first.end])[0] != zlib.crc32(message):
        raise ValueError("it is damaged: its bytes are not those that were written")
    return message


def json_with_checksum(content: dict[str, Any]) -> dict[str, Any]:
    """An object with its checksum as the first entry."""
    return {ENTRY: _of(content), **content}


def json_without_checksum(content: dict[str, Any]) -> dict[str, Any]:
    """The object without its checksum, if it has one. Raises ValueError where it is not what was written."""
    if ENTRY not in content:
        return content
    rest = {key: value for key, value in content.items() if key != ENTRY}
    if content[ENTRY] != _of(rest):
        raise ValueError(EDITED)
    return rest


def _of(content: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"
