"""What to write instead of a name that mspc lacks."""

from __future__ import annotations

import difflib
from functools import cache

from mspc.api.absent import REASONS, REPLACEMENTS
from mspc.doctor.public import Instance, PublicModule, names_in, places_of
from mspc.ir.nearest import nearest

ALIKE = 0.8
"""Names that are less alike are not offered: most names that mspc lacks are no slips."""
_OF_OPERATORS = {name.partition(".")[2]: value for name, value in REPLACEMENTS.items() if name.startswith("ops.")}


@cache
def instead_of(base: PublicModule | Instance | None, name: str, full: str) -> str:
    """A known replacement or reason, else where the name stands, else names that are like it; "" without any.

    base: where the script looks for it. full: what the script calls it, in full.
    """
    first, _, path = full.partition(".")
    for known in _beginnings(path):
        if known in REPLACEMENTS:
            return f"write {first}.{REPLACEMENTS[known]}"
        if known in REASONS:
            return REASONS[known]
    if isinstance(base, Instance):
        return _alike(name, [each for each in dir(base.cls) if not each.startswith("_")])
    if base is None:
        return ""
    if name in _OF_OPERATORS and path.startswith("ops."):
        return f"write {first}.{_OF_OPERATORS[name]}"
    elsewhere = [place for place in places_of(name, first) if place != full]
    return f"write {elsewhere[0]}" if elsewhere else _alike(name, names_in(base))


def _alike(name: str, known: list[str]) -> str:
    found = [each for each in nearest(name, known) if _ratio(name, each) >= ALIKE]
    return f"did you mean {' or '.join(found)}?" if found else ""


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.casefold(), other.casefold()).ratio()


def _beginnings(path: str) -> list[str]:
    """`a.b.c`, `a.b`, `a`."""
    parts = path.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
