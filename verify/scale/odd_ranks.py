"""Finds where the program of a few ranks differs from that of the others that store the same tensors, by one change."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.base import Collective
from mspc.verify.scale.families import alike
from mspc.verify.scale.kinds import RankKind

FEW = 2
"""So many nodes in a row may be others: one that is in the place of one, or moved past it."""
FEW_RANKS = 6


@dataclass(frozen=True)
class Odd:
    """kind, node: where it is seen: what these ranks do, and not the others, or, if they do less, what the others do.
    ranks: those that differ. words: what that is. even: as many run the one as
    the other."""

    kind: RankKind
    node: Node
    ranks: tuple[int, ...]
    words: str
    even: bool = False

    def may_stop(self, failing: Sequence[RankKind], waiting: Sequence[RankKind]) -> bool:
        """Whether it may be why kinds fail, or wait for others that never come."""
        op = self.node.op
        if isinstance(op, Collective) and op.communicates:
            return True
        kinds = [*failing, *(waiting if not self.even else ())]
        return any(not {*kind.ranks}.isdisjoint(self.ranks) for kind in kinds)


def odd_one(kinds: Sequence[RankKind]) -> Odd | None:
    """The first change; None where all ranks that store the same run the same, or more of it differs."""
    for family in alike(kinds):
        *few, others = sorted(family, key=lambda each: len(each.ranks))
        for kind in few:
            found = _change(kind, others)
            if found is not None:
                return replace(found, even=len(kind.ranks) == len(others.ranks))
    return None


def _change(kind: RankKind, others: RankKind) -> Odd | None:
    changes: list[Odd] = []
    ours, theirs = list(kind.graph.graphs()), list(others.graph.graphs())
    if len(ours) != len(theirs):
        return None
    for mine, given in zip(ours, theirs, strict=True):
        ours_said, theirs_said = list(map(_said, mine.nodes)), list(map(_said, given.nodes))
        first, second = _between(ours_said, theirs_said)
        moved = _moved([ours_said[i] for i in first], [theirs_said[i] for i in second])
        if moved is not None:
            changes.append(_does(kind, mine.nodes[first[moved]]))
            continue
        if len(first) > FEW or len(second) > FEW:
            return None
        if second and len(second) > len(first):
            changes.append(_lacks(others, given.nodes[second[0]], kind.ranks))
        elif first:
            changes.append(_does(kind, mine.nodes[first[0]]))
        else:
            changes += [_does(kind, node) for node in _read_otherwise(mine, given)]
    return changes[0] if len(changes) == 1 else None


def _does(kind: RankKind, node: Node) -> Odd:
    return Odd(kind, node, kind.ranks, f"{node.label} is run like this by {ranks_in_words(kind.ranks)} alone")


def _lacks(kind: RankKind, node: Node, ranks: tuple[int, ...]) -> Odd:
    return Odd(kind, node, ranks, f"{node.label} is run by all like them but {ranks_in_words(ranks)}")


def ranks_in_words(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 1, 2, ...`."""
    few = ", ".join(map(str, ranks[:FEW_RANKS])) + ", ..." * (len(ranks) > FEW_RANKS)
    return f"rank{'s' * (len(ranks) > 1)} {few}"


def _between(first: Sequence[Hashable], second: Sequence[Hashable]) -> tuple[range, range]:
    """What is not the same at the begin or at the end of two lists."""
    begin, shorter = 0, min(len(first), len(second))
    while begin < shorter and first[begin] == second[begin]:
        begin += 1
    end = 0
    while end < shorter - begin and first[-1 - end] == second[-1 - end]:
        end += 1
    return range(begin, len(first) - end), range(begin, len(second) - end)


def _moved(first: Sequence[Hashable], second: Sequence[Hashable]) -> int | None:
    """The place in the first of two lists of what stands elsewhere in the second, where all else is in one order."""
    if len(first) != len(second) or len(first) < 2:
        return None
    if first[1:] == second[:-1] and first[0] == second[-1]:
        return 0
    return len(first) - 1 if first[:-1] == second[1:] and first[-1] == second[0] else None


def _said(node: Node) -> Hashable:
    return (node.op.name, node.type, node.scope, node.phase, node.name, tuple(map(str, node.frames)))


def _read_otherwise(mine: Graph, given: Graph) -> list[Node]:
    """Nodes that read other values, of two graphs with the same nodes."""
    places = [{value: place for place, value in enumerate(graph.values())} for graph in (mine, given)]

    def read(node: Node, of: dict[Value, int]) -> list[Hashable]:
        return [of.get(value, value.type) for value in node.inputs]

    pairs = zip(mine.nodes, given.nodes, strict=True)
    return [one for one, other in pairs if read(one, places[0]) != read(other, places[1])]
