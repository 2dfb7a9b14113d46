"""Lets a GPU's kernel add up the parts of a sum over two ranks as it reads them, if it comes next: a rank reads
the other's part once, as many bytes as a reduction by itself would bring, and nothing is stored and read again.

Input:  `%1 = MatMul(...)`, `%2 = AllReduce(%1) {stream: communication}`, `%3 = FusedElementwise(%2, ...)` along rows
Output: `%1 = MatMul(...)`, `%2 = AllReduce(%1) {summed_by_reader: true}`, `%3 = FusedElementwise(%2, ...)`

After the last matmul of attention and of a feed-forward that are sharded over two ranks a norm waits for the sum.
All ranks see the same nodes in the same order, so they decide alike. If ranks do not reach each other's memory the
reduction runs as it would without the attribute. With more ranks each would read all parts of all others.
"""

from __future__ import annotations

import math

from mspc.ir.graph import Graph, Node, operand_types
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, TensorType
from mspc.ops.collective.base import SUMMED
from mspc.ops.collective.collectives import AllReduce, is_small
from mspc.ops.fused.elementwise import FusedElementwise, expanded_steps
from mspc.passes.base import Pass
from mspc.passes.communication.stay_on_main_stream import awaiting

_RANKS = 2
_TYPES = (FLOAT16, BFLOAT16, FLOAT32)


class SumInReaders(Pass):
    def run(self, graph: Graph) -> bool:
        users = graph.users()
        chosen = set[Node]()
        """Readers that have one; a kernel adds up one operand."""
        for index, node in enumerate(graph.nodes):
            reads = users.get(node, [])
            if node in graph.results or len(reads) != 1 or not _is_large_sum(node):
                continue
            if node.inputs[0] in graph.results or len(users[node.inputs[0]]) != 1:
                continue
            reader, place = reads[0]
            if reader not in chosen and reader is awaiting(graph.nodes, index) and _loads_once(reader, place):
                del node.attrs["stream"]
                node.attrs[SUMMED] = True
                chosen.add(reader)
        return bool(chosen)


def _is_large_sum(node: Node) -> bool:
    """Return whether a node is a sum over two ranks on a side stream, of a result of one reader, too large for a
    mailbox."""
    op = node.op
    if not isinstance(op, AllReduce) or node.attrs.get("stream") != "communication" or "piece" in node.attrs:
        return False
    made = node.inputs[0]
    is_own = len(node.inputs) == 1 and isinstance(made, Node) and not made.op.is_view and not made.op.mutates
    wanted = is_own and op.op == "sum" and len(op.members) == _RANKS and isinstance(node.type, TensorType)
    return wanted and node.tensor_type.dtype in _TYPES and not is_small(node)


def _loads_once(reader: Node, place: int) -> bool:
    """Return whether a kernel along rows reads all of this operand, each element at its own place, and reduces rows
    alone."""
    if not isinstance(reader.op, FusedElementwise):
        return False
    steps, _, _, space, moved = expanded_steps(reader.op, tuple(operand_types(reader)))
    size = math.prod(space.dims)
    if not space.columns or reader.inputs[place].tensor_type.size != size:
        return False
    if any(each.operand == place for each in moved):
        return False
    return all(not step.reduces or number in space.by_row for number, step in enumerate(steps))
