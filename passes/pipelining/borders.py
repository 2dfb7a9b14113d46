"""Lets values pass the border between two stages where they are fewest and smallest.

Input:  stage 0 has `%3 = ReLU(%2)` sharded over 4 ranks and `%4 = AllGather(%3)`, which stage 1 alone reads
Output: the AllGather is of stage 1, so that every rank sends its slice.

The same holds for all that makes one tensor of one, belongs to no cell with a stage, and makes it larger.

Input:  stage 0 has `%9 = AddN(%5, %7, %8)`, the gradient of what stages read, where %7 and %8 are of stage 1
Output: stage 1 has `%10 = AddN(%7, %8)`, and stage 0 `%9 = AddN(%5, %10)`.

The same where %8 is of stage 2 and something of stage 1 reads it: it is there anyway, as gradients along residuals are.
"""

from __future__ import annotations

from mspc.ir.copies import copied_node
from mspc.ir.graph import STAGE, Constant, Graph, Node, Value
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.math.arithmetic import AddN

FROM = "stage_from"
"""Attribute: which rule has given a node its stage."""
_ADDED = "the one whose gradients it adds up, so that their sum alone is sent"


def cross_borders(body: Graph, stages: dict[Value, int]) -> None:
    """Give what makes tensors larger to the stages that read them, and sums of gradients to those that send them."""
    _add_up(body, stages)
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


def _add_up(body: Graph, stages: dict[Value, int]) -> None:
    """Let a stage add up what it has of a gradient before it hands it on."""
    readers: dict[Value, set[int]] = {}
    for node in body.nodes:
        for value in node.inputs if node in stages and not isinstance(node.op, AddN) else ():
            readers.setdefault(value, set()).add(stages[node])
    nodes: list[Node] = []
    for node in body.nodes:
        if isinstance(node.op, AddN) and node.phase == "backward" and node in stages:
            own = stages[node]
            for stage in sorted({stages[v] for v in node.inputs if stages.get(v, own) > own}, reverse=True):
                terms = [value for value in node.inputs if _is_at(value, stage, stages, readers)]
                if len(terms) == len(node.inputs):
                    node.attrs[STAGE] = stages[node] = stage
                    node.attrs[FROM] = _ADDED
                elif len(terms) > 1:
                    nodes.append(_sum_of(node, terms, stage, stages))
        nodes.append(node)
    body.nodes = nodes


def _is_at(value: Value, stage: int, stages: dict[Value, int], readers: dict[Value, set[int]]) -> bool:
    """Whether a stage has a gradient: its own, or one of a later stage that it reads."""
    own = stages.get(value, -1)
    return own == stage or (own > stage and stage in readers.get(value, ()))


def _sum_of(node: Node, terms: list[Value], stage: int, stages: dict[Value, int]) -> Node:
    """A sum of its own for some terms of `node`, which reads it in the place of the first."""
    made = copied_node(node, terms)
    made.attrs[STAGE] = stages[made] = stage
    made.attrs[FROM] = _ADDED
    first = next(k for k, value in enumerate(node.inputs) if value in terms)
    kept = [k for k, value in enumerate(node.inputs) if k == first or value not in terms]
    if node.in_layouts is not None:  # they are one layout: terms of a sum are laid out alike
        made.in_layouts = node.in_layouts[: len(terms)]
        node.in_layouts = node.in_layouts[: len(kept)]
    node.inputs = [made if k == first else node.inputs[k] for k in kept]
    return made


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
