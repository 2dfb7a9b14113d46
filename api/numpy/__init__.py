"""`mindspore.numpy`: functions that take NumPy's arguments and give MindSpore's element types."""

from __future__ import annotations

import importlib
from typing import Any

from mspc.api.index.module import answers


def _otherwise(name: str) -> Any:
    """`Tensor`, which scripts import from here and `dir()` does not show."""
    if name != "Tensor":
        raise AttributeError(f"numpy has no function {name!r}")
    return importlib.import_module("mspc.api.common.tensor").Tensor


__getattr__, __dir__ = answers("numpy", otherwise=_otherwise, modules=("fft",))
