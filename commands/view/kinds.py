"""The page shows which ranks are of one kind, and what each has of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mspc.commands.facts.files import program_text
from mspc.commands.facts.kinds import FIELDS, OPERANDS, OWN, EquivalentRanks
from mspc.ir.text.source_text import name_of
from mspc.runtime.program import Program

_GRAPH = re.compile(r"subgraph @(.+)\([^()]*\) \{\Z")
_NODE = re.compile(r"^  %(\d+)")
_NEXT_FIELD = re.compile(r", (?=\w+: )")
LISTED = 64
"""Ranks whose own numbers the page holds."""


_Place = tuple[str, int]
"""A graph's name as the text has it, and a node of it."""


def own_numbers(program: Program, kind: EquivalentRanks) -> dict[str, dict[int, dict[int, str]]]:
    """By the name of a graph and node what ranks of a kind have of their own, as text, of those fields, operands and
    constants that are not the same on all. Raises MspcError as `program_text` does."""
    own: dict[_Place, dict[int, Mapping[str, str]]] = {}
    ranks = [rank for rank in kind.ranks if rank in program.execute][:LISTED]
    plain = OWN.sub("", kind.text)
    for rank in ranks[1:]:
        text = program_text(program, rank)
        if OWN.sub("", text) != plain:
            _note(own, kind.text, ranks[0], text, rank)
    found: dict[str, dict[int, dict[int, str]]] = {}
    for (graph, node), noted in sorted(own.items()):
        rows = {rank: noted.get(rank, noted[ranks[0]]) for rank in ranks}
        names = dict.fromkeys(name for row in rows.values() for name in row)
        differing = [name for name in names if len({row.get(name) for row in rows.values()}) > 1]
        if differing:
            found.setdefault(graph, {})[node] = {
                rank: ", ".join(f"{name}: {row[name]}" for name in differing if name in row)
                for rank, row in rows.items()
            }
    return found


def _note(own: dict[_Place, dict[int, Mapping[str, str]]], first_text: str, first: int, text: str, rank: int) -> None:
    """Note the lines of a rank that differ from those of the kind's first by more than groups."""
    graph = ""
    for ours, theirs in zip(first_text.splitlines(), text.splitlines(), strict=False):
        head = _GRAPH.match(ours)
        graph = name_of(head[1]) if head else graph
        node = _NODE.match(ours)
        if node is None or ours == theirs:
            continue
        there, here = _numbers(ours), _numbers(theirs)
        if there != here:
            own.setdefault((graph, int(node[1])), {first: there})[rank] = here


def _numbers(line: str) -> dict[str, str]:
    """The fields, operands and constants of a node's line."""
    plain = OWN.sub("", line)
    found: dict[str, str] = {}
    for fields, value in FIELDS.findall(plain):
        if not fields:
            found["value"] = value
        for item in _NEXT_FIELD.split(fields) if fields else ():
            name, _, text = item.partition(": ")
            found[name] = text.rstrip(", ")
    operands = OPERANDS.search(plain)
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


def kind_facts(program: Program, kinds: Sequence[EquivalentRanks]) -> list[Mapping[str, object]]:
    """The kinds as the page holds them; number k is the program of graph k. `own` is of its nodes by the name of their
    graph."""
    return [
        {"graph": i, "ranks": ranges(kind.ranks), "count": len(kind.ranks), "own": own_numbers(program, kind)}
        for i, kind in enumerate(kinds)
    ]
