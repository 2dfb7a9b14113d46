"""Gives an attention the tensor of which query, key and value are parts, as one operand.

Input:  `%2, %3, %4 = Split(%1) {axis: 2}`, `%5 = FlashAttentionScore(%2, %3, %4)`, and Concat of the three gradients
Output: `%2 = FlashAttentionScore(%1) {packed: 8}`, and its gradient

So it is where a network has one product for the three, and where `join_products` has made one of three. Slices,
transposes and reshapes, in whatever words, may lie between a tensor and its parts: where they put the elements counts.
The parts may have other readers, their gradients none but what joins them; else all stays as it is. Operands of layout
"BNSD" that are transposed from "BSND" become that layout again. It runs on a rank's graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad
from mspc.ops.nn.attention_base import HEADS_BEHIND
from mspc.ops.nn.attention_kernel import Shape
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import Reshape
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.attention_parts import (
    Attention,
    NoMatch,
    PartsGraph,
    PartsMatch,
    attention_of,
    parts_matched,
)
from mspc.passes.fusion.rewriter import Emitter
from mspc.passes.lib.stage_placement import computed_by


@dataclass(frozen=True)
class PackAttention(Pass):
    """Replace the three operands of attentions by one. stage: that of a pipeline whose attentions they are; -1: of
    all."""

    stage: int = -1

    def run(self, graph: Graph) -> bool:
        mine = computed_by(graph.attrs, self.stage)
        attentions: dict[tuple[Value, ...], list[Node]] = {}
        for node in graph.nodes:
            if isinstance(node.op, Attention) and not node.op.packed and mine(node):
                attentions.setdefault(tuple(node.inputs[:3]), []).append(node)
        if not attentions:
            return False
        facts = PartsGraph.of(graph)
        plan = _Packing(graph)
        for operands, nodes in attentions.items():
            try:
                _pack_parts(facts, operands, [node for node in nodes if node in facts.live], plan)
            except NoMatch:
                continue
        if not plan.apply():
            return False
        remove_dead(graph)
        return True


class _Packing(Emitter):
    """by_place: results of attentions by head, and the same in the order of the sequence."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.by_place: dict[Value, Value] = {}


def _pack_parts(facts: PartsGraph, operands: Sequence[Value], nodes: list[Node], plan: _Packing) -> None:
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


def _packed_attention(facts: PartsGraph, match: PartsMatch, node: Node, packed: Value, plan: _Packing) -> Node:
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
