"""`mindspore.mint.nn`: cells whose arguments stand as in PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

_SAME = {
    "ReLU": "ReLU", "ReLU6": "ReLU6", "SiLU": "SiLU", "Sigmoid": "Sigmoid", "Tanh": "Tanh", "Identity": "Identity",
    "MSELoss": "MSELoss", "L1Loss": "L1Loss", "BCELoss": "BCELoss",
}  # fmt: skip
"""Cells of `nn` that `mint.nn` has with the same arguments."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "functional":
        return importlib.import_module("mspc.api.mint.nn.functional")
    if name in _SAME:
        return getattr(importlib.import_module("mspc.api.nn"), _SAME[name])
    layers = importlib.import_module("mspc.api.mint.nn.layers")
    found = layers.__dict__.get(name)
    if getattr(found, "__module__", None) != layers.__name__:
        raise AttributeError(f"mint.nn has no cell {name!r}")
    return found
