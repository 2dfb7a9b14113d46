"""Put the channels of images after height and width, the order that tensor cores need.

Input:  `%1 = Conv2D(%x, %w)`, `%2 = ReLU(%1)`, `%3 = ReduceMean(%2) {axis: (2, 3)}`
Output: `%1 = Transpose(%x) {perm: (0, 2, 3, 1)}`, `%2 = Transpose(%w) {perm: (0, 2, 3, 1)}`,
        `%3 = Conv2D(%1, %2) {data_format: "NHWC"}`, `%4 = ReLU(%3)`, `%5 = ReduceMean(%4) {axis: (1, 2)}`

Operators that want their channels last begin it, and their readers follow as far as they can (`reordering`). A
network in which more bytes would be moved than convolutions move themselves stays as it is.
"""

from __future__ import annotations

from mspc.ir.graph import Graph, element_types
from mspc.ops.convolution.window import last_order
from mspc.ops.memory_order import MemoryOrder
from mspc.ops.op import Op
from mspc.passes.base import Pass
from mspc.passes.fusion.reordering import moved_bytes, reorder


class ChannelsLast(Pass):
    def run(self, graph: Graph) -> bool:
        wanting = [node for node in graph.nodes if isinstance(node.op, Op) and node.op.wants_channels_last]
        if not wanting:
            return False
        moved = moved_bytes(graph.nodes) + sum(
            type.nbytes for node in wanting for value in (node, *node.inputs) for type in element_types(value.type)
        )
        return reorder(graph, _is_image, moved)


def _is_image(order: MemoryOrder) -> bool:
    if order.rank < 4 or order.is_plain:
        return False
    return order.memory == MemoryOrder.of(order.shape, last_order(order.rank)).memory
