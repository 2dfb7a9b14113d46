"""`mindspore.mint.nn`: cells whose arguments stand as in PyTorch."""

from __future__ import annotations

import functools
import importlib
from typing import Any

_LAYERS = ("mspc.api.mint.nn.layers", "mspc.api.mint.nn.images")
_SAME = {
    "ReLU": "ReLU", "Sigmoid": "Sigmoid", "Tanh": "Tanh", "Identity": "Identity",
    "CosineEmbeddingLoss": "CosineEmbeddingLoss", "SoftMarginLoss": "SoftMarginLoss",
    "MSELoss": "MSELoss", "L1Loss": "L1Loss", "BCELoss": "BCELoss",
    "Hardshrink": "HShrink", "Hardsigmoid": "HSigmoid", "Hardswish": "HSwish",
    "LogSigmoid": "LogSigmoid", "Mish": "Mish", "SELU": "SeLU", "Softshrink": "SoftShrink", "Tanhshrink": "Tanhshrink",
    "Flatten": "Flatten", "PixelShuffle": "PixelShuffle", "Upsample": "Upsample",
    "AdaptiveAvgPool1d": "AdaptiveAvgPool1d", "AdaptiveAvgPool2d": "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d": "AdaptiveAvgPool3d", "AdaptiveMaxPool2d": "AdaptiveMaxPool2d", "MaxUnpool2d": "MaxUnpool2d",
    "ZeroPad2d": "ZeroPad2d", "ConstantPad1d": "ConstantPad1d", "ConstantPad2d": "ConstantPad2d",
    "ConstantPad3d": "ConstantPad3d", "ReflectionPad1d": "ReflectionPad1d", "ReflectionPad2d": "ReflectionPad2d",
    "ReflectionPad3d": "ReflectionPad3d", "ReplicationPad1d": "ReplicationPad1d",
    "ReplicationPad2d": "ReplicationPad2d", "ReplicationPad3d": "ReplicationPad3d",
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
    return _own()[name]


def __dir__() -> list[str]:
    return sorted({*_SAME, *_own(), "functional"})


@functools.cache
def _own() -> dict[str, Any]:
    """What the modules of `_LAYERS` define."""
    found = [(home, pair) for home in _LAYERS for pair in vars(importlib.import_module(home)).items()]
    return {name: value for home, (name, value) in found
            if getattr(value, "__module__", None) == home and name[0] != "_" and isinstance(value, type)}  # fmt: skip
