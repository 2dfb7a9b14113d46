"""`mindspore.mint.special`: functions as in PyTorch's module of that name."""

from __future__ import annotations

import importlib
from typing import Any

_SAME = ("erfc", "exp2", "expm1", "log1p", "round", "sinc")


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name == "log_softmax":
        return importlib.import_module("mspc.api.mint.nn.functional").log_softmax
    if name not in _SAME:
        raise AttributeError(name if name.startswith("__") else f"mint.special has no function {name!r}")
    return getattr(importlib.import_module("mspc.api.ops"), name)


def __dir__() -> list[str]:
    return sorted((*_SAME, "log_softmax"))
