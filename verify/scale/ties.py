"""Lets values of two programs be of the same dimensions that stand for the same value of the script."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from mspc.ir.graph import Graph, Node, element_types
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.verify.marks import MARK
from mspc.verify.scale.dimensions import Product
from mspc.verify.scale.sizes import Sizing


def tie(sizing: Sizing, one: Graph, other: Graph) -> None:
    """Tie two programs: a dimension of which a rank has one element is not told from one of size 1 otherwise."""
    known = {key: dims for key, dims in _tied(sizing, one)}
    for key, dims in _tied(sizing, other):
        if key in known and len(known[key]) == len(dims):
            sizing.same([known[key]], [dims])


def _tied(sizing: Sizing, graph: Graph) -> Iterator[tuple[Hashable, list[Product]]]:
    for each in graph.graphs():
        for node in each.nodes:
            for number, key in enumerate(_keys_of(node)):
                if key is not None:
                    yield key, sizing.dims(node)[number]


def _keys_of(node: Node) -> list[Hashable]:
    """For each tensor of a node's result the number that its operator had ahead of sharding, and what it is (on a rank
    it may have become several); None where it has none."""
    number = node.attrs.get(MARK)
    if isinstance(node.op, FusedElementwise) and number:
        lines = steps_of(node.op)
        return [None if number[i] is None else (number[i], lines[i].op.name) for i in node.op.returns]
    tensors = len(element_types(node.type))
    return [(number, node.op.name)] if tensors == 1 and isinstance(number, int) else [None] * tensors
