"""This module says what to write instead of a name that mspc lacks."""

from __future__ import annotations

import difflib
from functools import cache

from mspc.api.index.absent import said_of
from mspc.doctor.public import Instance, PublicModule, names_in, places_of
from mspc.ir.diagnostics import nearest

ALIKE = 0.8
"""Names that are less alike are not offered: most names that mspc lacks are no slips."""


@cache
def instead_of(base: PublicModule | Instance | None, name: str, full: str) -> str:
    """A known replacement or reason, else where the name stands, else names that are like it; "" without any.

    base: where the script looks for it. full: what the script calls it, in full.
    """
    first, _, path = full.partition(".")
    known = said_of(path, f"{first}.")
    if known:
        return known
    if isinstance(base, Instance):
        return _alike(name, [each for each in dir(base.cls) if not each.startswith("_")])
    if base is None:
        return ""
    elsewhere = [place for place in places_of(name, first) if place != full]
    return f"write {elsewhere[0]}" if elsewhere else _alike(name, names_in(base))


def _alike(name: str, known: list[str]) -> str:
    found = [each for each in nearest(name, known) if _ratio(name, each) >= ALIKE]
    return f"did you mean {' or '.join(found)}?" if found else ""


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.casefold(), other.casefold()).ratio()
