"""A summary has rows by kind of cell: this module says which kinds have one, in which order, under which names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from mspc.commands.report.tables import ELLIPSIS, clipped

MOST_KINDS = 14
LONGEST_NAME = 30
"""Characters of the name of a kind of cell."""
OUTSIDE = "-"
"""What no cell holds: the optimizer, a function of the script."""


def most_expensive_kinds(kinds: Iterable[str], weight: Callable[[str], tuple[int, ...]]) -> list[str]:
    """The kinds once, as they come; if there are more than MOST_KINDS those of most weight first."""
    found = [*dict.fromkeys(kinds)]
    if len(found) <= MOST_KINDS:
        return found
    chosen = {*sorted(found, key=lambda kind: tuple(-number for number in weight(kind)))[:MOST_KINDS]}
    return [kind for kind in found if kind in chosen] + [kind for kind in found if kind not in chosen]


def named_cells(kinds: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
    """Where all the kinds lie (" in Default/network", or ""), and each with the name that is shown: the first
    MOST_KINDS as a tree, those inside of others below them, then the rest as another."""
    order = {name: place for place, name in enumerate(kinds)}
    top = os.path.commonpath([kind for kind in kinds if kind]) if any(kinds) else ""
    top = os.path.dirname(top) if top in kinds else top
    shown = _tree(sorted(kinds[:MOST_KINDS], key=lambda kind: _place(kind, order)), top)
    shown += _tree(kinds[MOST_KINDS:], top)
    return f" in {top}" if top else "", [(kind, _short(name)) for kind, name in shown]


def _short(name: str) -> str:
    """A name in LONGEST_NAME characters: of a path its last part, which tells more than where it begins."""
    if len(name) > LONGEST_NAME and "/" in name:
        indent = name[: len(name) - len(name.lstrip())]
        name = f"{indent}{ELLIPSIS}/{name.rpartition('/')[2]}"
    return clipped(name, LONGEST_NAME)


def _place(kind: str, order: dict[str, int]) -> tuple[int, ...]:
    """Sorts a kind below those that it lies in: the first places of its ancestors, then its own."""
    parts = kind.split("/")
    ancestors = ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    return tuple(min(p for k, p in order.items() if k == a or k.startswith(f"{a}/")) for a in ancestors)


def _tree(kinds: Sequence[str], top: str) -> list[tuple[str, str]]:
    """The kinds with the names that are shown: indented, without those of the last one that holds it."""
    shown: list[tuple[str, str]] = []
    above: list[str] = []
    for kind in kinds:
        while above and not kind.startswith(f"{above[-1]}/"):
            above.pop()
        base = above[-1] if above else top
        name = kind[len(base) + 1 :] if base and kind.startswith(f"{base}/") else kind.rpartition("/")[2]
        shown.append((kind, "  " * len(above) + (name or "outside of cells")))
        if kind:
            above.append(kind)
    return shown
