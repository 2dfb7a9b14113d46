"""The modules by their names, with what gives the tensors that they are called with."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

BATCH = 8
FILES = ("attentions", "layers", "loops", "places")


class PlainModule(NamedTuple):
    """A class, what gives the tensors that it is called with, and the type in which it is compared."""

    kind: Callable[[], Any]
    data: Callable[[], dict[str, Any]]
    dtype: str


MODULES: dict[str, PlainModule] = {}
"""Filled when the files beside this one are loaded."""


def module(data: Callable[[], dict[str, Any]], dtype: str = "float32") -> Callable[[Any], Any]:
    """Enters a class of a module."""

    def enter(kind: Any) -> Any:
        MODULES[kind.__name__] = PlainModule(kind, data, dtype)
        return kind

    return enter


def built(name: str) -> tuple[Any, dict[str, Any]]:
    """The module, in training mode, and the tensors that it is called with."""
    import torch

    torch.manual_seed(0)
    found = modules()[name]
    return found.kind().train(), found.data()


def modules() -> dict[str, PlainModule]:
    """All of them."""
    for file in FILES:
        importlib.import_module(f"benchmarks.pytorch.plain.{file}")
    return MODULES
