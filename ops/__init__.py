"""Operators. Each is one class with its types, sharding rule, gradient, kernel and samples."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Find a name of MindSpore's module `ops`, which has this module's name; scripts' names are in
    mindspore_api/ops."""
    return importlib.import_module("mspc.mindspore_api.alias").find_public("ops", name)


def __dir__() -> list[str]:
    return dir(importlib.import_module("mspc.mindspore_api.ops"))
