"""This module says how often Python looks for garbage while graphs are compiled, and among which objects."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

NEW_OBJECTS = 250_000
"""New objects after which a compile looks for garbage among them: nearly all that it makes stays until its end, and to
look again after every 700, as Python does, takes a fifth of it."""


def look_rarely() -> None:
    """Look for garbage after so many new objects from now on."""
    gc.set_threshold(NEW_OBJECTS)


@contextmanager
def looking_rarely(wanted: bool) -> Generator[None]:
    """Collect garbage more rarely meanwhile if `wanted`, unless it is already collected as rarely, or never. If several
    ranks run in one process they would restore each other's threshold."""
    before = gc.get_threshold()
    if not (wanted and 0 < before[0] < NEW_OBJECTS):
        yield
        return
    gc.set_threshold(NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def leave_out_loaded() -> None:
    """Exclude all loaded objects from garbage collections, also from that at the end of the process, which must be the
    command's own."""
    if gc.get_threshold()[0] == NEW_OBJECTS:
        gc.freeze()


@contextmanager
def leaving_out_made() -> Generator[None]:
    """Exclude all present objects from garbage collections meanwhile."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
