"""Joins the gradients of slices that make up a tensor, in place of a sum of tensors that are mostly zeros.

Input:  `%1 = StridedSliceGrad(%a) {begin: (0, 0), end: (4, 8), shape: (8, 8)}`,
        `%2 = StridedSliceGrad(%b) {begin: (4, 0), end: (8, 8), shape: (8, 8)}`, `%3 = AddN(%1, %2)`
Output: `%3 = Concat(%a, %b) {axis: 0}`

The slices follow one another along one dimension, take all elements of it, and nothing else reads their
gradients, as if a network takes the steps of a sequence one by one, or query, key and value out of one tensor. Other
terms of the sum are added.
"""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.graph import Graph, Node, Value
from mspc.ops.math.arithmetic import AddN
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.reshape import Reshape
from mspc.ops.tensor.slicing import StridedSliceGrad
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.rewriter import Rewriter


class JoinSlices(Pass):
    def run(self, graph: Graph) -> bool:
        if not any(isinstance(node.op, StridedSliceGrad) for node in graph.nodes):
            return False
        changed = remove_dead(graph)
        rewriter = Rewriter(graph)
        for node in graph.nodes:
            if isinstance(node.op, AddN):
                _join(rewriter, node)
        return rewriter.apply() or changed


def _join(rewriter: Rewriter, node: Node) -> None:
    if not node.tensor_type.size:
        return
    placed: dict[int, dict[int, Node]] = {}
    for value in node.inputs:
        if isinstance(value, Node) and isinstance(value.op, StridedSliceGrad) and rewriter.only_reader(value) is node:
            place = _place(value)
            if place is not None:
                axis, begin = place
                placed.setdefault(axis, {})[begin] = value
    for axis, terms in placed.items():
        if len(terms) > 1 and _cover(terms, axis, node.shape[axis]):
            _replace(rewriter, node, axis, [terms[begin] for begin in sorted(terms)])
            return


def _place(node: Node) -> tuple[int, int] | None:
    """Return (sliced dimension, first element) of a slice of neighbours along one dimension, or None."""
    op = node.op
    assert isinstance(op, StridedSliceGrad)
    cuts = [cut for cut in op.cuts(op.shape) if cut.dim >= 0 and not cut.takes_all]
    if len(cuts) != 1 or cuts[0].step != 1 or not cuts[0].size:
        return None
    return cuts[0].dim, cuts[0].start


def _length(node: Node, axis: int) -> int:
    return node.inputs[0].tensor_type.size * node.shape[axis] // node.tensor_type.size


def _cover(terms: dict[int, Node], axis: int, size: int) -> bool:
    """Return True if the slices follow one another from the first element to the last."""
    end = 0
    for begin in sorted(terms):
        if begin != end:
            return False
        end += _length(terms[begin], axis)
    return end == size


def _replace(rewriter: Rewriter, node: Node, axis: int, terms: Sequence[Node]) -> None:
    made: list[Node] = []
    parts: list[Value] = []
    for term in terms:
        shape = tuple(_length(term, axis) if d == axis else n for d, n in enumerate(node.shape))
        value = term.inputs[0]
        if value.shape != shape:
            made.append(_like(term, Reshape(shape), [value], shape))
            value = made[-1]
        parts.append(value)
        rewriter.drop(term)
    made.append(_like(node, Concat(axis), parts, node.shape))
    others = [value for value in node.inputs if value not in terms]
    if others:
        made.append(_like(node, AddN(), [*others, made[-1]], node.shape))
    made[-1].name = node.name
    made[-1].attrs = dict(node.attrs)
    rewriter.put(node, made)
    rewriter.replace(node, made[-1])


def _like(node: Node, op: Reshape | Concat | AddN, inputs: Sequence[Value], shape: tuple[int, ...]) -> Node:
    type = node.tensor_type.with_shape(shape)
    return Node(op, inputs, type, "", node.instance, node.scope, node.frames, node.phase)
