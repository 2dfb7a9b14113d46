"""Sum a kernel's result inside the kernel instead of afterwards.

Input:  `%1 = FlashAttentionScoreShiftGrad(..)`, `%2 = FlashAttentionScoreShiftGrad(..)` of (16, 12, 512, 512),
        `%3 = AddN(%1, %2)`, `%4 = ReduceSum(%3) {axis: (0), keep_dims: false}`
Output: `%1` and `%2` with `result_shape: (1, 12, 512, 512)`, `%3 = AddN(%1, %2)` of that shape, and `%4 = Reshape(%3)`

An operator declares that it can (`Op.summed_over`): the gradient of an addend of attention's scores, if the
addend was repeated over the batch or over heads. Other terms of the sum are added and summed as they were. Nothing but
the sum may read the terms. A Cast between both is made after the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from mspc.ir.graph import Graph, Node, Value, operand_types
from mspc.ir.types import TensorType
from mspc.ops.math.arithmetic import Add, AddN
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Cast, ReduceSum, Reshape
from mspc.passes.base import Pass
from mspc.passes.fusion.rewriter import Rewriter, node_like


class SumInKernels(Pass):
    def run(self, graph: Graph) -> bool:
        rewriter = Rewriter(graph)
        for node in graph.nodes:
            if isinstance(node.op, ReduceSum) and node.tensor_type.dtype.is_float:
                _sum(rewriter, node)
        return rewriter.apply()


def _sum(rewriter: Rewriter, node: Node) -> None:
    """Split a sum into those of its terms, if a kernel can make one of them."""
    op = cast(ReduceSum, node.op)
    axes = op.axes(len(node.inputs[0].shape))
    if not axes:
        return
    passed: list[Node] = []
    at = _only_read(rewriter, node.inputs[0], node)
    while at is not None and isinstance(at.op, Cast) and at.inputs[0].tensor_type.dtype.is_float:
        passed.append(at)
        at = _only_read(rewriter, at.inputs[0], at)
    if at is None:
        return
    added = isinstance(at.op, Add | AddN)
    terms: Sequence[Value] = at.inputs if added else [at]
    reader = at if added else passed[-1] if passed else node
    if any(term.type != at.type for term in terms):
        return
    whole = at.tensor_type
    shape = tuple(1 if d in axes else n for d, n in enumerate(whole.shape))
    summed: list[Value] = []
    others: list[Value] = []
    for term in terms:
        made = _made_summed(rewriter, term, reader, axes, shape)
        if made is None:
            others.append(term)
        else:
            summed.append(made)
    if not summed:
        return
    behind: list[Node] = []

    def emit(op: Op, inputs: Sequence[Value], type: TensorType) -> Node:
        behind.append(Node(op, inputs, type, "", node.instance, node.scope, node.frames, node.phase))
        return behind[-1]

    if others:
        rest = others[0] if len(others) == 1 else emit(AddN(), others, whole)
        summed.append(emit(ReduceSum(True, axes), [rest], whole.with_shape(shape)))
    total = summed[0] if len(summed) == 1 else emit(AddN(), summed, whole.with_shape(shape))
    if total.tensor_type.dtype != node.tensor_type.dtype:
        total = emit(Cast(node.tensor_type.dtype), [total], TensorType(node.tensor_type.dtype, shape))
    if total.shape != node.shape:
        total = emit(Reshape(node.shape), [total], node.tensor_type)
    for gone in passed if not added else [*passed, at]:
        rewriter.drop(gone)
    rewriter.put(node, behind)
    rewriter.replace(node, total)


def _only_read(rewriter: Rewriter, value: Value, reader: Node) -> Node | None:
    if not isinstance(value, Node) or rewriter.only_reader(value) is not reader or rewriter.taken(value):
        return None
    return value


def _made_summed(
    rewriter: Rewriter, term: Value, reader: Node, axes: Sequence[int], shape: tuple[int, ...]
) -> Node | None:
    node = _only_read(rewriter, term, reader)
    if node is None or not isinstance(node.op, Op) or not isinstance(node.type, TensorType):
        return None
    types = operand_types(node)
    if not all(isinstance(value.type, TensorType) for value in node.inputs):
        return None
    op = node.op.summed_over(axes, *types)
    if op is None:
        return None
    made = node_like(node, op, node.inputs, node.type.with_shape(shape), takes=True)
    rewriter.put(node, [made])
    return made
