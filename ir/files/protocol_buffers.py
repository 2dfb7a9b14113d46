"""This module reads the wire format of Protocol Buffers, as far as files of MindSpore need it, and trusts no length.

Source: the Protocol Buffers encoding guide. A message is a row of fields; each begins with its number and kind, as a
variable-length integer: 0 an integer of that sort, 1 eight bytes, 2 a length and so many bytes, 5 four bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from mspc.ir.late_dataclass import dataclass

LONGEST = 10
"""Bytes of an integer of 64 bits."""
VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class WireField:
    """A field: its number, its kind, its integer, and where its bytes lie."""

    number: int
    kind: int
    value: int
    begin: int
    end: int


def fields(data: Any, begin: int, end: int) -> Iterator[WireField]:
    """The fields of the message that takes the bytes from `begin` to `end` of `data`, anything that can be indexed.

    Raises:
        ValueError: it is no message.
    """
    at = begin
    while at < end:
        key, at = varint(data, at, end)
        number, kind = key >> 3, key & 7
        if not number:
            raise ValueError(f"a field at byte {at} has number 0")
        if kind == VARINT:
            value, at = varint(data, at, end)
            yield WireField(number, kind, value, at, at)
            continue
        if kind == BYTES:
            size, at = varint(data, at, end)
        elif kind in (EIGHT, FOUR):
            size = 8 if kind == EIGHT else 4
        else:
            raise ValueError(f"a field before byte {at} is of kind {kind}")
        if size > end - at:
            raise ValueError(f"a field at byte {at} has {size} bytes, and {end - at} are left")
        yield WireField(number, kind, 0, at, at + size)
        at += size


def varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """(an integer, the place behind it). Raises ValueError."""
    value = 0
    for place in range(LONGEST):
        if at + place >= end:
            raise ValueError(f"an integer at byte {at} is cut off")
        byte = data[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value & (1 << 64) - 1, at + place + 1
    raise ValueError(f"an integer at byte {at} has more than {LONGEST} bytes")


def signed(value: int) -> int:
    """An integer of 64 bits with a sign."""
    return value - (1 << 64) if value >> 63 else value


def text(data: Any, field: WireField) -> str:
    """The text of a field. Raises ValueError."""
    if field.kind != BYTES:
        raise ValueError(f"field {field.number} is no text")
    return bytes(data[field.begin : field.end]).decode()


def integers(data: Any, field: WireField) -> list[int]:
    """The integers of a field of a row of them, packed into one or not. Raises ValueError."""
    if field.kind == VARINT:
        return [signed(field.value)]
    if field.kind != BYTES:
        raise ValueError(f"field {field.number} holds no integers")
    found: list[int] = []
    at = field.begin
    while at < field.end:
        value, at = varint(data, at, field.end)
        found.append(signed(value))
    return found


def put_varint(value: int) -> bytes:
    """An integer; a negative one as 64 bits."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def put_integer(number: int, value: int) -> bytes:
    """A field with an integer."""
    return put_varint(number << 3 | VARINT) + put_varint(value)


def put_head(number: int, size: int) -> bytes:
    """The number, the kind and the length before the bytes of a field."""
    return put_varint(number << 3 | BYTES) + put_varint(size)


def put_bytes(number: int, data: bytes) -> bytes:
    """A field with bytes."""
    return put_head(number, len(data)) + data


def put_text(number: int, value: str) -> bytes:
    """A field with text."""
    return put_bytes(number, value.encode())


def put_float(number: int, value: float) -> bytes:
    """A field with a number of four bytes."""
    return put_varint(number << 3 | FOUR) + struct.pack("<f", value)
