"""Ranks whose programs are equal but for their own numbers: each such program stands in the page once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_NODE = re.compile(r"^  %(\d+)")
_OWN = re.compile(r"""^rank : .*$|group: "[^"]*"(?:, )?|rank_list: (?:\([^()]*\)|[\d:]+)(?:, )?""", re.MULTILINE)
"""What says which rank a program is of: its number, and the groups that it is in."""
_FIELDS = re.compile(r"primitive_attrs: \{(?:[^{}]|\{[^{}]*\})*\}|value=[^)]*\)")
"""Fields of operators and constants, which may count from where a rank's slice begins."""
LISTED = 64
"""Ranks whose own numbers the page holds."""


@dataclass
class Kind:
    """Ranks with equal programs. first: the one whose text stands for all. own: by node what its line holds that is not
    the same on all, for every rank."""

    first: int
    text: str
    ranks: list[int] = field(default_factory=list[int])
    own: dict[int, dict[int, str]] = field(default_factory=dict[int, dict[int, str]])


def kinds_of(texts: Iterable[tuple[int, str]]) -> list[Kind]:
    """The kinds of ranks, by (rank, text of its program). Of every kind one text is kept."""
    found: dict[bytes, Kind] = {}
    plain: dict[bytes, bytes] = {}
    for rank, text in texts:
        without_groups = _OWN.sub("", text)
        key = hashlib.sha256(_FIELDS.sub("", without_groups).encode()).digest()
        exact = hashlib.sha256(without_groups.encode()).digest()
        kind = found.setdefault(key, Kind(rank, text))
        plain.setdefault(key, exact)
        if plain[key] != exact and len(kind.ranks) < LISTED:
            _note(kind, rank, text)
        kind.ranks.append(rank)
    return list(found.values())


def _note(kind: Kind, rank: int, text: str) -> None:
    """Note the lines of a rank that differ from those of the kind's first by more than groups."""
    for ours, theirs in zip(kind.text.splitlines(), text.splitlines(), strict=False):
        node = _NODE.match(ours)
        if node is None or ours == theirs:
            continue
        mine, other = (_numbers(line) for line in (ours, theirs))
        if mine != other:
            lines = kind.own.setdefault(int(node[1]), {kind.first: mine})
            lines[rank] = other


def _numbers(line: str) -> str:
    return "; ".join(_FIELDS.findall(_OWN.sub("", line)))


def ranges(ranks: Sequence[int]) -> list[list[int]]:
    """Ranks as [first, last, step] of runs, so that thousands take no room."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and (found[-1][0] == found[-1][1] or rank - found[-1][1] == found[-1][2]):
            if found[-1][0] == found[-1][1]:
                found[-1][2] = rank - found[-1][0]
            found[-1][1] = rank
        else:
            found.append([rank, rank, 1])
    return found


def own_facts(kinds: Sequence[Kind]) -> list[Mapping[str, object]]:
    """The kinds as the page holds them; number k is the program of graph k."""
    return [
        {"graph": i, "ranks": ranges(kind.ranks), "count": len(kind.ranks), "own": kind.own}
        for i, kind in enumerate(kinds)
    ]
