"""`mindspore.mint`: functions whose arguments stand as in PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

_FUNCTIONS = "mspc.api.mint.functions"
_SAME = (
    "abs", "acos", "acosh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh",
    "atan", "atan2", "atanh", "bitwise_and", "bitwise_or", "bitwise_xor", "erfc", "fmod", "isclose", "lerp",
    "nan_to_num", "remainder", "xlogy", "broadcast_to", "ceil", "clamp", "cos", "cosh", "div", "divide", "eq",
    "erf", "erfinv", "exp", "expm1", "eye", "flip", "floor", "full", "full_like", "ge", "greater", "greater_equal",
    "gt", "isfinite", "isinf", "isnan", "le", "less", "less_equal", "log", "log1p", "logical_and", "logical_not",
    "logical_or", "logical_xor", "lt", "masked_fill", "maximum", "minimum", "mul", "ne", "neg", "negative",
    "not_equal", "ones", "ones_like", "permute", "pow", "reciprocal", "reshape", "round", "rsqrt", "sigmoid", "sign",
    "sin", "sinh", "sqrt", "square", "swapaxes", "tan", "tanh", "tile", "tril", "triu", "trunc", "where", "zeros",
    "zeros_like", "bmm", "arange", "equal", "einsum", "logsumexp", "nonzero", "roll", "unbind",
)  # fmt: skip
"""Functions of `ops` that `mint` has with the same arguments."""


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name.startswith("__"):
        raise AttributeError(name)
    if name in ("nn", "optim", "distributed"):
        return importlib.import_module(f"mspc.api.mint.{name}")
    if name in _SAME:
        return getattr(importlib.import_module("mspc.api.ops"), name)
    if name not in _own():
        raise AttributeError(f"mint has no function {name!r}")
    from mspc.api.ops.checked import checked

    return checked(f"mint.{name}", getattr(importlib.import_module(_FUNCTIONS), name))


def __dir__() -> list[str]:
    return sorted({*_SAME, *_own(), "nn", "optim", "distributed"})


def _own() -> list[str]:
    """What mint.functions defines."""
    found = vars(importlib.import_module(_FUNCTIONS)).items()
    return [name for name, value in found if getattr(value, "__module__", None) == _FUNCTIONS and name[0] != "_"]
