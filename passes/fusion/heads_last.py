"""Put the heads of attention after the sequence, the order in which matmuls make and read them.

Input:  `%1 = Reshape(%x) {shape: (8, 1024, 16, 64)}`, `%2 = Transpose(%1) {perm: (0, 2, 1, 3)}`, nodes that work on %2
        element by element, and `FlashAttentionScore(%2, ...) {input_layout: "BNSD"}`
Output: the same work on %1, and `FlashAttentionScore(%1, ...) {input_layout: "BSND"}`

If query, key and value of an attention come from such transposes, their readers follow in the order of the operand
as far as they can (`reordering`): rotary positions, norms of heads, slices. It handles the attentions that
`pack_attention` leaves. A graph in which more bytes would be moved than before stays as it is.
"""

from __future__ import annotations

from mspc.ir.graph import Graph
from mspc.ops.memory_order import MemoryOrder
from mspc.ops.nn.attention_base import HEADS_BEHIND, AttentionOp
from mspc.passes.base import Pass
from mspc.passes.fusion.reordering import moved_bytes, reorder


class HeadsLast(Pass):
    def run(self, graph: Graph) -> bool:
        attentions = [node.op for node in graph.nodes if isinstance(node.op, AttentionOp)]
        if not any(op.input_layout == "BNSD" and not op.packed for op in attentions):
            return False
        before = moved_bytes(graph.nodes)
        return before > 0 and reorder(graph, _is_by_place, before - 1)


def _is_by_place(order: MemoryOrder) -> bool:
    """Return True for the order of heads after the sequence."""
    if order.rank != 4 or order.is_plain:
        return False
    return order.memory == MemoryOrder.of(order.shape, HEADS_BEHIND).memory
