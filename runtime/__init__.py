"""Runs a rank's graph from its text file: executor, memory plan, communicators, GPUs."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """MindSpore has a module of this name too: what scripts know of `mspc.runtime` stands in api/runtime.py."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(importlib.import_module("mspc.api.runtime"), name)
