"""Names that scripts import from MindSpore's private package `_extends`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["cell_attr_register"]


def cell_attr_register(fn: Any = None, attrs: Any = None) -> Callable[..., Any]:
    """Decorate `__init__`, bare or with arguments, without effect: the parts of a cell are read, not registered."""
    return fn if callable(fn) else lambda decorated: decorated
