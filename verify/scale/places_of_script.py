"""Which values of one device stand at the same place of the script as one of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from mspc.ir.graph import Graph, Node, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.verify.marks import MARK, mark_of_line
from mspc.verify.scale.kinds import RankKind

Whole = tuple[Node, int]
"""A value of one device: the node, and the number of the tensor in its result."""
SCALED = ("Mul", "Div")
MEAN = "ReduceMean"
"""Ranks that add up parts of a mean make it by operators that scale."""


class OfName(NamedTuple):
    """The key of an operator of which no place is known."""

    name: str
    phase: str


@dataclass(frozen=True)
class ReferenceCandidates:
    """Values of one device that a tensor of ranks may be. number: of the tensor in its node's result. own: the one that
    it is where ranks and one device run the operators of a place in one order; None where they have more or fewer of
    them."""

    number: int
    wholes: Sequence[Whole] = field(default_factory=list[Whole])
    own: Whole | None = None


class PlacesOfScript:
    """The values of one device by their places in the script."""

    def __init__(self, one: Graph) -> None:
        self._known: dict[Hashable, list[Whole]] = {}
        for key, node, number in keyed(one):
            self._known.setdefault(key, []).append((node, number))
            names = (node.op.name, *SCALED) if node.op.name == MEAN else (node.op.name,)
            for name in names:
                self._known.setdefault(OfName(name, node.phase), []).append((node, number))

    def of(self, kind: RankKind) -> Iterator[tuple[Node, ReferenceCandidates]]:
        """What each tensor of a kind may be, of those of which anything is known."""
        tensors = [(key, node, number) for key, node, number in keyed(kind.graph) if key in self._known]
        counts = Counter(key for key, _, _ in tensors)
        seen: Counter[Hashable] = Counter()
        for key, node, number in tensors:
            known = self._known[key]
            own = None if isinstance(key, OfName) or counts[key] != len(known) else known[seen[key]]
            seen[key] += 1
            yield node, ReferenceCandidates(number, known, own)


def keyed(graph: Graph) -> Iterator[tuple[Hashable, Node, int]]:
    """Of a program every operator of the script, with a key that programs share: (key, node, number of the tensor in
    its result). Several may have one key. A node that is fused of several says where one of these stands, so that its
    key is the operator's name and phase."""
    for each in graph.graphs():
        for node in each.nodes:
            for number, name in _named(node):
                mark = node.attrs.get(MARK)
                if isinstance(mark, tuple):
                    mark = mark_of_line(mark, number[1], len(steps_of(node.op)))  # type: ignore[arg-type]  # it is fused
                if mark is not None:
                    yield (mark, name), node, number[0]
                elif isinstance(node.op, FusedElementwise):
                    yield OfName(name, node.phase), node, number[0]
                elif node.frames:
                    yield _where(node), node, number[0]


def _where(node: Node) -> Hashable:
    return (node.scope, node.op.name, node.phase, tuple(map(str, node.frames)), node.instance)


def _named(node: Node) -> Iterator[tuple[tuple[int, int], str]]:
    """((number of the tensor in the result, of the line that makes it), operator) of a node's results."""
    if isinstance(node.op, FusedElementwise):
        op: Any = node.op
        lines = steps_of(op)
        for place, line in enumerate(op.returns):
            yield (place, line), lines[line].op.name
    elif len(element_types(node.type)) == 1:
        yield (0, 0), node.op.name
