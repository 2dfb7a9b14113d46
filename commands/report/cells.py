"""Rows of a summary by kind of cell: selection, order and names of the kinds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from mspc.commands.report.tables import ELLIPSIS, clipped

MOST_KINDS = 14
LONGEST_NAME = 30
"""Most characters in the name of a kind of cell."""
OUTSIDE = "-"
"""Name for work outside of cells: the optimizer, a function of the script."""


def most_expensive_kinds(kinds: Iterable[str], weight: Callable[[str], tuple[int, ...]]) -> list[str]:
    """Return the distinct kinds in order; if there are more than MOST_KINDS, those of largest weight come first."""
    found = [*dict.fromkeys(kinds)]
    if len(found) <= MOST_KINDS:
        return found
    chosen = {*sorted(found, key=lambda kind: tuple(-number for number in weight(kind)))[:MOST_KINDS]}
    return [kind for kind in found if kind in chosen] + [kind for kind in found if kind not in chosen]


def named_cells(kinds: Sequence[str]) -> tuple[str, list[tuple[str, str]]]:
    """Return the common path of all kinds (" in Default/network", or ""), and each kind with its displayed name.

    The first MOST_KINDS are a tree, each kind below the one that contains it; the rest is a second tree.
    """
    order = {name: place for place, name in enumerate(kinds)}
    top = os.path.commonpath([kind for kind in kinds if kind]) if any(kinds) else ""
    top = os.path.dirname(top) if top in kinds else top

    def place(kind: str) -> tuple[int, ...]:
        """Return a key that sorts a kind after its ancestors: their first positions, then its own."""
        parts = kind.split("/")
        ancestors = ("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        return tuple(min(p for k, p in order.items() if k == a or k.startswith(f"{a}/")) for a in ancestors)

    shown: list[tuple[str, str]] = []
    for kind, name in [*_tree(sorted(kinds[:MOST_KINDS], key=place), top), *_tree(kinds[MOST_KINDS:], top)]:
        if len(name) > LONGEST_NAME and "/" in name:  # the last part of a path identifies it best
            indent = name[: len(name) - len(name.lstrip())]
            name = f"{indent}{ELLIPSIS}/{name.rpartition('/')[2]}"
        shown.append((kind, clipped(name, LONGEST_NAME)))
    return f" in {top}" if top else "", shown


def _tree(kinds: Sequence[str], top: str) -> list[tuple[str, str]]:
    """Return the kinds with their displayed names: indented, without the path of the nearest ancestor listed."""
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
