"""Takes Dropout on one rank apart into its mask, drawn from seeds, step and place alone, and a product with it.

Input:  `%1 = Dropout(%x)`, a tuple of the result and of the mask, which the gradient reads
Output: `%1 = DropoutMask()`, `%2 = DropoutGrad(%x, %1)`: the product fuses with its neighbours, and a kernel that needs
        the mask draws it again instead of reading it (`recompute_elementwise`)

The bits are those of Dropout on any number of ranks.
"""

from __future__ import annotations

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.random.dropout import Dropout, DropoutGrad, DropoutMask
from mspc.passes.base import Pass


@dataclass(frozen=True)
class SplitDropout(Pass):
    """Replace Dropout of single elements by its mask and a product."""

    def run(self, graph: Graph) -> bool:
        users = graph.users()
        nodes: list[Node] = []
        b = Builder(graph, nodes)
        parts: dict[Value, tuple[Value, Value]] = {}
        replaced: dict[Value, Value] = {}
        for node in graph.nodes:
            if isinstance(node.op, TupleGetItem) and node.inputs[0] in parts:
                replaced[node] = parts[node.inputs[0]][node.op.index]
                continue
            op = node.op
            readers = [user for user, _ in users.get(node, ())]
            taken = node not in graph.results and all(isinstance(user.op, TupleGetItem) for user in readers)
            if not isinstance(op, Dropout) or not taken or not _draws_elements(op, node.inputs[0]):
                nodes.append(node)
                continue
            b.like(node)
            b.phase = node.phase
            mask = b.emit(DropoutMask.of(op, node.inputs[0].shape))
            made = b.emit(DropoutGrad(op.keep_prob), node.inputs[0], mask)
            made.attrs |= {**node.attrs, "fused": (node.label,)}
            mask.attrs["fused"] = (node.label,)
            parts[node] = (made, mask)
        if not parts:
            return False
        graph.nodes = nodes
        graph.replace(replaced)
        return True


def _draws_elements(op: Dropout, x: Value) -> bool:
    """Whether there is a draw for every element of the operand."""
    return op.random_dims(len(x.shape)) == len(x.shape) > 0
