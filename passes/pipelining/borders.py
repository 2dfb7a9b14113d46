"""Lets a value pass the border between two stages where it is smallest.

Input:  stage 0 has `%3 = ReLU(%2)` sharded over 4 ranks and `%4 = AllGather(%3)`, which stage 1 alone reads
Output: the AllGather is of stage 1, so that every rank sends its slice.

The same holds for all that makes one tensor of one, belongs to no cell with a stage, and makes it larger.
"""

from __future__ import annotations

from mspc.ir.graph import STAGE, Constant, Graph, Node, Value
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType

FROM = "stage_from"
"""Attribute: which rule has given a node its stage."""


def cross_borders(body: Graph, stages: dict[Value, int]) -> None:
    """Give what makes tensors larger to the stages that read them."""
    readers: dict[Value, list[Node]] = {}
    for node in body.nodes:
        for value in node.inputs:
            readers.setdefault(value, []).append(node)
    kept = set(body.results)
    for node in reversed(body.nodes):
        if FROM not in node.attrs or node in kept or node.op.mutates or node not in stages:
            continue
        own = {stages[reader] for reader in readers.get(node, ()) if reader in stages}
        later = node.phase != "backward"
        nearest = (min if later else max)(own, default=stages[node])
        is_behind = nearest > stages[node] if later else nearest < stages[node]
        if is_behind and _grows(node):
            node.attrs[STAGE] = stages[node] = nearest
            node.attrs[FROM] = "who reads it, since it is larger than what it is made of"


def _grows(node: Node) -> bool:
    """Whether a node makes one tensor of one, and a rank's slice of it is larger."""
    read = [value for value in node.inputs if not isinstance(value, Constant)]
    return len(read) == 1 and 0 < _slice_bytes(read[0]) < _slice_bytes(node)


def _slice_bytes(value: Value) -> int:
    if not isinstance(value.type, TensorType):
        return 0
    if not isinstance(value.layout, Layout):
        return value.type.nbytes
    return value.type.with_shape(value.layout.local_shape(value.type.shape)).nbytes
