"""The runtime: runs a rank's graph from its text file, plans memory, drives communicators and GPUs."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Find a public name of `mspc.runtime`. MindSpore has a module of this name too, and its names are in
    mindspore_api/runtime.py."""
    return importlib.import_module("mspc.mindspore_api.alias").find_public("runtime", name)


def __dir__() -> list[str]:
    return dir(importlib.import_module("mspc.mindspore_api.runtime"))
