"""Recomputes for gradients all cells for which that holds less memory, if the header asks for it.

Input:  `recompute_cells : true` in the header; `%1 = ReLU(%0)` in the cell `Default/network-Net`, read by a backward
        operator
Output: the forward operators of the cell with `cnode_attrs: {recompute: "Default/network-Net, planned 0"}`, their
        copies before the backward operators that read them, and the header without the line

It makes a usual plan fit a limit of memory, if a plan's file would name the cells.
"""

from __future__ import annotations

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import TensorType
from mspc.passes.autodiff.recompute import Recompute
from mspc.passes.base import WHOLE, Pass
from mspc.passes.lib.recomputation import blocks_of, mark_cells

ASKED = "recompute_cells"
"""The line of the header that asks for it."""


class RecomputeCells(Pass):
    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        if not graph.attrs.pop(ASKED, False):
            return False
        users = graph.users()

        def read_again(node: Node) -> bool:
            return any(user.phase == "backward" for user, _ in users.get(node, ()))

        def source(value: Value) -> Node | None:
            return value if isinstance(value, Node) and value.phase == "forward" else None

        held = {node: float(node.type.nbytes) for node in graph.nodes if node.phase == "forward" and read_again(node)
                and isinstance(node.type, TensorType)}  # fmt: skip
        mark_cells(graph, [block.cell for block in blocks_of(graph, users, held, source)])
        Recompute().run(graph)
        return True
