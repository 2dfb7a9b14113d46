"""A sum of sums of rows for one table is one sum of all their rows, as the gradient of a table that is looked up twice.

Input:  `%8 = GatherGrad(%5, %1) {size: 40}`, `%9 = GatherGrad(%6, %2) {size: 40}`, `%10 = AddN(%8, %9)`
Output: `%8 = Concat(%5, %6)`, `%9 = Concat(%1, %2)`, `%10 = GatherGrad(%8, %9) {size: 40}`

A table for each of them need not be written, and the sum is rounded once. It is done if the joined rows are smaller
than a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Graph, Node, Value, operand_types
from mspc.ir.types import TensorType
from mspc.ops.math.arithmetic import AddN
from mspc.ops.op import Op
from mspc.ops.tensor.embedding import RowSums
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.reshape import Reshape
from mspc.passes.base import Pass
from mspc.passes.fusion.rewriter import Rewriter, node_like


class JoinRowSums(Pass):
    """Join sums of rows for one table."""

    def run(self, graph: Graph) -> bool:
        if sum(isinstance(node.op, RowSums) for node in graph.nodes) < 2:
            return False
        rewriter, updates = Rewriter(graph), Updates(graph)
        numbers = {node: number for number, node in enumerate(graph.nodes)}
        for node in graph.nodes:
            if isinstance(node.op, AddN):
                _join(rewriter, updates, numbers, node)
        return rewriter.apply()


def _join(rewriter: Rewriter, updates: Updates, numbers: dict[Node, int], node: Node) -> None:
    kinds: list[list[Node]] = []
    for value in node.inputs:
        if not isinstance(value, Node) or rewriter.only_reader(value) is not node or not _is_of_rows(value):
            continue
        if updates.between(value.inputs, numbers[value], numbers[node]):
            continue
        known = next((kind for kind in kinds if _are_alike(kind[0], value)), None)
        if known is None:
            kinds.append([value])
        else:
            known.append(value)
    made: list[Node] = []
    joined: dict[Value, Node] = {}
    for kind in kinds:
        if len(kind) > 1 and sum(sum_.inputs[0].type.nbytes for sum_ in kind) < kind[0].type.nbytes:
            made += _joined(kind, node)
            joined |= dict.fromkeys(kind, made[-1])
    if not joined:
        return
    inputs = list(dict.fromkeys(joined.get(value, value) for value in node.inputs))
    total = inputs[0]
    if len(inputs) > 1:
        total = _made(AddN(), inputs, node)
        total.attrs = dict(node.attrs)
        made.append(total)
    elif isinstance(total, Node):
        total.attrs = dict(node.attrs)
    rewriter.gone.update(value for value in joined if isinstance(value, Node))
    rewriter.put(node, made)
    rewriter.replace(node, total)


def _is_of_rows(node: Node) -> bool:
    if not isinstance(node.op, RowSums):
        return False
    rows, ids = operand_types(node)
    lookup = node.op.lookup(rows.shape, ids.shape)
    return lookup.batch == lookup.middle == 1 and node.type.nbytes > 0


def _are_alike(one: Node, other: Node) -> bool:
    return (
        one.op == other.op
        and one.type == other.type
        and [type.dtype for type in operand_types(one)] == [type.dtype for type in operand_types(other)]
    )


def _joined(sums: Sequence[Node], place: Node) -> list[Node]:
    """Return the sum of the rows of all, and the nodes that join these."""
    op = sums[0].op
    assert isinstance(op, RowSums)
    made: list[Node] = []
    operands: list[Value] = []
    for index in range(2):
        flat: list[Value] = []
        for one in sums:
            rows, ids = operand_types(one)
            rest = rows.shape[len(ids.shape) :] if index == 0 else ()
            shape, value = (math.prod(ids.shape), *rest), one.inputs[index]
            if value.type.nbytes and shape != operand_types(one)[index].shape:
                made.append(_made(Reshape(shape), [value], place))
                value = made[-1]
            flat.append(value)
        made.append(_made(Concat(0), flat, place))
        operands.append(made[-1])
    return [*made, _made(op, operands, place)]


def _made(op: Op, inputs: Sequence[Value], place: Node) -> Node:
    types = [value.type for value in inputs]
    return node_like(place, op, inputs, op.infer(*[type for type in types if isinstance(type, TensorType)]))
