"""Ranks whose programs are equal but for their own numbers: each such program stands in the page once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_NODE = re.compile(r"^  %(\d+)")
_OWN = re.compile(r"""^rank : .*$|group: "[^"]*"(?:, )?|rank_list: (?:\([^()]*\)|[\d:]+)(?:, )?""", re.MULTILINE)
"""What says which rank a program is of: its number, and the groups that it is in."""
_FIELDS = re.compile(r" primitive_attrs: \{((?:[^{}]|\{[^{}]*\})*)\}|value=([^)]*)")
"""Fields of operators and constants, which may count from where a rank's slice begins."""
_OPERANDS = re.compile(r"(?<= = )(\w+)\(((?:%[\w.\[\]$/-]+(?:, )?)+)\)")
"""Operands that are no constants. Exchanges order what they send by the ranks that it goes to."""
_NEXT_FIELD = re.compile(r", (?=\w+: )")
LISTED = 64
"""Ranks whose own numbers the page holds."""


@dataclass
class Kind:
    """Ranks with equal programs. first: the one whose text stands for all. own: of nodes whose line is not the same on
    all, fields and operands by name on the first and on those that differ from it."""

    first: int
    text: str
    ranks: list[int] = field(default_factory=list[int])
    own: dict[int, dict[int, Mapping[str, str]]] = field(default_factory=dict[int, dict[int, Mapping[str, str]]])

    def differences(self) -> dict[int, dict[int, str]]:
        """By node what ranks have of their own, as text, of those fields that are not the same on all."""
        found: dict[int, dict[int, str]] = {}
        for node, noted in sorted(self.own.items()):
            rows = {rank: noted.get(rank, noted[self.first]) for rank in self.ranks[:LISTED]}
            names = dict.fromkeys(name for row in rows.values() for name in row)
            differing = [name for name in names if len({row.get(name) for row in rows.values()}) > 1]
            if differing:
                found[node] = {
                    rank: ", ".join(f"{name}: {row[name]}" for name in differing if name in row)
                    for rank, row in rows.items()
                }
        return found


def kinds_of(texts: Iterable[tuple[int, str]]) -> list[Kind]:
    """The kinds of ranks, by (rank, text of its program). Of every kind one text is kept."""
    found: dict[bytes, Kind] = {}
    exact: dict[bytes, bytes] = {}
    for rank, text in texts:
        without_groups = _OWN.sub("", text)
        alike = _OPERANDS.sub(_sorted_operands, _FIELDS.sub("", without_groups))
        key = hashlib.sha256(alike.encode()).digest()
        digest = hashlib.sha256(without_groups.encode()).digest()
        kind = found.setdefault(key, Kind(rank, text))
        if exact.setdefault(key, digest) != digest and len(kind.ranks) < LISTED:
            _note(kind, rank, text)
        kind.ranks.append(rank)
    return list(found.values())


def _sorted_operands(found: re.Match[str]) -> str:
    return f"{found[1]}({', '.join(sorted({*found[2].split(', ')}))})"


def _note(kind: Kind, rank: int, text: str) -> None:
    """Note the lines of a rank that differ from those of the kind's first by more than groups."""
    for ours, theirs in zip(kind.text.splitlines(), text.splitlines(), strict=False):
        node = _NODE.match(ours)
        if node is None or ours == theirs:
            continue
        first, own = _numbers(ours), _numbers(theirs)
        if first != own:
            kind.own.setdefault(int(node[1]), {kind.first: first})[rank] = own


def _numbers(line: str) -> dict[str, str]:
    """The fields, operands and constants of a node's line."""
    plain = _OWN.sub("", line)
    found: dict[str, str] = {}
    for fields, value in _FIELDS.findall(plain):
        if not fields:
            found["value"] = value
        for item in _NEXT_FIELD.split(fields) if fields else ():
            name, _, text = item.partition(": ")
            found[name] = text.rstrip(", ")
    operands = _OPERANDS.search(plain)
    return found | ({"operands": operands[2]} if operands else {})


def ranges(ranks: Sequence[int]) -> list[list[int]]:
    """Ranks as [first, last, step] of runs, so that thousands take no room."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and found[-1][0] == found[-1][1]:
            found[-1][1:] = [rank, rank - found[-1][0]]
        elif found and rank - found[-1][1] == found[-1][2]:
            found[-1][1] = rank
        else:
            found.append([rank, rank, 1])
    return found


def own_facts(kinds: Sequence[Kind]) -> list[Mapping[str, object]]:
    """The kinds as the page holds them; number k is the program of graph k."""
    return [
        {"graph": i, "ranks": ranges(kind.ranks), "count": len(kind.ranks), "own": kind.differences()}
        for i, kind in enumerate(kinds)
    ]
