"""Takes operators along rows on one rank apart into reductions of rows and work element by element: LayerNorm and
RmsNorm, and LogSoftmax if gradients read its result.

Input:  `%1 = LayerNorm(%x, %gamma, %beta)`, a tuple of the result, mean and variance, and `%2 = Cast(TupleGetItem(%1))`
Output: the mean as ReduceMean, x less the mean, the mean of its squares, and a product with gamma / sqrt(variance +
        epsilon), plus beta: `fuse_rows` makes one kernel of these, of the sum that is normalised and of the conversion

An operator declares its parts (`Op.as_rows`). One that can be a line of a fused kernel (`Op.row_lines`) is taken
apart for its gradient's sake: this computes it again from numbers of rows, and need not reduce the rows again.
Operators of a few long rows stay, and gradients do (`fuse_norm`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Builder, Graph, Node, Value
from mspc.ops.fused.kernel import row_of
from mspc.ops.op import Op
from mspc.passes.base import Pass
from mspc.passes.fusion.fusion_groups import enough_rows
from mspc.passes.fusion.rewriter import node_like, split


class SplitNorm(Pass):
    """Replace operators along rows by several."""

    def run(self, graph: Graph) -> bool:
        waiting = {value for node in graph.nodes if node.phase == "backward" for value in node.inputs}
        taken: dict[Value, list[Node]] = {}

        def parts(b: Builder, node: Node) -> Sequence[Value] | None:
            is_line = bool(getattr(node.op, "row_lines", ()))
            if is_line and node not in waiting:
                return None
            begin = len(b.nodes)
            made = _parts(b, node)
            if made is not None and is_line:
                taken[made[0]] = b.nodes[begin:]
            return made

        if not split(graph, parts):
            return False
        for result, nodes in taken.items():
            _make_again(graph, result, nodes)
        return True


def _parts(b: Builder, node: Node) -> Sequence[Value] | None:
    op = node.op
    if not isinstance(op, Op) or type(op).as_rows is Op.as_rows:
        return None
    x = node.inputs[0].tensor_type
    row = row_of(x.shape, op.row_axes(*(value.tensor_type for value in node.inputs)))
    return op.as_rows(b, *node.inputs) if row and enough_rows(x.size, row) else None


def _make_again(graph: Graph, result: Value, nodes: Sequence[Node]) -> None:
    """Let gradients recompute a result, one of `nodes`, from numbers of rows and the operands, right before the first
    of them."""
    position: dict[Value, int] = {node: i for i, node in enumerate(graph.nodes)}
    readers = [node for node in graph.nodes if node.phase == "backward" and result in node.inputs]
    if not readers:
        return
    copies: dict[Value, Node] = {}
    read: list[Value] = []

    def copy(value: Value) -> Value:
        if value not in nodes or value.tensor_type.size < result.tensor_type.size:
            read.append(value)
            return value
        if value not in copies:
            node = cast(Node, value)
            inputs = [copy(other) for other in node.inputs]
            made = copies[value] = node_like(node, cast(Op, node.op), inputs, node.type)
            made.phase, made.attrs = "backward", dict(node.attrs)
        return copies[value]

    again = copy(result)
    first = position[readers[0]]
    if Updates(graph).between(read, position[result], position[readers[-1]]):
        return
    graph.nodes[first:first] = copies.values()
    for node in readers:
        node.inputs = [again if value is result else value for value in node.inputs]
