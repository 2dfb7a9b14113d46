"""Writing of attribute values, strings, layouts and constants in the text form."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, cast

import numpy as np

from mspc.ir.graph import Constant
from mspc.ir.layout import Layout, NamedLayout
from mspc.ir.opaque import GraphReference, Symbol
from mspc.ir.types import DType, OpaqueType, TensorType, TupleType, real_of

LONGEST_PLAIN_LIST = 64
"""A longer list of equally spaced integers is written start:stop:step."""
LARGEST_PLAIN_TENSOR = 16
"""A larger constant with equal elements is written as that one element."""

_WORD = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_NAME = re.compile(r"[\w.\-/\[\]$]+\Z")
_SYMBOL = re.compile(r"[A-Za-z_][\w.\[\]]*\Z", re.ASCII)
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "{}()<>,"}
"""Characters that are escaped in names, so that a bracket in the text always is structure."""
RESERVED = frozenset({"true", "false", "None", "inf", "nan", "none"})


def quoted(text: str) -> str:
    """Return the text in double quotes, on one line, with the escapes of JSON."""
    plain = encode_basestring(text)
    return plain if plain.isprintable() else encode_basestring_ascii(text)


@lru_cache(maxsize=1 << 16)
def name_text(name: str) -> str:
    """Return the text of a name: bare if it consists of letters, digits and `_ . - / [ ] $`, else quoted."""
    if _NAME.match(name):
        return name
    return quoted(name).translate(_ESCAPES)


@lru_cache(maxsize=1 << 12)
def key_text(key: str) -> str:
    """Return the text of an attribute's key: bare if it is a word, else quoted."""
    return key if _WORD.match(key) else quoted(key)


def value_text(value: Any) -> str:
    """Return the text of an attribute's value; it reads back to an equal value. Raise TypeError if values of this kind
    have no text form."""
    writer = _WRITERS.get(cast("type[Any]", type(value)))
    if writer is not None:
        return writer(value)
    if isinstance(value, np.generic):
        return value_text(value.item())
    for kind, text in _WRITERS.items():
        if isinstance(value, kind):
            return text(value)
    raise TypeError(f"an attribute of type {type(value).__name__} has no text: {value!r}")


def _tuple_text(value: tuple[Any, ...] | list[Any]) -> str:
    if len(value) > LONGEST_PLAIN_LIST and all(type(v) is int for v in value) and (step := value[1] - value[0]):
        stop = value[0] + step * len(value)
        if tuple(value) == tuple(range(value[0], stop, step)):
            return f"{value[0]}:{stop}:{step}"
    return f"({', '.join([value_text(v) for v in value])})"


def _symbol_text(value: Symbol) -> str:
    if _SYMBOL.match(value.text) and value.text not in RESERVED:
        return value.text
    return f"`{quoted(value.text)}"


def _named_layout_text(value: NamedLayout) -> str:
    entries = (("device_matrix", value.device_matrix), ("tensor_map", value.tensor_map))
    names = ", ".join(name_text(name) for name in value.alias_name)
    return "{" + "".join(f"{k}: {value_text(v)}, " for k, v in entries) + f"alias_name: ({names})}}"


def _float_text(value: float) -> str:
    return repr(value) if math.isfinite(value) else str(value)


def _bool_text(value: bool) -> str:
    return "true" if value else "false"


_WRITERS: dict[type, Callable[[Any], str]] = {
    bool: _bool_text, int: str, float: _float_text, str: quoted, tuple: _tuple_text, list: _tuple_text,
    type(None): str, DType: str, NamedLayout: _named_layout_text, Layout: lambda layout: f"Layout{layout_text(layout)}",
    Symbol: _symbol_text, GraphReference: str, TensorType: str, TupleType: str, OpaqueType: str,
    Constant: lambda constant: constant_text(constant), np.ndarray: lambda array: constant_text(Constant(array)),
}  # fmt: skip


@lru_cache(maxsize=65536)
def layout_text(layout: Layout | None) -> str:
    """Return a layout's text, `(2, 4) [0, -] sum[1]`, or `none`."""
    return "none" if layout is None else str(layout)


def layouts_text(layouts: Any) -> str:
    """Return the text of one layout, or of several separated by `;`; an inner tuple is in parentheses."""
    if not isinstance(layouts, tuple):
        return layout_text(layouts)
    entries = cast("tuple[Any, ...]", layouts)
    return "; ".join(f"({layouts_text(e)})" if isinstance(e, tuple) else layout_text(e) for e in entries)


@lru_cache(maxsize=8192)
def type_text(type: Any) -> str:
    """Return the type's text, which is cached because networks repeat the same types."""
    return str(type)


LONG_TUPLE = 32
"""Elements of a tuple from which an operand's type is written as their number only."""


@lru_cache(maxsize=8192)
def operand_type_text(type: Any) -> str:
    """Return the text of an operand's type. A long tuple is written with its number of elements, `<Tuple of 90>`, since
    the line of the node that makes it has them all."""
    if isinstance(type, TupleType) and len(type.elements) >= LONG_TUPLE:
        return f"<Tuple of {len(type.elements)}>"
    return type_text(type)


def constant_text(constant: Constant) -> str:
    """Return `Tensor(shape=[2], dtype=Int32, value=[1, 2])`; all elements read back to the same bits."""
    array = constant.value
    tensor = constant.tensor_type
    shape = ", ".join(map(str, tensor.shape))
    flat = array.reshape(-1)
    is_alike = False
    if flat.size > LARGEST_PLAIN_TENSOR:
        raw = np.ascontiguousarray(flat).view(np.uint8).reshape(flat.size, -1)
        is_alike = bool((raw == raw[0]).all())
    if is_alike:
        value = element_text(flat[0], tensor.dtype)
    else:
        value = _nested_text([element_text(v, tensor.dtype) for v in flat], tensor.shape)
    return f"Tensor(shape=[{shape}], dtype={tensor.dtype}, value={value})"


def _nested_text(elements: list[str], shape: tuple[int, ...]) -> str:
    if not shape:
        return elements[0]
    if len(shape) == 1 or not elements:
        return f"[{', '.join(elements)}]"
    step = len(elements) // shape[0]
    rows = [elements[i : i + step] for i in range(0, len(elements), step)]
    return f"[{', '.join(_nested_text(row, shape[1:]) for row in rows)}]"


def element_text(element: Any, dtype: DType) -> str:
    """Return the shortest text of one element that reads back to the same bits: `nan:HEX` for an unusual NaN, and
    `1.0&-2.0` for the parts of a complex number."""
    if dtype.kind == "b":
        return _bool_text(bool(element))
    if dtype.is_complex:
        part = real_of(dtype)
        return f"{element_text(element.real, part)}&{element_text(element.imag, part)}"
    if dtype.kind != "f":
        return str(int(element))
    bits = element.tobytes()
    if element != element:
        return "nan" if bits == _canonical_nan(dtype) else f"nan:{bits[::-1].hex()}"
    text = _float_text(float(element)) if dtype.itemsize == 8 else _short_float_text(element)
    return text if dtype.numpy.type(float(text)).tobytes() == bits else _float_text(float(element))


@lru_cache(maxsize=8)
def _canonical_nan(dtype: DType) -> bytes:
    return dtype.numpy.type("nan").tobytes()


def _short_float_text(element: Any) -> str:
    text = str(element)
    if element.dtype.name != "bfloat16":
        return text
    for digits in range(1, 5):
        text = repr(float(f"{float(element):.{digits}g}"))
        if element.dtype.type(float(text)) == element:
            break
    return text
