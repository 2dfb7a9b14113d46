"""This module says how often the process of a command looks for garbage, and among which objects."""

from __future__ import annotations

import gc

NEW_OBJECTS = 100_000
"""New objects after which a command looks for garbage among them: nearly all that a compile makes stays until its end,
and to look again after every 700, as Python does, takes a twentieth of it."""


def look_rarely() -> None:
    """Look for garbage after so many new objects from now on."""
    gc.set_threshold(NEW_OBJECTS)


def leave_out_loaded() -> None:
    """Leave what is loaded by now out of every search for garbage, that at the end of the process among them, where the
    process is the command's own."""
    if gc.get_threshold()[0] == NEW_OBJECTS:
        gc.freeze()
