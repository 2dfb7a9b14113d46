"""Kinds of ranks that are divided: a kind runs node by node with all of its ranks, and some may have to go on alone.

Ranks may have equal programs but for whom they meet, and one of them may wait for what another one does only later.
Where nothing goes on any more, a kind some of whose ranks could is divided, and the step begins again. So is one whose
ranks go different ways as the data say.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from mspc.ir.copies import copied_region
from mspc.ir.graph import Constant, Value
from mspc.verify.scale.kinds import RankKind

MOST_PARTS = 64
"""Into more parts a kind is not divided: something is wrong there."""


class Divided(Exception):
    """Ranks of a kind do not go on together. parts: their numbers."""

    def __init__(self, kind: RankKind, parts: Sequence[Sequence[int]]) -> None:
        super().__init__(f"ranks {list(map(list, parts))} do not go on together")
        self.kind, self.parts = kind, parts


def by_key(kind: RankKind, keys: Iterable[Hashable]) -> list[list[int]]:
    """The ranks of a kind in parts of one key. keys: of every rank in its order."""
    found: dict[Hashable, list[int]] = {}
    for rank, key in zip(kind.ranks, keys, strict=True):
        found.setdefault(key, []).append(rank)
    return list(found.values())


def divided(kinds: Sequence[RankKind], error: Divided) -> list[RankKind]:
    """The kinds with the one that the error names in parts."""
    found: list[RankKind] = []
    for kind in kinds:
        found += [_part(kind, ranks) for ranks in error.parts] if kind is error.kind else [kind]
    return found


def _part(kind: RankKind, ranks: Sequence[int]) -> RankKind:
    """Some ranks of a kind, with a graph of their own: what is found of a value is known by its node."""
    made = RankKind(tuple(ranks), copied_region(kind.graph))
    places = [kind.place[rank] for rank in ranks]
    known: dict[int, Value] = {}

    def own(value: Value) -> Value:
        given = kind.constants.get(id(value))
        if given is None:
            return value
        if id(value) not in known:
            mine = tuple(given[place] for place in places)
            known[id(value)] = Constant(mine[0].value, mine[0].tensor_type.dtype)
            made.constants[id(known[id(value)])] = mine
        return known[id(value)]

    for graph in made.graph.graphs():
        for node in graph.nodes:
            ops = kind.ops.get(id(node.op))
            if ops is not None:
                mine = tuple(ops[place] for place in places)
                node.op = replace(mine[0])  # type: ignore[type-var]  # operators are dataclasses; one of its own
                made.ops[id(node.op)] = mine
            node.inputs = [own(value) for value in node.inputs]
        graph.results = [own(value) for value in graph.results]
    made.find_mesh()
    return made
