"""`mindspore.mint.nn`: cells whose arguments stand as in PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

_LAYERS = "mspc.api.mint.nn.layers"
_SAME = {
    "ReLU": "ReLU", "ReLU6": "ReLU6", "SiLU": "SiLU", "Sigmoid": "Sigmoid", "Tanh": "Tanh", "Identity": "Identity",
    "MSELoss": "MSELoss", "L1Loss": "L1Loss", "BCELoss": "BCELoss",
    "ELU": "ELU", "GLU": "GLU", "Hardshrink": "HShrink", "Hardsigmoid": "HSigmoid", "Hardswish": "HSwish",
    "LogSigmoid": "LogSigmoid", "Mish": "Mish", "SELU": "SeLU", "Softshrink": "SoftShrink", "Tanhshrink": "Tanhshrink",
    "Threshold": "Threshold",
}  # fmt: skip
"""Cells of `nn` that `mint.nn` has with the same arguments."""


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name.startswith("__"):
        raise AttributeError(name)
    if name == "functional":
        return importlib.import_module("mspc.api.mint.nn.functional")
    if name in _SAME:
        return getattr(importlib.import_module("mspc.api.nn"), _SAME[name])
    if name not in _own():
        raise AttributeError(f"mint.nn has no cell {name!r}")
    return getattr(importlib.import_module(_LAYERS), name)


def __dir__() -> list[str]:
    return sorted({*_SAME, *_own(), "functional"})


def _own() -> list[str]:
    """What mint.nn.layers defines."""
    found = vars(importlib.import_module(_LAYERS)).items()
    return [name for name, value in found if getattr(value, "__module__", None) == _LAYERS and name[0] != "_"]
