"""This module reads records as TensorFlow writes them: files of them, and the example that each holds.

Source: TensorFlow's description of its record files: eight bytes with a length, a masked CRC-32C of them, so many
bytes, and a CRC-32C of these. An example is a message of Protocol Buffers: features by name, each a list of bytes, of
32-bit floats or of 64-bit integers.
"""

from __future__ import annotations

import functools
import gzip
import mmap
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.protocol_buffers import BYTES, FOUR, WireField, fields, integers, text
from mspc.ir.files.regular import check_regular

Feature = list[bytes] | np.ndarray
"""What one name has: bytes, or numbers (Float32 or Int64)."""
_OPENED: dict[str, Callable[[bytes], bytes]] = {"GZIP": gzip.decompress, "ZLIB": zlib.decompress}
COMPRESSIONS = ("", *_OPENED)


class ExampleFile:
    """Where the records of a file lie. Raises MspcError where it is missing or damaged."""

    def __init__(self, path: Path, compression: str = "") -> None:
        self.path = path
        try:
            check_regular(path)
            with path.open("rb") as file:
                if compression:
                    self.data: Any = _OPENED[compression](file.read())
                else:  # a file of no bytes cannot be mapped
                    self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
        except FileNotFoundError:
            raise MspcError(f"there is no file {str(path)!r}") from None
        except (OSError, EOFError, zlib.error) as error:
            raise MspcError(f"{str(path)!r} cannot be read: {error}") from None
        self.places = self._scanned()

    def _scanned(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        at, size = 0, len(self.data)
        while at < size:
            if size - at < 12:
                raise self.damaged(len(found), f"is truncated at byte {at}")
            length, check = struct.unpack_from("<QI", self.data, at)
            if masked_crc(self.data[at : at + 8]) != check:
                raise self.damaged(len(found), f"has a wrong checksum of its length at byte {at}")
            if length + 16 > size - at:
                raise self.damaged(len(found), f"says {length} bytes, and {max(size - at - 16, 0)} are left")
            found.append((at + 12, at + 12 + length))
            at += length + 16
        return found

    def damaged(self, record: int, why: str) -> MspcError:
        return MspcError(f"{str(self.path)!r}: record {record} {why}")

    def example(self, record: int) -> dict[str, Feature]:
        """The features of a record. Raises MspcError where it is none."""
        begin, end = self.places[record]
        data = self.data[begin:end]
        found: dict[str, Feature] = {}
        try:
            for outer in _messages(data, 0, len(data), 1):
                for entry in _messages(data, outer.begin, outer.end, 1):
                    name, feature = "", None
                    for part in fields(data, entry.begin, entry.end):
                        if part.number == 1:
                            name = text(data, part)
                        elif part.number == 2:
                            feature = _feature(data, part)
                    if feature is not None:
                        found[name] = feature
        except ValueError as error:
            raise self.damaged(record, f"is no example: {error}") from None
        return found


def _messages(data: bytes, begin: int, end: int, number: int) -> list[WireField]:
    return [each for each in fields(data, begin, end) if each.number == number and each.kind == BYTES]


def _feature(data: bytes, field: WireField) -> Feature | None:
    for kind in fields(data, field.begin, field.end):
        inside = [each for each in fields(data, kind.begin, kind.end) if each.number == 1]
        if kind.number == 1:
            return [bytes(data[each.begin : each.end]) for each in inside]
        if kind.number == 2:
            return np.concatenate([_floats(data, each) for each in inside] or [np.zeros(0, np.float32)])
        if kind.number == 3:
            return np.concatenate([_integers(data, each) for each in inside] or [np.zeros(0, np.int64)])
    return None


def _floats(data: bytes, field: WireField) -> np.ndarray:
    if field.kind not in (BYTES, FOUR) or (field.end - field.begin) % 4:
        raise ValueError(f"field at byte {field.begin} holds no floats")
    return np.frombuffer(data, "<f4", (field.end - field.begin) // 4, field.begin).astype(np.float32)


def _integers(data: bytes, field: WireField) -> np.ndarray:
    """Integers of up to ten bytes, seven bits in each; all in one pass where no sign makes them that long."""
    given = np.frombuffer(data, np.uint8, field.end - field.begin, field.begin)
    last = np.flatnonzero(given < 128)
    if field.kind != BYTES or not given.size or last.size == 0 or last[-1] != given.size - 1:
        return np.array(integers(data, field), np.int64)
    first = np.concatenate(([0], last[:-1] + 1))
    if (last - first).max() > 7:
        return np.array(integers(data, field), np.int64)
    shift = 7 * (np.arange(given.size) - np.repeat(first, last - first + 1))
    return np.add.reduceat((given & 127).astype(np.int64) << shift, first)


@functools.cache
def _table() -> list[int]:
    found: list[int] = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        found.append(value)
    return found


def masked_crc(data: bytes) -> int:
    """The CRC-32C of some bytes, turned and moved so that it is not taken for one of what holds it."""
    table, value = _table(), 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 255] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
