"""Make one operator of slices that each take one position of an axis, if they are most of it.

Input:  `%1 = StridedSlice(%x) {begin: (0, 0), end: (8, 1), shrink_axis_mask: 2}`, the same of the other columns
Output: `%1 = Unstack(%x) {axis: 1}` and elements of its result

So columns of one tensor may index rows of several tables. On a GPU few kernels make all. Slices that a kernel reads
in place are none of these (`fuse_moves`).
"""

from __future__ import annotations

from collections.abc import Sequence

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.types import TensorType, TupleType
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Unstack
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.base import Pass
from mspc.passes.fusion.rewriter import Rewriter, node_like, parts_of, successor

MOST = 64
"""Places of an axis."""
HELD = 16 << 20
"""Bytes of slices, which are all made with the first of them."""


class UnstackSlices(Pass):
    """Make slices of one tensor together."""

    def run(self, graph: Graph) -> bool:
        numbers: dict[Node, int] = {}
        found: dict[Value, list[Node]] = {}
        for number, node in enumerate(graph.nodes):
            numbers[node] = number
            if isinstance(node.op, StridedSlice):
                found.setdefault(node.inputs[0], []).append(node)
        several = {value: nodes for value, nodes in found.items() if len(nodes) > 1}
        if not several:
            return False
        rewriter, updates = Rewriter(graph), Updates(graph)
        for value, nodes in several.items():
            for axis in range(len(value.shape)):
                places = _places(value.tensor_type, axis, nodes)
                if 2 * len(set(places.values())) <= value.shape[axis]:
                    continue
                members = list(places)
                if not updates.between([value], numbers[members[0]], numbers[members[-1]]):
                    _join(rewriter, value, axis, places)
        return rewriter.apply()


def _places(type: TensorType, axis: int, nodes: Sequence[Node]) -> dict[Node, int]:
    size = type.shape[axis]
    if not 1 < size <= MOST or not 0 < type.nbytes <= HELD:
        return {}
    slices: list[Op] = [Unstack(axis).single_result(place, type) for place in range(size)]
    return {node: slices.index(node.op) for node in nodes if isinstance(node.op, Op) and node.op in slices}


def _join(rewriter: Rewriter, value: Value, axis: int, places: dict[Node, int]) -> None:
    members = list(places)
    first = members[0]
    op = Unstack(axis)
    types = element_types(op.infer(value.tensor_type))
    made = node_like(first, op, [value], TupleType(types))
    made.attrs = {"fused": tuple(part for member in members for part in parts_of(member))}
    elements = {place: successor(made, place, member) for member, place in reversed(places.items())}
    for member, place in places.items():
        rewriter.replace(member, elements[place])
    rewriter.gone.update(members)
    rewriter.put(first, [made, *(elements[place] for place in sorted(elements))])
