"""`mindspore.mint`: functions whose arguments stand as in PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

_FUNCTIONS = "mspc.api.mint.functions"
_SAME = (
    "abs", "acos", "acosh", "addcdiv", "addcmul", "addmv", "arange", "arccos", "arccosh", "arcsin", "arcsinh",
    "arctan", "arctan2", "arctanh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_or",
    "bitwise_xor", "bmm", "broadcast_to", "ceil", "clamp", "cos", "cosh", "div", "divide", "dot", "einsum", "eq",
    "equal", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "eye", "flip", "float_power", "floor", "fmod", "frac",
    "full", "full_like", "ge", "greater", "greater_equal", "gt", "hstack", "isclose", "isfinite", "isinf", "isnan",
    "isneginf", "le", "lerp", "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp", "logaddexp2",
    "logical_and", "logical_not", "logical_or", "logical_xor", "logsumexp", "lt", "masked_fill", "maximum", "minimum",
    "mul", "nan_to_num", "ne", "neg", "negative", "nonzero", "not_equal", "ones", "ones_like", "permute", "pow",
    "reciprocal", "remainder", "reshape", "roll", "round", "rsqrt", "sigmoid", "sign", "sin", "sinc", "sinh", "sqrt",
    "square", "swapaxes", "tan", "tanh", "tile", "trace", "tril", "triu", "trunc", "unbind", "where", "xlogy", "zeros",
    "zeros_like",
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
