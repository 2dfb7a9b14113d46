"""Takes LayerNorm and RmsNorm on one rank apart into reductions of rows and work element by element.

Input:  `%1 = LayerNorm(%x, %gamma, %beta)`, a tuple of the result, mean and variance, and `%2 = Cast(TupleGetItem(%1))`
Output: the mean as ReduceMean, x less the mean, the mean of its squares, and a product with gamma / sqrt(variance +
        epsilon), plus beta: `fuse_rows` makes one kernel of these, of the sum that is normalised and of the conversion

An operator says itself what it is (`Op.as_rows`). Norms of a few long rows stay, and their gradients do (`fuse_norm`).
"""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.fused.space import row_of
from mspc.ops.op import Op
from mspc.passes.base import Pass
from mspc.passes.fusion.groups import enough_rows
from mspc.passes.fusion.splitting import split


@dataclass(frozen=True)
class SplitNorm(Pass):
    """Replace what is several operators along rows."""

    def run(self, graph: Graph) -> bool:
        return split(graph, _parts)


def _parts(b: Builder, node: Node) -> Sequence[Value] | None:
    op = node.op
    if not isinstance(op, Op) or type(op).as_rows is Op.as_rows:
        return None
    x = node.inputs[0].tensor_type
    row = row_of(x.shape, op.row_axes(*(value.tensor_type for value in node.inputs)))
    return op.as_rows(b, *node.inputs) if row and enough_rows(x.size, row) else None
