"""Ranks that store the same tensors though they are of several kinds: what they compute is looked at together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Node
from mspc.ir.late_dataclass import dataclass
from mspc.verify.scale.kinds import RankKind
from mspc.verify.scale.spread import flat, narrowed

Array = Any


@dataclass(frozen=True)
class Together:
    """A value of all ranks of a family. kind: the ranks and the dimensions in which they lie. nodes: that make it, by
    kind."""

    kind: RankKind
    value: Array
    nodes: tuple[tuple[RankKind, Node], ...]


def alike(kinds: Sequence[RankKind]) -> list[list[RankKind]]:
    """The kinds in families that store the same tensors."""
    found: dict[Hashable, list[RankKind]] = {}
    for kind in kinds:
        found.setdefault(tuple((p.name, p.type) for p in kind.graph.parameters), []).append(kind)
    return list(found.values())


class Families:
    """Puts values of several kinds together, once all of them have come."""

    def __init__(self, kinds: Sequence[RankKind]) -> None:
        groups = alike(kinds)
        self._members = {id(kind): group for group in groups for kind in group}
        self._joint: dict[int, RankKind] = {}
        for group in groups:
            joint = RankKind(tuple(sorted(r for kind in group for r in kind.ranks)), group[0].graph)
            joint.find_mesh()
            self._joint.update((id(kind), joint if len(group) > 1 else kind) for kind in group)
        self._names: dict[tuple[int, Node, int], Hashable] = {}
        self._count: dict[int, Counter[Hashable]] = {id(kind): Counter() for kind in kinds}
        self._waiting: dict[Hashable, dict[int, tuple[RankKind, Node, Array]]] = {}

    def joint(self, kind: RankKind) -> RankKind:
        """The ranks of the family and the dimensions in which they lie."""
        return self._joint[id(kind)]

    def note(self, kind: RankKind, key: Hashable, node: Node, number: int) -> None:
        """Say in the order of a program that a node's tensor of that number has a key."""
        count = self._count[id(kind)]
        count[key] += 1
        self._names[id(kind), node, number] = (key, count[key])

    def together(
        self, kind: RankKind, node: Node, number: int, value: Array, around: tuple[int, ...]
    ) -> Iterator[Together]:
        """The value of all ranks of the family, where this was the last part of it. Nothing where some of its kinds
        have more or fewer values of this key."""
        members = self._members[id(kind)]
        if len(members) == 1:
            yield Together(kind, value, ((kind, node),))
            return
        key, place = self._names[id(kind), node, number]  # type: ignore[misc]  # a pair
        if len({self._count[id(each)][key] for each in members}) > 1:
            return
        name = (id(members[0]), key, place, around)
        found = self._waiting.setdefault(name, {})
        found[id(kind)] = kind, node, value
        if len(found) < len(members):
            return
        del self._waiting[name]
        joint = self._joint[id(kind)]
        rows = {
            rank: row
            for each, _, array in found.values()
            for rank, row in zip(each.ranks, flat(array, each.mesh), strict=True)
        }
        if len({row.shape for row in rows.values()}) == 1:
            whole = np.stack([rows[rank] for rank in joint.ranks])
            made = narrowed(whole.reshape(*joint.mesh, *whole.shape[1:]), joint.depth)
            yield Together(joint, made, tuple((each, own) for each, own, _ in found.values()))
