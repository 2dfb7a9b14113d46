"""Attributes that an object has inside a context only."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def temporarily(owner: Any, **attributes: Any) -> Generator[None]:
    """Give an object these attributes inside the context, and its former ones after it."""
    before = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
