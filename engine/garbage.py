"""Settings of Python's garbage collection while graphs are compiled."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

NEW_OBJECTS = 250_000
"""Threshold of new objects between collections during a compile. Most objects live until its end; Python's default of
700 would take a fifth of the time."""


def collect_rarely() -> None:
    """Raise the garbage collection threshold to `NEW_OBJECTS`."""
    gc.set_threshold(NEW_OBJECTS)


@contextmanager
def collecting_rarely(wanted: bool) -> Generator[None]:
    """Raise the garbage collection threshold within the context if `wanted`, unless it is already as high or collection
    is off; several ranks in one process would restore each other's threshold."""
    before = gc.get_threshold()
    if not (wanted and 0 < before[0] < NEW_OBJECTS):
        yield
        return
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def freeze_loaded() -> None:
    """Exclude all loaded objects from garbage collection, including the one at exit. For processes that run one command
    only."""
    if gc.get_threshold()[0] == NEW_OBJECTS:
        gc.freeze()


@contextmanager
def frozen_garbage() -> Generator[None]:
    """Exclude all existing objects from garbage collection within the context."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
