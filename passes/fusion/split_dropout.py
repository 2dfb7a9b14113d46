"""Takes Dropout on one rank apart into its mask, drawn from seeds, step and place alone, and a product with it.

Input:  `%1 = Dropout(%x)`, a tuple of the result and of the mask, which the gradient reads
Output: `%1 = DropoutMask()`, `%2 = DropoutGrad(%x, %1)`: the product fuses with its neighbours, and a kernel that needs
        the mask draws it again instead of reading it (`recompute_elementwise`)

The bits are those of Dropout on any number of ranks.
"""

from __future__ import annotations

from mspc.ir.graph import Graph
from mspc.ops.random.dropout import Dropout
from mspc.passes.base import Pass
from mspc.passes.fusion.rewriter import split


class SplitDropout(Pass):
    def run(self, graph: Graph) -> bool:
        return split(graph, lambda b, node: node.op.as_lines(b, *node.inputs) if isinstance(node.op, Dropout) else None)
