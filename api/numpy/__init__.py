"""`mindspore.numpy`: functions whose arguments stand as in NumPy, with MindSpore's element types."""

from __future__ import annotations

import importlib
import math
from typing import Any

_FILES = ("array_creations", "array_ops", "logic_ops", "math_ops", "math_products", "math_reductions", "places",
          "sequences")  # fmt: skip
_TYPES = {
    "bool_": "bool_", "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64", "uint8": "uint8",
    "uint16": "uint16", "uint32": "uint32", "uint64": "uint64", "float16": "float16", "float32": "float32",
    "float64": "float64", "int_": "int32", "float_": "float32", "uint": "uint64",
}  # fmt: skip
"""Element types; those without a number of bits have 32."""
_NUMBERS = {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan, "newaxis": None}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _NUMBERS:
        return _NUMBERS[name]
    if name in _TYPES:
        return getattr(importlib.import_module("mspc.api.common.dtype"), _TYPES[name])
    if name == "fft":
        return importlib.import_module(f"{__name__}.fft")
    if name == "Tensor":
        return importlib.import_module("mspc.api.common.tensor").Tensor
    from mspc.api.ops.checked import checked

    for file in _FILES:
        home = f"{__name__}.{file}"
        function = getattr(importlib.import_module(home), name, None)
        if getattr(function, "__module__", None) == home and not name.startswith("_"):
            return checked(f"numpy.{name}", function)
    raise AttributeError(f"numpy has no function {name!r}")


def __dir__() -> list[str]:
    found = {*_TYPES, *_NUMBERS, "fft"}
    for file in _FILES:
        home = f"{__name__}.{file}"
        members = vars(importlib.import_module(home)).items()
        found |= {name for name, value in members if getattr(value, "__module__", None) == home and name[0] != "_"}
    return sorted(found)
