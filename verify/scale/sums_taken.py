"""Finds sums over ranks that take a part several times, as a second sum of what is added up already."""

from __future__ import annotations

import math
from collections.abc import Mapping

from mspc.ir.graph import Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.structural import TupleGetItem
from mspc.verify.scale.added_before import added_along
from mspc.verify.scale.kinds import RankKind
from mspc.verify.scale.odd_ranks import ranks_in_words
from mspc.verify.scale.readers import Readers
from mspc.verify.scale.relations import Relation, ranks_along


@dataclass(frozen=True)
class Repeated:
    """A sum that takes every part several times. times: how often. words: what is said of it."""

    node: Node
    times: int
    words: str


class SumsTaken:
    """Of every tensor what it is, as far as that is known, those that ranks add up too; and sums of what is none of
    their parts."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[Value, int], Relation] = {}
        self._repeated: dict[Node, Repeated] = {}

    def tell(self, node: Node, number: int, relation: Relation) -> None:
        """A tensor in a node's result is this."""
        self._tensors[node, number] = relation

    def note(self, node: Node, kind: RankKind) -> None:
        """A node adds up over ranks."""
        axes = added_along(node, kind, kind)
        for number, value in enumerate(node.inputs):
            known = self._of(value)
            if known is None:
                continue
            more = axes - {*known.summed}
            if more:
                times = math.prod(kind.mesh[axis] for axis in more)
                self._repeated[node] = Repeated(node, times, _words(node, value, known, kind))
            else:
                left = tuple(axis for axis in known.summed if axis not in axes)
                ranks = math.prod(kind.mesh[axis] for axis in left)
                self._tensors[node, number] = Relation(left, known.how, ranks)

    def _of(self, value: Value) -> Relation | None:
        if isinstance(value, Node) and isinstance(value.op, TupleGetItem):
            return self._tensors.get((value.inputs[0], value.op.index))
        return self._tensors.get((value, 0))

    def repeated(self, node: Node, factor: float, readers: Readers, told: Mapping[Node, Relation]) -> Repeated | None:
        """The first sum that makes a value, or what it is divided by, as many times too large; of what is whole before,
        none is looked for."""
        first: Repeated | None = None
        seen: set[Value] = {node}
        waiting: list[Value] = [node]
        for value in waiting:
            for source in readers.read_by(value):
                if source in seen:
                    continue
                seen.add(source)
                found = self._repeated.get(source) if isinstance(source, Node) else None
                if found is not None and found.times in (round(factor), round(1 / factor)):
                    first = found
                if not (source in told and not told[source].summed):  # type: ignore[index]  # a node
                    waiting.append(source)
        return first


def _words(node: Node, value: Value, known: Relation, kind: RankKind) -> str:
    members = ranks_in_words(node.op.members)  # type: ignore[union-attr]  # a collective's
    label = value.label if isinstance(value, Node) else value.name
    if not known.summed:
        return f"it adds up over {members}, and {label} is no part of a sum"
    theirs = ranks_in_words(ranks_along(kind, known.summed))
    return f"it adds up over {members}, and {label} is a part of a sum over {theirs}"
