"""The fields of a record have types and shapes, which say how a value of each is written and read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from mspc.data.mindrecord.packing import pack_integers, unpack_integers
from mspc.ir.late_dataclass import dataclass

TYPES = ("bytes", "string", "int32", "int64", "float32", "float64")
_NAME = re.compile(r"\w+", re.ASCII)


@dataclass(frozen=True)
class RecordField:
    """A field of records. type: one of TYPES. shape: of an array, with at most one -1; None for one value."""

    name: str
    type: str
    shape: tuple[int, ...] | None = None

    @property
    def is_blob(self) -> bool:
        """Whether it is in the pages of bytes, not among the values that the index may have."""
        return self.type == "bytes" or self.shape is not None

    @property
    def described(self) -> dict[str, Any]:
        return {"type": self.type} if self.shape is None else {"shape": list(self.shape), "type": self.type}

    def packed(self, value: Any) -> bytes:
        """A value of a blob, which `misfit` has seen."""
        if self.type == "bytes":
            return bytes(value)
        array = np.asarray(value)
        return pack_integers(array) if array.dtype.kind == "i" else array.tobytes()

    def array(self, raw: bytes) -> np.ndarray:
        """The value of a blob; bytes are one dimension of UInt8. Raises ValueError where the bytes are not of it."""
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
        """One value as an array. Raises ValueError where it is of another kind."""
        wanted = str if self.type == "string" else int if self.type.startswith("int") else (int, float)
        if not isinstance(value, wanted):
            raise ValueError(f"{self.name} is {value!r}, which is no {self.type}")
        try:
            return np.array(value, None if self.type == "string" else self.type)
        except OverflowError:
            raise ValueError(f"{self.name} is {value}, which is no {self.type}") from None

    def misfit(self, value: Any) -> str:
        """Why a value cannot be written; "" where it can."""
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
    """The fields of a schema `{name: {"type": type, "shape": shape}}`, in the order of their names.

    Raises:
        ValueError: it is none; the text says why.
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
