"""Constants of the text form: `Tensor(shape=[2], dtype=Float32, value=[0.5, 1])`."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

import numpy as np

from mspc.ir.graph import Constant
from mspc.ir.opaque import Symbol
from mspc.ir.text.limits import LARGEST_CONSTANT
from mspc.ir.text.source_text import Malformed, dtype_called
from mspc.ir.types import DType, real_of

_CONSTANT = re.compile(r"Tensor\(shape=\[(.*?)\], ?dtype=(\w+), ?value=(.*)\)\Z", re.DOTALL)
_ONE_NUMBER = r"(?:nan:[0-9a-f]+|-?(?:inf|nan|\d+(?:\.\d*)?(?:e[+-]?\d+)?))"
_CONSTANT_ELEMENT = re.compile(rf"(?:{_ONE_NUMBER}(?:&{_ONE_NUMBER})?|true|false)\Z")


@lru_cache(maxsize=4096)
def read_tensor(text: str) -> Constant | Symbol:
    """Return the constant of `Tensor(shape=[..], dtype=.., value=..)`; a Symbol if the value is shortened. Raise
    Malformed."""
    match = _CONSTANT.match(text)
    assert match is not None
    dims, name, value = match.groups()
    dtype = dtype_called(name)
    sizes = [d.strip() for d in dims.split(",") if d.strip()]
    if not all(d.isascii() and d.isdigit() and len(d) < 19 for d in sizes):
        raise Malformed(f"[{dims}] is no shape")
    shape = tuple(map(int, sizes))
    if math.prod(shape) > LARGEST_CONSTANT:
        raise Malformed(f"a constant of shape {shape} is too large for a file")
    if "..." in value or "\n" in value:
        return Symbol(" ".join(text.split()))
    elements = value.replace("[", " ").replace("]", " ").replace(",", " ").split()
    if value.count("[") != value.count("]") or not all(map(_CONSTANT_ELEMENT.match, elements)):
        raise Malformed(f"{value} is no value of a constant")
    fill = len(elements) == 1 and "[" not in value
    if not fill and len(elements) != math.prod(shape):
        size = math.prod(shape)
        raise Malformed(f"the constant has {len(elements)} elements, but its shape {shape} has {size}")
    return Constant(_array(elements, dtype, shape, fill))


def _array(elements: list[str], dtype: DType, shape: tuple[int, ...], fill: bool) -> Any:
    try:
        flat = np.array([_element(e, dtype) for e in elements], dtype=dtype.numpy)
    except (OverflowError, ValueError):
        raise Malformed(f"a value of the constant is no {dtype}") from None
    return np.broadcast_to(flat, shape).copy() if fill and shape else flat.reshape(shape)


def _element(text: str, dtype: DType) -> Any:
    if dtype.kind == "b":
        return {"true": True, "1": True, "false": False, "0": False}[text] if text in _BOOLS else _bad(text)
    if dtype.is_complex:
        parts = [_element(part, real_of(dtype)) for part in text.split("&")]
        return np.array(parts, real_of(dtype).numpy).view(dtype.numpy)[0] if len(parts) == 2 else _bad(text)
    if dtype.kind != "f":
        return int(text)
    if text.startswith("nan:"):
        raw = bytes.fromhex(text[4:])[::-1]
        if len(raw) != dtype.itemsize:
            raise ValueError(text)
        return np.frombuffer(raw, dtype.numpy)[0]
    return dtype.numpy.type(float(text))


_BOOLS = frozenset({"true", "false", "1", "0"})


def _bad(text: str) -> Any:
    raise ValueError(text)
