"""Values of a record become bytes: numbers and strings as MessagePack, arrays of integers in as few bytes each as hold
them.

Sources: the specification of MessagePack; files that MindSpore 2.10 wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

Scalar = int | float | str
_WIDTHS = (1, 2, 4, 8)
"""Bytes of an integer, by its code of two bits."""
_FIXED = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
"""Numbers, by their first byte."""
_SIZED = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
"""How long a string is, by its first byte."""


def pack(values: Mapping[str, Scalar]) -> bytes:
    """A map of at most 65535 values by their names, in the order of the names."""
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
    """The values of a map by their names.

    Raises:
        ValueError: the bytes are no map of numbers and strings.
    """
    try:
        return _unpacked(raw)
    except (struct.error, IndexError, UnicodeDecodeError):
        raise ValueError("its values cannot be told") from None


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
        raise ValueError("there is more behind its values")
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
    """An array of integers: how many (four bytes), a code of two bits for the width of each, then each of them, little
    end first, in one, two, four or eight bytes."""
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
    """The integers of `pack_integers`.

    Raises:
        ValueError: the bytes are not so many integers.
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
