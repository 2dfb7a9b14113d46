"""Makes products of one operand with several weights one product, and so the products of their gradients.

Input:  `%1 = MatMul(%x, %wq)`, `%2 = MatMul(%x, %wk)`, `%3 = MatMul(%x, %wv)`, with their readers
Output: `%1 = Concat(%wq, %wk, %wv) {axis: 1}`, `%2 = MatMul(%x, %1)`, and slices of %2

A bias may be added to each, perhaps in a wider element type; it is then one sum, too. Backward the gradients are
joined: the products that are summed for the gradient of x become one, as do those for the gradients of the weights,
which are taken apart again, and the sums for the biases. Forward and backward are joined one without the other
if that pays (`joined_products`). Fused kernels read the slices and write the joined gradients in place, an
attention reads all of the product (`pack_attention`), and updates keep the joined weights up to date
(`analysis.shadow_weights`).

It runs on a rank's graph: ranks still exchange the gradients of the single weights. Nodes keep their
order, but a reader of a product waits until all of them are there; no collective passes another. Products
are summed in another order, and the sum of those for x is rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mspc.ir.graph import Graph, Node, Value
from mspc.ops.collective.base import Collective
from mspc.ops.math.arithmetic import AddN
from mspc.ops.math.matmul import BiasAdd, MatMul
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.reshape import ReduceSum
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.joined_products import AlikeGradients, AlikeProducts, Joins, ProductGraph, best, free_parts
from mspc.passes.fusion.rewriter import Emitter
from mspc.passes.lib.stage_placement import computed_by


class JoinProducts(Pass):
    """Replace matmuls of one operand by one. stage: a pipeline stage; -1: all."""

    stage: int = -1

    def run(self, graph: Graph) -> bool:
        mine = computed_by(graph.attrs, self.stage)
        if not any(isinstance(node.op, MatMul) and mine(node) for node in graph.nodes):
            return False
        facts = ProductGraph(graph)
        groups = [group for group in facts.groups() if mine(group.products[0])]
        if not groups:
            return False
        # Products that are computed again for the gradients are those whose gradients they are.
        latest_first = sorted(groups, key=lambda group: -facts.index[group.products[0]])
        gradients = {id(group): facts.gradients(group) for group in latest_first}
        plan = _Joining(graph, facts)
        for group in groups:
            plan.join(group, gradients[id(group)])
        plan.add_up()
        if not plan.apply():
            return False
        _put_in_order(graph)
        remove_dead(graph)
        return True


class _Joining(Emitter):
    """by_term: the replacement of each term of a sum, None if it is removed. claimed: matmuls that are replaced."""

    def __init__(self, graph: Graph, facts: ProductGraph) -> None:
        super().__init__(graph)
        self.facts = facts
        self.claimed: set[Node] = set()
        self.by_term: dict[Node, dict[Value, Value | None]] = {}

    def join(self, group: AlikeProducts, gradients: AlikeGradients | None) -> None:
        """Record the joins of all matmuls, or of those with parts that cost nothing."""
        joins, saved = best(self.facts, group, gradients, self._may(group, gradients))
        free = free_parts(self.facts, group)
        if not group.attention and 1 < len(free) < len(group.products):
            fewer, theirs = group.some(free), gradients.some(free) if gradients is not None else None
            other, more = best(self.facts, fewer, theirs, self._may(fewer, theirs))
            if more > saved:
                group, gradients, joins = fewer, theirs, other
        weight = self._forward(group) if joins.forward else None
        if gradients is not None and (joins.inputs or joins.weights):
            self._backward(group, gradients, joins, weight)

    def _may(self, group: AlikeProducts, gradients: AlikeGradients | None) -> Joins:
        """Return the joins that are possible."""
        back = _taking_part(gradients, Joins(False, True, True)) if gradients is not None else []
        able = gradients is not None and self._can(back)
        return Joins(
            self._can([*group.products, *group.adds]),
            able and gradients is not None and bool(gradients.inputs),
            able and gradients is not None and bool(gradients.weights),
        )

    def _can(self, nodes: Sequence[Node]) -> bool:
        if not nodes or not self.claimed.isdisjoint(nodes):
            return False
        return self.facts.may_wait(nodes) and self.facts.unchanged(nodes)

    def _place(self, nodes: Sequence[Node], read: Sequence[Value]) -> Node:
        """Return the node after the last operand; or the first of `nodes` if a parameter changes before them."""
        self.claimed.update(nodes)
        index = self.facts.index
        behind = max((index[value] for value in read if value in index), default=-1) + 1
        first = min(index[node] for node in nodes)
        return self.graph.nodes[first if any(behind <= i < first for i in self.facts.fences) else behind]

    def _forward(self, group: AlikeProducts) -> Node:
        """Replace all matmuls by one; return the joined weights."""
        products, adds = group.products, group.adds
        place = self._place([*products, *adds], [group.x, *group.weights, *(node.inputs[1] for node in adds)])
        weight = self.emit(place, Concat(group.weight_axis), group.weights, products[0])
        joined = self.emit(place, group.op, [group.x, weight], products[0], products)
        if adds:
            joined = self.cast(place, joined, adds[0].tensor_type.dtype, adds[0])
            bias = self.emit(place, Concat(0), [node.inputs[1] for node in adds], adds[0])
            joined = self.emit(place, BiasAdd("NHWC"), [joined, bias], adds[0], adds)
            self.gone.update(products)
        self.take_apart(joined, 1, group.columns, adds or products, place)
        return weight

    def _backward(self, group: AlikeProducts, gradients: AlikeGradients, joins: Joins, weight: Node | None) -> None:
        axis, columns = group.weight_axis, group.columns
        others = [node.inputs[1] for node in gradients.inputs] if joins.inputs and weight is None else []
        x = gradients.weights[0].inputs[1 - axis] if joins.weights else group.x
        place = self._place(_taking_part(gradients, joins), [*gradients.bases, *others, x])
        like = (gradients.inputs or gradients.weights)[0]
        slopes = self._side_by_side(place, gradients.bases, group, like)
        dy = self.cast(place, slopes, group.products[0].tensor_type.dtype, like)
        if joins.inputs and gradients.total is not None:
            inputs = gradients.inputs
            if weight is None:
                weight = self.emit(place, Concat(axis), [node.inputs[1] for node in inputs], inputs[0])
            dx = self.emit(place, MatMul(False, axis == 1), [dy, weight], inputs[0], inputs)
            for step in gradients.behind[0]:
                assert isinstance(step.op, Op)
                dx = self.emit(place, step.op, [dx], step, takes=True)
            ends = [chain[-1] if chain else node for chain, node in zip(gradients.behind, inputs, strict=True)]
            self.by_term.setdefault(gradients.total, {}).update({ends[0]: dx, **dict.fromkeys(ends[1:])})
        if joins.weights:
            dw = self.emit(place, MatMul(True, False), [x, dy] if axis else [dy, x], gradients.weights[0],
                           gradients.weights)  # fmt: skip
            self.take_apart(dw, axis, columns, gradients.weights, place)
        if gradients.sums:
            slopes = self.cast(place, slopes, gradients.sums[0].inputs[0].tensor_type.dtype, like)
            total = self.emit(place, ReduceSum(axis=(0,)), [slopes], gradients.sums[0], gradients.sums)
            self.take_apart(total, 0, columns, gradients.sums, place)

    def _side_by_side(self, place: Node, bases: Sequence[Value], group: AlikeProducts, like: Node) -> Node:
        """Return the gradients as one matrix, joined in the shape in which they are made if possible: a kernel can then
        write each element in place."""
        rows, columns = group.products[0].shape[0], group.columns
        first = bases[0].shape
        axis = next((d for d in range(len(first)) if math.prod(first[:d]) == rows), 0)
        rest = {(value.shape[:axis], value.shape[axis + 1 :]) for value in bases}
        parts = bases
        if not axis or len(rest) > 1:
            axis = 1
            parts = [self.shaped(place, v, (rows, size), like) for v, size in zip(bases, columns, strict=True)]
        joined = self.emit(place, Concat(axis), parts, like)
        made = self.shaped(place, joined, (rows, sum(columns)), like)
        assert isinstance(made, Node)
        return made

    def add_up(self) -> None:
        """Emit the sums with the current terms."""
        for total, terms in self.by_term.items():
            values = [terms.get(value, value) for value in total.inputs]
            left = [value for value in values if value is not None]
            self.replace(total, left[0] if len(left) == 1 else self.emit(total, AddN(), left, total, takes=True))


def _taking_part(gradients: AlikeGradients, joins: Joins) -> list[Node]:
    inputs = gradients.inputs if joins.inputs else []
    return [*inputs, *(gradients.weights if joins.weights else []), *gradients.sums]


def _put_in_order(graph: Graph) -> None:
    """Move nodes after their operands; collectives keep their order."""
    waiting: list[Node] = []
    missing: set[Value] = set(graph.nodes)
    nodes: list[Node] = []

    def ready(node: Node, ahead: Sequence[Node]) -> bool:
        if not missing.isdisjoint(node.inputs):
            return False
        return not isinstance(node.op, Collective) or not any(isinstance(other.op, Collective) for other in ahead)

    for node in graph.nodes:
        if not ready(node, waiting):
            waiting.append(node)
            continue
        nodes.append(node)
        missing.discard(node)
        i = 0
        while i < len(waiting):
            if ready(waiting[i], waiting[:i]):
                nodes.append(waiting[i])
                missing.discard(waiting.pop(i))
                i = 0
            else:
                i += 1
    assert not waiting, "products were joined in a circle"
    graph.nodes = nodes
