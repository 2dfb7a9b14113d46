"""This module replaces the contents of a folder while the folder stays: a mount point, or one that cannot be exchanged
with another.

The new contents come into the folder under the name of unfinished things, and the ending of that name says how far
things are: `.new`, they are being written; `.whole`, the old contents move away; `.ready`, the new ones move to their
names. Whatever is left half done is finished by the next who comes by. One file, the sign, is the first to leave and
the last to come, so that a folder that has it is complete.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from mspc.ir.files.temporary import UNFINISHED, held

PENDING = re.compile(UNFINISHED.pattern.removesuffix("new") + "(whole|ready)")
OLD = ".old"
"""Where the old contents go, in the folder with the new ones."""


def refill(place: Path, new: Path, sign: str) -> None:
    """Put the contents of the folder `new`, which this process holds, in the place of those of `place`. Both lie in one
    file system. Raises OSError."""
    (new / OLD).mkdir(exist_ok=True)
    renamed = place / f"{new.name.removesuffix('.new')}.whole"
    os.rename(new, renamed)
    _go_on(place, renamed, sign)


def finish_refill(place: Path, sign: str) -> None:
    """Finish what a process has begun that was killed. Raises OSError."""
    if not os.path.isdir(place):
        return
    for name in filter(PENDING.fullmatch, os.listdir(place)):
        with held(place / name) as mine:
            if mine:
                _go_on(place, place / name, sign)


def is_own_name(name: str) -> bool:
    """Whether `name` is that of something unfinished or of contents that are to come."""
    return bool(UNFINISHED.fullmatch(name) or PENDING.fullmatch(name))


def _go_on(place: Path, pending: Path, sign: str) -> None:
    if pending.suffix == ".whole":
        for name in sorted(os.listdir(place), key=lambda name: name != sign):
            if not is_own_name(name):
                os.rename(place / name, pending / OLD / name)
        ready = pending.with_suffix(".ready")
        os.rename(pending, ready)
        pending = ready
    for name in sorted(os.listdir(pending), key=lambda name: name == sign):
        if name != OLD:
            os.rename(pending / name, place / name)
    shutil.rmtree(pending, ignore_errors=True)
