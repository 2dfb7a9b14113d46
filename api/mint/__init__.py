"""`mindspore.mint`: functions whose arguments stand as in PyTorch."""

from __future__ import annotations

import functools
import importlib
from typing import Any

_FILES = ("functions", "drawn", "places")
_SAME = (
    "abs", "acos", "acosh", "addbmm", "addcdiv", "addcmul", "addmv", "arange", "arccos", "arccosh", "arcsin",
    "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_not", "bitwise_or", "bitwise_xor", "bmm", "broadcast_to", "ceil", "clamp", "cos", "cosh", "div",
    "divide", "dot", "dstack", "einsum", "eq", "equal", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "eye",
    "flip", "float_power", "floor", "floor_divide", "fmod", "full", "full_like", "gcd", "ge", "greater",
    "greater_equal", "gt", "hstack", "imag", "inverse", "isclose", "isfinite", "isinf", "isnan", "isneginf", "le",
    "lerp", "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp", "logaddexp2", "logical_and",
    "logical_not", "logical_or", "logical_xor", "logsumexp", "lt", "masked_fill", "masked_select", "maximum",
    "minimum", "mul", "nan_to_num", "ne", "neg", "negative", "nonzero", "not_equal", "ones_like",
    "permute", "polar", "pow", "ravel", "real", "reciprocal", "remainder", "reshape", "roll", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sinc", "sinh", "sqrt", "square", "swapaxes", "take", "tan", "tanh", "tile", "trace",
    "tril", "triu", "trunc", "unbind", "unique_consecutive", "where", "xlogy", "zeros", "zeros_like",
)  # fmt: skip
"""Functions of `ops` that `mint` has with the same arguments."""
_PARTS = ("nn", "optim", "distributed", "linalg", "special")


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name.startswith("__"):
        raise AttributeError(name)
    if name in _PARTS:
        return importlib.import_module(f"mspc.api.mint.{name}")
    if name in _SAME:
        return getattr(importlib.import_module("mspc.api.ops"), name)
    if name not in _own():
        raise AttributeError(f"mint has no function {name!r}")
    from mspc.api.ops.checked import checked

    return checked(f"mint.{name}", _own()[name])


def __dir__() -> list[str]:
    return sorted({*_SAME, *_own(), *_PARTS})


@functools.cache
def _own() -> dict[str, Any]:
    """What the files of mint define."""
    modules = [importlib.import_module(f"mspc.api.mint.{file}") for file in _FILES]
    found = [(module.__name__, *item) for module in modules for item in vars(module).items()]
    return {name: value for home, name, value in found if getattr(value, "__module__", "") == home and name[0] != "_"}
