"""Reader and writer of MindSpore's `.ckpt` files: parameters by name as Protocol Buffers messages.

Format of MindSpore 2.10 (`mindspore.train.checkpoint_pb2`): `Checkpoint` has `Value`s in field 1; a `Value` has the
name in field 1 and a tensor in field 2; a tensor has its sizes in field 1, the name of its element type in field 2 and
its bytes in field 3. A tensor of more than 512 MiB is split into several consecutive values of one name. A text is a
"tensor" of type "str" in UTF-32. A file may end in `crc_num` and, in ten bytes, the CRC-32 of everything before it.
Tensors are located by their lengths; their bytes are read when needed.
"""

from __future__ import annotations

import math
import mmap
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mspc.checkpoint.files import CHUNK_BYTES, Files
from mspc.checkpoint.stored_tensors import Checkpoint, StoredSlice, TensorPieces, box_of_shape
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.files.parsing import reading
from mspc.ir.files.regular import check_regular
from mspc.ir.files.tensors import (
    BYTES,
    MAX_DIMENSIONS,
    WireField,
    fields,
    integers,
    put_head,
    put_integer,
    put_text,
    text,
)
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DTYPES, TensorType

MARK = b"crc_num"
TRAILER = len(MARK) + 10
MAX_IN_A_VALUE = 512 << 20
MAX_VALUES = 1 << 20
TEXT = "str"
VALUE, NAME, TENSOR, MAP = 1, 1, 2, 3
SIZES, TYPE, CONTENT = 1, 2, 3


@dataclass(frozen=True)
class Entry:
    """An entry to write: a tensor, whose values are generated when it is written, or a text."""

    name: str
    type: TensorType | None
    make: Callable[[], Any]


@dataclass
class _Value:
    """A tensor found in a file."""

    type: str
    sizes: tuple[int, ...]
    segments: list[tuple[int, int]]


def write_file(file: BinaryIO, entries: Sequence[Entry], crc_check: bool = False) -> None:
    """Write tensors and texts in order to an open file, with a final checksum if `crc_check`. Raise OSError, and
    MspcError for an invalid name."""
    crc = 0

    def put(data: Any) -> None:
        nonlocal crc
        file.write(data)
        if crc_check:
            crc = zlib.crc32(data, crc)

    for entry in entries:
        try:
            entry.name.encode()
        except UnicodeEncodeError:
            raise MspcError(f"a tensor called {entry.name!r} cannot be stored: its name is no text") from None
        if entry.type is None:
            content = str(entry.make()).encode("utf-32-le")
            put(_head(entry.name, TEXT, (0,), len(content)) + content)
            continue
        array = np.ascontiguousarray(np.asarray(entry.make(), entry.type.dtype.numpy))
        flat = array.reshape(-1).view(np.uint8)
        most = MAX_IN_A_VALUE // array.itemsize * array.itemsize
        for begin in range(0, max(1, flat.size), most):
            part = flat[begin : begin + most]
            put(_head(entry.name, entry.type.dtype.name, entry.type.shape, part.size))
            for first in range(0, part.size, CHUNK_BYTES):
                put(part[first : first + CHUNK_BYTES].data)
        del array, flat
    if crc_check:
        file.write(MARK + crc.to_bytes(10, "big"))


def _head(name: str, type: str, sizes: Sequence[int], length: int) -> bytes:
    """Return the bytes of a value before its content."""
    about = b"".join(put_integer(SIZES, n) for n in sizes) + put_text(TYPE, type) + put_head(CONTENT, length)
    tensor = put_head(TENSOR, len(about) + length) + about
    tag = put_text(NAME, name)
    return put_head(VALUE, len(tag) + len(tensor) + length) + tag + tensor


def open_file(path: Path, crc_check: bool = False) -> Checkpoint:
    """Open a file.

    crc_check: verify the checksum at its end; a file without one is rejected. Raise MspcError if the file is missing,
    damaged, or not MindSpore's.
    """
    with reading(path, "checkpoint", "is no checkpoint of MindSpore's format", code="E0601"):
        check_regular(path)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise ValueError("it is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                end = _checked_end(data, size, crc_check)
                values = _values(data, end)
                texts = {n: _text(data, v) for n, v in values.items() if v.type == TEXT}
    with reading(path, "checkpoint", "is damaged", damaged="E0116"):
        tensors = {name: _stored(name, value) for name, value in values.items() if value.type != TEXT}
    return Checkpoint(shown_path(path), Files([path], [size]), tensors, texts=texts)


def _checked_end(data: Any, size: int, crc_check: bool) -> int:
    """Return the end of the messages. Raise ValueError if the checksum after them is wrong or missing."""
    if size < TRAILER or data[size - TRAILER : size - TRAILER + len(MARK)] != MARK:
        if crc_check:
            raise ValueError("crc_check is asked for, and it ends without a checksum")
        return size
    end = size - TRAILER
    if crc_check:
        crc = 0
        for first in range(0, end, CHUNK_BYTES):
            crc = zlib.crc32(data[first : min(end, first + CHUNK_BYTES)], crc)
        wanted = int.from_bytes(data[end + len(MARK) : size], "big")
        if crc != wanted:
            raise ValueError(f"its CRC-32 is {crc:08x}, and {wanted:08x} was written")
    return end


def _values(data: Any, end: int) -> dict[str, _Value]:
    found: dict[str, _Value] = {}
    last = ""
    for count, value in enumerate(fields(data, 0, end)):
        if value.number != VALUE or value.kind != BYTES or count >= MAX_VALUES:
            raise ValueError(f"field {value.number} before byte {value.begin} is no value")
        name, part = _value(data, value)
        known = found.get(name)
        if known is None:
            found[name] = part
        elif last != name or (known.type, known.sizes) != (part.type, part.sizes):
            raise ValueError(f"it has {name!r} twice")
        else:
            known.segments += part.segments
        last = name
    return found


def _value(data: Any, value: WireField) -> tuple[str, _Value]:
    name, tensor = None, None
    for field in fields(data, value.begin, value.end):
        if field.number == NAME:
            name = text(data, field)
        elif field.number == TENSOR and field.kind == BYTES:
            tensor = field
        elif field.number == MAP:
            raise ValueError("it holds a MapParameter, which mspc does not read")
    if name is None or tensor is None:
        raise ValueError(f"the value before byte {value.end} has no name or no tensor")
    sizes: list[int] = []
    type, content = "", None
    for field in fields(data, tensor.begin, tensor.end):
        if field.number == SIZES:
            sizes += integers(data, field)
        elif field.number == TYPE:
            type = text(data, field)
        elif field.number == CONTENT and field.kind == BYTES:
            content = (field.begin, field.end - field.begin)
    if content is None:
        raise ValueError(f"{name!r} has no content")
    return name, _Value(type, tuple(sizes), [content])


def _stored(name: str, value: _Value) -> TensorPieces:
    dtype = DTYPES.get(value.type)
    if dtype is None:
        raise ValueError(f"mspc does not know the element type {value.type!r} of {name!r}")
    held = sum(size for _, size in value.segments)
    shape = () if value.sizes == (0,) and held else value.sizes
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{name!r} has {len(shape)} dimensions; mspc reads {MAX_DIMENSIONS}")
    if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != held:
        raise ValueError(f"{name!r} of shape {shape} and type {dtype} has {held} bytes")
    return TensorPieces(TensorType(dtype, shape), (StoredSlice(box_of_shape(shape), 0, tuple(value.segments)),))


def _text(data: Any, value: _Value) -> str:
    return b"".join(data[begin : begin + size] for begin, size in value.segments).decode("utf-32-le")
