"""Writes safetensors files one tensor at a time, so that no more than one is in memory.

The bytes are those of `safetensors.numpy.save`: the length of a header, the header as JSON, the tensors behind it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from mspc.ir.types import TensorType

CODES = {
    "UInt64": "U64", "Int64": "I64", "Float64": "F64", "Float32": "F32", "UInt32": "U32", "Int32": "I32",
    "BFloat16": "BF16", "Float16": "F16", "UInt16": "U16", "Int16": "I16", "Int8": "I8", "UInt8": "U8", "Bool": "BOOL",
}  # fmt: skip
"""The format's names of element types, in the order in which tensors stand in a file: wide ones first."""

ALIGNMENT = 8
AT_ONCE = 1 << 24
"""Bytes that are handed to the file together."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor to be written. make: gives its values, when its turn comes."""

    name: str
    type: TensorType
    make: Callable[[], Any]


def in_order(tensors: Sequence[StoredTensor]) -> list[StoredTensor]:
    """The tensors in the order in which they stand in a file, and are made."""
    order = list(CODES)
    return sorted(tensors, key=lambda tensor: (order.index(tensor.type.dtype.name), tensor.name))


def write_tensors(file: BinaryIO, tensors: Sequence[StoredTensor]) -> None:
    """Write the tensors to a file that is open for writing. Raises OSError."""
    ordered = in_order(tensors)
    header: dict[str, Any] = {}
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
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in ordered:
        _write_array(file, np.asarray(tensor.make(), tensor.type.dtype.numpy))


def _write_array(file: BinaryIO, array: Any) -> None:
    """The elements in C order; of an array that lies otherwise only a part is copied at a time."""
    if array.ndim and not array.flags.c_contiguous:
        rows = max(1, AT_ONCE // max(1, array[:1].nbytes))
        for start in range(0, len(array), rows):
            _write_array(file, np.ascontiguousarray(array[start : start + rows]))
        return
    flat = array.reshape(-1).view(np.uint8)
    for start in range(0, flat.size, AT_ONCE):
        file.write(flat[start : start + AT_ONCE].data)
