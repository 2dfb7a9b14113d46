"""`mindspore.mint`: functions whose arguments stand as in PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

_SAME = (
    "abs", "acos", "asin", "atan", "broadcast_to", "ceil", "clamp", "cos", "cosh", "div", "divide", "eq",
    "erf", "exp", "expm1", "eye", "flip", "floor", "full", "full_like", "ge", "greater", "greater_equal", "gt",
    "isfinite", "isinf", "isnan", "le", "less", "less_equal", "log", "log1p", "logical_and", "logical_not",
    "logical_or", "logical_xor", "lt", "masked_fill", "maximum", "minimum", "mul", "ne", "neg", "negative",
    "not_equal", "ones", "ones_like", "permute", "pow", "reciprocal", "reshape", "round", "rsqrt", "sigmoid", "sign",
    "sin", "sinh", "sqrt", "square", "swapaxes", "tan", "tanh", "tile", "tril", "triu", "trunc", "where", "zeros",
    "zeros_like", "bmm", "arange", "equal",
)  # fmt: skip
"""Functions of `ops` that `mint` has with the same arguments."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "nn":
        return importlib.import_module("mspc.api.mint.nn")
    if name in _SAME:
        return getattr(importlib.import_module("mspc.api.ops"), name)
    functions = importlib.import_module("mspc.api.mint.functions")
    found = functions.__dict__.get(name)
    if getattr(found, "__module__", None) != functions.__name__:
        raise AttributeError(f"mint has no function {name!r}")
    return found
