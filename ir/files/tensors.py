"""The wire format of Protocol Buffers, as far as files of MindSpore need it, with every length checked; and safetensors
files.

Source: the Protocol Buffers encoding guide. A message is a sequence of fields; each begins with its number and kind as
a variable-length integer. Kinds: 0 a variable-length integer, 1 eight bytes, 2 a length and that many bytes, 5 four
bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.parsing import parsed_json
from mspc.ir.files.regular import check_regular
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DTYPES, TensorType

LONGEST = 10
"""Most bytes of a variable-length integer of 64 bits."""
VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class WireField:
    """A field: its number, its kind, its integer, and the span of its bytes."""

    number: int
    kind: int
    value: int
    begin: int
    end: int


def fields(data: Any, begin: int, end: int) -> Iterator[WireField]:
    """Yield the fields of the message in the bytes from `begin` to `end` of `data`, which can be anything indexable.
    Raise ValueError if the bytes are no message."""
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
    """Return (integer, the position after it). Raise ValueError if it is cut off or too long."""
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
    """Return an unsigned integer of 64 bits as a signed one."""
    return value - (1 << 64) if value >> 63 else value


def text(data: Any, field: WireField) -> str:
    """Return the text of a field. Raise ValueError if it is no text."""
    if field.kind != BYTES:
        raise ValueError(f"field {field.number} is no text")
    return bytes(data[field.begin : field.end]).decode()


def integers(data: Any, field: WireField) -> list[int]:
    """Return the integers of a repeated field, packed or not. Raise ValueError if it holds no integers."""
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
    """Return a variable-length integer; a negative one as 64 bits."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def put_integer(number: int, value: int) -> bytes:
    """Return a field with an integer."""
    return put_varint(number << 3 | VARINT) + put_varint(value)


def put_head(number: int, size: int) -> bytes:
    """Return the number, the kind and the length before the bytes of a field."""
    return put_varint(number << 3 | BYTES) + put_varint(size)


def put_bytes(number: int, data: bytes) -> bytes:
    """Return a field with bytes."""
    return put_head(number, len(data)) + data


def put_text(number: int, value: str) -> bytes:
    """Return a field with text."""
    return put_bytes(number, value.encode())


CODES = {
    "UInt64": "U64", "Int64": "I64", "Float64": "F64", "Complex64": "C64", "Float32": "F32",
    "UInt32": "U32", "Int32": "I32",
    "BFloat16": "BF16", "Float16": "F16", "UInt16": "U16", "Int16": "I16", "Int8": "I8", "UInt8": "U8", "Bool": "BOOL",
    "Float8E4M3": "F8_E4M3", "Float8E5M2": "F8_E5M2",
}  # fmt: skip
"""The names of element types in safetensors, in the order of tensors in a file: wide types first."""

ABOUT_FILE = "__metadata__"
"""The entry of a header with metadata in place of a tensor."""
LONGEST_HEADER = 100_000_000
"""Most bytes of a header, by the format."""
MAX_DIMENSIONS = 32
"""Most dimensions of a tensor in a file; NumPy allows 64."""
ALIGNMENT = 8
AT_ONCE = 1 << 24
"""Most bytes per write to a file."""
IN_MEMORY = 1 << 26
"""Most bytes of a tensor that are made at once, if it can be made in parts."""


class Writer(Protocol):
    """Object that bytes can be written to."""

    def write(self, data: Any, /) -> object: ...


@dataclass(frozen=True)
class StoredTensor:
    """A tensor to be written.

    make: returns its values, called when it is written. part: returns the values of a box of it, if it can be made in
    parts.
    """

    name: str
    type: TensorType
    make: Callable[[], Any]
    part: Callable[[tuple[slice, ...]], Any] | None = None

    def pieces(self) -> Iterator[Any]:
        """Yield its values in C order: one array, or blocks of rows that are made one after the other."""
        shape, dtype = self.type.shape, self.type.dtype.numpy
        if self.part is None or self.type.nbytes <= IN_MEMORY or not shape:
            yield np.asarray(self.make(), dtype)
            return
        rows = max(1, IN_MEMORY * shape[0] // self.type.nbytes)
        for first in range(0, shape[0], rows):
            box = slice(first, min(first + rows, shape[0])), *(slice(0, n) for n in shape[1:])
            yield np.asarray(self.part(box), dtype)


def in_order(tensors: Sequence[StoredTensor]) -> list[StoredTensor]:
    """Return the tensors in the order in which they are made and written. Raise MspcError for an element type that
    the format does not have."""
    order = list(CODES)
    for tensor in tensors:
        if tensor.type.dtype.name not in CODES:
            raise MspcError(f"{tensor.name!r} is {tensor.type.dtype}, which no safetensors file can hold")
    return sorted(tensors, key=lambda tensor: (order.index(tensor.type.dtype.name), tensor.name))


def write_tensors(file: BinaryIO, tensors: Sequence[StoredTensor]) -> None:
    """Write the tensors to a file that is open for writing. Raise OSError if that fails, and MspcError for a name or
    element type that the format cannot hold."""
    ordered = in_order(tensors)
    file.write(header_of(ordered))
    for tensor in ordered:
        for piece in tensor.pieces():
            write_array(file, piece)


def header_of(ordered: Sequence[StoredTensor], about: Mapping[str, str] | None = None) -> bytes:
    """Return the header of a file, with its length in front. Raise MspcError for a name that the format cannot hold."""
    for tensor in ordered:
        try:
            tensor.name.encode()
        except UnicodeEncodeError:
            raise MspcError(f"a tensor called {tensor.name!r} cannot be stored: its name is no text") from None
        if tensor.name == ABOUT_FILE:
            message = f"a tensor called {tensor.name!r} cannot be stored: the format keeps that name for itself"
            raise MspcError(message)
    header: dict[str, Any] = {ABOUT_FILE: dict(about)} if about else {}
    offset = 0
    for tensor in ordered:
        type = tensor.type
        end = offset + type.nbytes
        header[tensor.name] = {
            "dtype": CODES[type.dtype.name], "shape": list(type.shape), "data_offsets": [offset, end],
        }  # fmt: skip
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def write_array(file: Writer, array: Any, at_once: int = AT_ONCE) -> None:
    """Write the elements in C order. An array with another memory order is copied in parts of `at_once` bytes."""
    if array.ndim and not array.flags.c_contiguous:
        rows = max(1, at_once // max(1, array[:1].nbytes))
        for start in range(0, len(array), rows):
            write_array(file, np.ascontiguousarray(array[start : start + rows]), at_once)
        return
    flat = array.reshape(-1).view(np.uint8)
    for start in range(0, flat.size, at_once):
        file.write(flat[start : start + at_once].data)


class TensorFile:
    """A safetensors file for reading. The header is checked at once; tensors are read on demand.

    header: the bytes before the tensors. about: the metadata in the header. size: bytes of the file. Raise
    OSError if it cannot be read, ValueError if it is no safetensors file, or is damaged, MspcError if it is no regular
    file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        check_regular(path)
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            begin = file.read(8)
            length = int.from_bytes(begin, "little")
            if size < 8 or length > min(size - 8, LONGEST_HEADER):
                raise ValueError("its header is longer than the file" if size >= 8 else "it is too short")
            text = file.read(length)
            self.header = begin + text
            self._entries, self.about = _read_header(text, size - 8 - length)
        self._start = 8 + length
        self.size = size

    @property
    def names(self) -> list[str]:
        """The names of the tensors, sorted."""
        return sorted(self._entries)

    def type(self, name: str) -> TensorType:
        """Return the type of a tensor. Raise KeyError if there is none of this name."""
        return self._entries[name][0]

    def place(self, name: str) -> int:
        """Return the byte of the file at which a tensor begins. Raise KeyError if there is none of this name."""
        return self._start + self._entries[name][1]

    def read(self, name: str, where: tuple[slice, ...] = ()) -> Any:
        """Return a tensor, or the part in `where`, as a new array. Raise OSError if it cannot be read."""
        type, offset = self._entries[name]
        if not type.size:
            return np.empty(type.shape, type.dtype.numpy)[where].copy()
        mapped = np.memmap(self._path, type.dtype.numpy, "r", self._start + offset, type.shape or (1,))
        return np.array(np.asarray(mapped).reshape(type.shape)[where], order="C")


def _read_header(text: bytes, size: int) -> tuple[dict[str, tuple[TensorType, int]], dict[str, str]]:
    """Return the type and first byte of every tensor, and the metadata. Raise ValueError if the header is damaged or
    the tensors do not fill the `size` bytes after it without gaps."""
    try:
        header = parsed_json(text)
    except ValueError as error:
        raise ValueError(f"its header cannot be read: {error}") from None
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    entries = cast(dict[str, Any], header)
    about = entries.pop(ABOUT_FILE, None)
    found: dict[str, tuple[TensorType, int]] = {}
    places: list[tuple[int, int, str]] = []
    for name, entry in entries.items():
        type, begin, end = _read_entry(name, entry)
        found[name] = (type, begin)
        places.append((begin, end, name))
    at = 0
    for begin, end, name in sorted(places):
        if begin != at:
            raise ValueError(f"tensor {name!r} begins at byte {begin}, not at {at}")
        at = end
    if at != size:
        raise ValueError(f"its tensors take {at} bytes, and {size} are there")
    if about is None:
        return found, {}
    if not isinstance(about, dict) or not all(isinstance(value, str) for value in cast(dict[str, Any], about).values()):
        raise ValueError(f"its {ABOUT_FILE} holds something else than texts")
    return found, cast(dict[str, str], about)


def _read_entry(name: str, entry: Any) -> tuple[TensorType, int, int]:
    """Return (type, first byte, byte after the last) of a tensor. Raise ValueError if the entry is damaged."""
    place = f"tensor {name!r}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{place}: its entry does not have dtype, shape and data_offsets")
    fields = cast(dict[str, Any], entry)
    shape, offsets = _sizes(fields["shape"]), _sizes(fields["data_offsets"])
    if shape is None:
        raise ValueError(f"{place}: its shape is {fields['shape']!r:.100}")
    if offsets is None or len(offsets) != 2:
        raise ValueError(f"{place}: its data_offsets are {fields['data_offsets']!r:.100}")
    code = fields["dtype"]
    dtype = next((DTYPES[name] for name, known in CODES.items() if known == code), None)
    if dtype is None:
        known = ", ".join(CODES.values())
        raise ValueError(f"{place}: mspc does not know its element type {code!r}; known are {known}")
    type = TensorType(dtype, shape)
    begin, end = offsets
    if end - begin != type.nbytes:
        raise ValueError(f"{place}: {type} takes {type.nbytes} bytes, and its data_offsets are {list(offsets)!r}")
    return type, begin, end


def _sizes(value: Any) -> tuple[int, ...] | None:
    """Return a list of integers from 0 on as a tuple, at most MAX_DIMENSIONS of them; None for any other value."""
    if not isinstance(value, list):
        return None
    numbers = cast(list[Any], value)
    fits = len(numbers) <= MAX_DIMENSIONS and all(type(n) is int and 0 <= n < 1 << 62 for n in numbers)
    return tuple(numbers) if fits else None
