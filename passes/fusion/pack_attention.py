"""Makes one operand of an attention's query, key and value: of the three matrix products of the same rows that give
them one product, or the tensor of which they are parts.

Input:  `%1 = MatMul(%x, %wq)`, `%2 = MatMul(%x, %wk)`, `%3 = MatMul(%x, %wv)`, `%4 = FlashAttentionScore(%1, %2, %3)`
        (with reshapes between them, and a bias added to each or to none, perhaps in a wider element type)
Output: `%1 = Concat(%wq, %wk, %wv) {axis: 1}`, `%2 = MatMul(%x, %1)`, `%3 = FlashAttentionScore(%2) {packed: 8}`

Backward the attention's gradient is one tensor too; the three products that are summed for the gradient of x become
one, as do those for the gradients of the weights, which a Split takes apart again, and the sums for the biases.

Input:  `%2, %3, %4 = Split(%1) {axis: 2}`, `%5 = FlashAttentionScore(%2, %3, %4)`, and Concat of the three gradients
Output: `%2 = FlashAttentionScore(%1) {packed: 8}`, and its gradient

Slices, transposes and reshapes, in whatever words, may lie between a tensor and its parts: where they put the elements
counts. There the parts may have other readers, their gradients none but what joins them.

For one product, query, key and value must have no readers but attentions and their gradients, and their gradients none
but these products and sums; else all stays as it is. Operands of layout "BNSD" that are transposed from "BSND" become
that layout again. It runs on a rank's graph: what the ranks exchange are still the gradients of the three weights.
Products are summed in another order, and the sum of the three is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import AddN
from mspc.ops.math.matmul import BiasAdd, MatMul
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad
from mspc.ops.nn.attention_kernel import Shape
from mspc.ops.nn.attention_order import HEADS_BEHIND
from mspc.ops.op import Op
from mspc.ops.tensor.broadcast import ReduceSum
from mspc.ops.tensor.cast import Cast
from mspc.ops.tensor.moving import Concat, Split, Transpose
from mspc.ops.tensor.reshape import Reshape
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.attention_parts import PartsMatch, parts_matched
from mspc.passes.fusion.projections import (
    Attention,
    AttentionReaders,
    NoMatch,
    ProjectionGraph,
    ProjectionMatch,
    attention_of,
    matched,
)
from mspc.passes.fusion.rewriter import Rewriter


@dataclass(frozen=True)
class PackAttention(Pass):
    """Replace three products in front of an attention by one."""

    def run(self, graph: Graph) -> bool:
        attentions: dict[tuple[Value, ...], list[Node]] = {}
        for node in graph.nodes:
            if isinstance(node.op, Attention) and not node.op.packed:
                attentions.setdefault(tuple(node.inputs[:3]), []).append(node)
        if not attentions:
            return False
        facts = ProjectionGraph.of(graph)
        plan = _Packing(graph)
        for operands, nodes in attentions.items():
            live = [node for node in nodes if node in facts.live]
            for packed in (_pack_products, _pack_parts):
                try:
                    packed(facts, operands, live, plan)
                    break
                except NoMatch:
                    continue
        plan.add_up()
        if not plan.apply():
            return False
        remove_dead(graph)
        return True


class _Packing(Rewriter):
    """by_place: results of attentions by head, and the same in the order of the sequence. terms: of sums what is
    for a term, None where it goes.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.by_place: dict[Value, Value] = {}
        self.terms: dict[Node, dict[Value, Value | None]] = {}

    def emit(
        self, place: Node, op: Op, inputs: Sequence[Value], like: Node, parts: Sequence[Node] = (), takes: bool = False
    ) -> Node:
        """A new node in the place of one that goes, at the lines of `like`. It replaces all of `parts`, or `takes`
        the names and facts of `like`."""
        type = op.infer(*[value.type for value in inputs])  # type: ignore[misc]  # structural operators take tuples
        made = Node(op, inputs, type, scope=like.scope, frames=like.frames, phase=like.phase)
        if takes:
            made.name, made.instance, made.attrs = like.name, like.instance, dict(like.attrs)
        if parts:
            made.attrs["fused"] = tuple(part.label for part in parts)
        self.put(place, [made])
        return made

    def cast(self, place: Node, value: Node, dtype: DType, like: Node) -> Node:
        """The value in this element type."""
        return value if value.tensor_type.dtype == dtype else self.emit(place, Cast(dtype), [value], like)

    def add_up(self) -> None:
        """Make the sums of what their terms are now."""
        for total, terms in self.terms.items():
            values = [terms.get(value, value) for value in total.inputs]
            left = [value for value in values if value is not None]
            self.replace(total, left[0] if len(left) == 1 else self.emit(total, AddN(), left, total, takes=True))


def _pack_products(facts: ProjectionGraph, operands: Sequence[Value], nodes: list[Node], plan: _Packing) -> None:
    """Note one product in the place of three, and attentions that read its result. Raises NoMatch."""
    match = matched(facts, operands, nodes)
    place, products, shape = match.attentions[0], match.products, match.shape
    weights = [product.inputs[1] for product in products]
    weight = plan.emit(place, Concat(match.weight_axis), weights, products[0])
    packed = plan.emit(place, cast(MatMul, products[0].op), [products[0].inputs[0], weight], products[0], products)
    adders = [source.adds for source in match.sources if source.adds is not None]
    if adders:
        bias = plan.emit(place, Concat(0), [node.inputs[1] for node in adders], adders[0])
        packed = plan.cast(place, packed, match.dtypes[1], adders[0])
        packed = plan.emit(place, BiasAdd("NHWC"), [packed, bias], adders[0], adders)
    packed = plan.cast(place, packed, match.dtypes[2], products[0])
    packed = plan.emit(place, Reshape(_sides(shape, match.layout)), [packed], products[0])
    for node in match.attentions:
        made = _packed_attention(facts, match, node, packed, plan)
        if node in match.backward:
            _pack_gradients(match, match.backward[node], made, weight, plan)


def _pack_parts(facts: ProjectionGraph, operands: Sequence[Value], nodes: list[Node], plan: _Packing) -> None:
    """Note attentions that read a tensor of which they read parts. Raises NoMatch."""
    match = parts_matched(facts, operands, nodes)
    place = nodes[0]
    packed = plan.cast(place, match.whole, operands[0].tensor_type.dtype, place)
    packed = plan.emit(place, Reshape(_sides(match.shape, match.layout)), [packed], place)
    for node in nodes:
        made = _packed_attention(facts, match, node, packed, plan)
        if node in match.joined:
            whole = match.joined[node]
            slopes = plan.emit(node, Reshape(whole.shape), [made], whole)
            plan.replace(whole, plan.cast(node, slopes, whole.tensor_type.dtype, whole))


def _sides(shape: Shape, layout: str) -> tuple[int, ...]:
    """The shape of a packed operand."""
    heads = shape.heads + 2 * shape.key_heads
    return {
        "BSND": (shape.batch, shape.queries, heads, shape.depth),
        "BSH": (shape.batch, shape.queries, heads * shape.depth),
        "SBH": (shape.queries, shape.batch, heads * shape.depth),
    }[layout]


def _packed_attention(
    facts: ProjectionGraph, match: ProjectionMatch | PartsMatch, node: Node, packed: Value, plan: _Packing
) -> Node:
    """The attention on a packed operand; values by head that it shares with others change to the new layout."""
    op = attention_of(node)
    operands = [packed, *node.inputs[3:]]
    forward, gradient = isinstance(op, FlashAttentionScore), isinstance(op, FlashAttentionScoreGrad)
    if match.transposed and not forward:
        for index in (1, len(operands) - 1):  # the slope and the result, of both gradients
            operands[index] = _by_place(operands[index], node, plan)
    packed_op = replace(op, packed=match.shape.key_heads, input_layout=match.layout)
    made = plan.emit(node, packed_op, operands, node, takes=True)
    if not gradient:
        plan.replace(node, made)
    if match.transposed and forward:
        for reader, _ in facts.users.get(node, ()):
            if reader.op != TupleGetItem(3):
                continue
            result = plan.by_place[reader] = plan.emit(node, TupleGetItem(3), [made], reader, takes=True)
            plan.replace(reader, plan.emit(node, Transpose(HEADS_BEHIND), [result], reader))
            for user, _ in facts.users.get(reader, ()):
                if isinstance(user.op, Transpose) and tuple(user.op.perm) == HEADS_BEHIND:
                    plan.replace(user, result)
    return made


def _by_place(value: Value, place: Node, plan: _Packing) -> Value:
    """A value by head in the order of the sequence."""
    if value in plan.by_place:
        return plan.by_place[value]
    if isinstance(value, Node) and isinstance(value.op, Transpose) and tuple(value.op.perm) == HEADS_BEHIND:
        return value.inputs[0]
    return plan.emit(place, Transpose(HEADS_BEHIND), [value], place)


def _pack_gradients(
    match: ProjectionMatch, back: AttentionReaders, gradient: Node, weight: Node, plan: _Packing
) -> None:
    """One product for x, one for the weights and one sum for the biases."""
    place, axis = back.node, match.weight_axis
    columns = [product.shape[1] for product in match.products]
    slopes = plan.emit(place, Reshape((match.products[0].shape[0], sum(columns))), [gradient], place)
    multiplying, adding, _ = match.dtypes
    dy = plan.cast(place, slopes, multiplying, place)
    if back.total is not None:
        dx = plan.emit(place, MatMul(False, axis == 1), [dy, weight], back.inputs[0], back.inputs)
        for step in back.behind[0]:
            dx = plan.emit(place, cast(Op, step.op), [dx], step, takes=True)
        ends = [chain[-1] if chain else product for chain, product in zip(back.behind, back.inputs, strict=True)]
        plan.terms.setdefault(back.total, {}).update({ends[0]: dx, ends[1]: None, ends[2]: None})
    if back.weights:
        x = back.weights[0].inputs[1 - axis]
        dw = plan.emit(place, MatMul(True, False), [x, dy] if axis else [dy, x], back.weights[0], back.weights)
        _take_apart(dw, axis, columns, back.weights, place, plan)
    if back.biases:
        slopes = plan.cast(place, slopes, adding, place)
        total = plan.emit(place, ReduceSum(axis=(0,)), [slopes], back.biases[0], back.biases)
        _take_apart(total, 0, columns, back.biases, place, plan)


def _take_apart(
    joined: Node, axis: int, columns: Sequence[int], parts: Sequence[Node], place: Node, plan: _Packing
) -> None:
    """Put slices of a tensor in the place of the nodes that gave them one by one."""
    if len(set(columns)) == 1:
        split = plan.emit(place, Split(axis, len(columns)), [joined], parts[0])
        for index, part in enumerate(parts):
            plan.replace(part, plan.emit(place, TupleGetItem(index), [split], part, takes=True))
        return
    last = 0
    for part, size in zip(parts, columns, strict=True):
        first, last = last, last + size
        begin = tuple(first if d == axis else 0 for d in range(len(joined.shape)))
        end = tuple(last if d == axis else n for d, n in enumerate(joined.shape))
        op = StridedSlice(begin=begin, end=end, strides=(1,) * len(begin))
        plan.replace(part, plan.emit(place, op, [joined], part, takes=True))
