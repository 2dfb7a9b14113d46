"""Joins small elementwise kernels that wait for the same value: each is hardly more than a launch, and what comes
behind waits for one after the other.

Input:  `%1 = AllReduce(%a, %b)`, `%2 = FusedElementwise(%1[0], %c)`, `%3 = FusedElementwise(%1[1], %c)`, all of some
        channels' numbers
Output: `%2 = FusedElementwise(%1[0], %1[1], %c) {returns: (1, 3)}`, and two `TupleGetItem`s

The last value that a kernel reads, in the order of the graph, says when it may run, and so do collectives, which may
take longer. Kernels for which these are the same, which have as many elements and of which none moves over an update of
what it reads, are one at the place of the first. The gradient of a batch norm has two of them behind its sums.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.fused.body import by_element, moves_elements
from mspc.ops.tensor.cast import Cast
from mspc.passes.base import Pass
from mspc.passes.fusion.groups import FARTHEST
from mspc.passes.fusion.join_recomputed import joined_kernels, lines_of
from mspc.passes.fusion.rewriter import Rewriter, gathered, parts_of, successor

SMALL = 1 << 16
"""Bytes of a result that takes no longer than a launch."""


@dataclass(frozen=True)
class JoinSmall(Pass):
    """Join small kernels."""

    def run(self, graph: Graph) -> bool:
        place: dict[Value, int] = {node: number for number, node in enumerate(graph.nodes)}
        updates = Updates(graph)
        groups: dict[Hashable, list[Node]] = {}
        for number, node in enumerate(graph.nodes):
            if not _is_small(node):
                continue
            read = {made: place[made] for value in node.inputs if (made := _made(value)) in place}
            if not read:
                continue
            slow = frozenset(at for made, at in read.items() if isinstance(made, Node) and made.op.is_collective)
            members = groups.setdefault((max(read.values()), slow, node.shape, node.phase), [])
            first = place[members[0]] if members else number
            if number - first <= FARTHEST and not updates.between(node.inputs, first, number):
                members.append(node)
        rewriter = Rewriter(graph)
        for members in groups.values():
            joined = members[:1]
            for member in members[1:]:
                if joined_kernels([*joined, member]) is None:
                    _join(rewriter, joined)
                    joined.clear()
                joined.append(member)
            _join(rewriter, joined)
        return rewriter.apply()


def _is_small(node: Node) -> bool:
    """Whether it is a kernel of little work on operands of its own shape and numbers, which no update takes over."""
    if not isinstance(node.type, TensorType) or node.type.nbytes > SMALL or node.type.size < 2:
        return False
    if node.phase == "update":
        return False
    plain = all(isinstance(v.type, TensorType) and (v.shape == node.shape or v.type.size == 1) for v in node.inputs)
    lines = lines_of(node) if plain and "kept" not in node.attrs else ()
    if all(isinstance(line.op, Cast) for line in lines):
        return False
    return all(by_element(line.op) and not moves_elements(line.op) for line in lines)


def _made(value: Value) -> Value:
    """What a value shows, in whatever shape, or is a part of."""
    while isinstance(value, Node) and value.op.is_view and value.inputs:
        value = value.inputs[0]
    return value


def _join(rewriter: Rewriter, members: Sequence[Node]) -> None:
    """Put members that can be one node into one, at the place of the first."""
    found = joined_kernels(members) if len(members) > 1 else None
    if found is None:
        return
    op, operands = found
    type = op.infer(*[value.type for value in operands])
    labels = dict.fromkeys(label for member in members for label in parts_of(member))
    made = gathered(op, operands, type, members, labels)
    parts = [successor(made, number, member) for number, member in enumerate(members)]
    for member, part in zip(members, parts, strict=True):
        rewriter.replace(member, part)
    rewriter.gone.update(members)
    rewriter.put(members[0], [made, *parts])
