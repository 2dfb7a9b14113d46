"""Give an attention the tensor that holds query, key and value, as one operand.

Input:  `%2, %3, %4 = Split(%1) {axis: 2}`, `%5 = FlashAttentionScore(%2, %3, %4)`, and Concat of the three gradients
Output: `%2 = FlashAttentionScore(%1) {packed: 8}`, and its gradient

A network may have one matmul for the three, or `join_products` has made one of three. Slices,
transposes and reshapes of any form may come between a tensor and its parts: only the resulting positions count.
The parts may have other readers, their gradients only the join; else all stays as it is. Operands of layout
"BNSD" that are transposed from "BSND" become that layout again. It runs on a rank's graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from mspc.ir.graph import Graph, Node, Value, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.index_map import Coordinate, IndexMap, along, flattened, reshaped
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.ops.nn.attention_base import HEADS_BEHIND
from mspc.ops.nn.attention_kernel import Shape
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.passes.base import Pass, live_values, runs_anyway
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.rewriter import Emitter
from mspc.passes.lib.stage_placement import computed_by

# Finds one tensor of which an attention's query, key and value are parts, and what their gradients are joined to.


Attention = FlashAttentionScore | FlashAttentionScoreGrad | FlashAttentionScoreShiftGrad
Dims = tuple[int, ...]
Seen = tuple[Value, tuple[Coordinate, ...]]
"""A value, and the places along its dimensions."""


class NoMatch(Exception):
    """There is no tensor of parts, or something needs the gradients apart."""


@dataclass(frozen=True)
class PartsGraph:
    """The graph as it was. live: values that are needed. users: their readers."""

    live: set[Value]
    users: dict[Value, list[tuple[Node, int]]]
    results: set[Value]

    @staticmethod
    def of(graph: Graph) -> PartsGraph:
        live = live_values(graph.nodes, graph.results, runs_anyway)
        users: dict[Value, list[tuple[Node, int]]] = {}
        for node in graph.nodes:
            for place, value in enumerate(node.inputs if node in live else ()):
                users.setdefault(value, []).append((node, place))
        return PartsGraph(live, users, set(graph.results))

    def readers(self, value: Value) -> list[tuple[Node, int]]:
        """Return the readers of a value. Raise NoMatch for results of the graph."""
        if value in self.results:
            raise NoMatch
        return self.users.get(value, [])


@dataclass(frozen=True)
class PartsMatch:
    """An attention of parts.

    whole: holds, for every token, the heads of query, key and value in sequence. layout: the new one of the attentions.
    joined: by gradient of an attention, the node with all elements of its three results in the order of `whole`.
    """

    whole: Node
    shape: Shape
    layout: str
    transposed: bool
    joined: dict[Node, Node]


def parts_matched(facts: PartsGraph, operands: Sequence[Value], attentions: list[Node]) -> PartsMatch:
    """Raise NoMatch."""
    if not attentions or len(set(operands)) != 3:
        raise NoMatch
    op = attention_of(attentions[0])
    shape, layout = op.shape_of(operands), op.input_layout
    if shape.queries != shape.keys or shape.depth != shape.value_depth:
        raise NoMatch
    ways = [dict(_origins(v, tuple(along(d) for d in range(len(v.shape))), v.shape)) for v in operands]
    flat = [_in_whole(shape, layout, index) for index in range(3)]
    for whole in ways[0]:
        if not isinstance(whole, Node) or math.prod(whole.shape) != _size(shape):
            continue
        found = [way.get(whole) for way in ways]
        if all(
            seen is not None and _same(flattened(seen, whole.shape), place, value.shape)
            for seen, place, value in zip(found, flat, operands, strict=True)
        ):
            gradients = [node for node in attentions if isinstance(node.op, FlashAttentionScoreGrad)]
            joined = {node: _joined(facts, node, flat, shape) for node in gradients}
            by_head = layout == "BNSD"
            return PartsMatch(whole, shape, "BSND" if by_head else layout, by_head, joined)
    raise NoMatch


def attention_of(node: Node) -> Attention:
    assert isinstance(node.op, Attention)
    return node.op


def _size(shape: Shape) -> int:
    return shape.batch * shape.queries * (shape.heads + 2 * shape.key_heads) * shape.depth


def _in_whole(shape: Shape, layout: str, index: int) -> Coordinate:
    """Return the position in the whole tensor of an element of query, key or value (0, 1, 2), by its coordinates in
    `layout`."""
    row = (shape.heads + 2 * shape.key_heads) * shape.depth
    first = (0, shape.heads, shape.heads + shape.key_heads)[index] * shape.depth
    steps = {"B": shape.queries * row, "S": row, "N": shape.depth, "D": 1, "H": 1}
    if layout == "SBH":
        steps |= {"S": shape.batch * row, "B": row}
    return Coordinate(first, tuple((d, steps[name]) for d, name in enumerate(layout)))


def _same(one: Coordinate, other: Coordinate, dims: Dims) -> bool:
    terms = [tuple(term for term in place.terms if dims[term[0]] > 1) for place in (one, other)]
    return one.offset == other.offset and terms[0] == terms[1]


def _origins(value: Value, places: tuple[Coordinate, ...], dims: Dims) -> Iterator[Seen]:
    """Yield the value with its positions, then each value before a move, and before one change of type."""
    at: Seen | None = (value, places)
    changed = False
    while at is not None:
        yield at
        value, places = at
        if not isinstance(value, Node) or not isinstance(value.op, Cast):
            at = _before(value, places, dims)
        elif changed:
            return
        else:
            at, changed = (value.inputs[0], places), True


def _before(value: Value, places: tuple[Coordinate, ...], dims: Dims) -> Seen | None:
    """Return the operand of a move, and the positions in it, or None if something else made the value."""
    if not isinstance(value, Node):
        return None
    if isinstance(value.op, Reshape):
        inner = reshaped(places, value.shape, value.inputs[0].shape, dims)
        return None if inner is None else (value.inputs[0], tuple(inner))
    node, op = value, cast(Op | None, value.op)
    if isinstance(op, TupleGetItem):
        node = value.inputs[0]
        if not isinstance(node, Node) or not _of_tensors(node):
            return None
        op = cast(Op, node.op).single_result(op.index, *operand_types(node))
    found = op.index_map(*operand_types(node)) if op is not None and _of_tensors(node) else None
    return None if found is None else _through(found, node, value.shape, places, dims)


def _of_tensors(node: Node) -> bool:
    return all(isinstance(value.type, TensorType) for value in node.inputs)


def _through(found: IndexMap, node: Node, shape: Dims, places: tuple[Coordinate, ...], dims: Dims) -> Seen | None:
    """Return the operand and the positions in the one piece of a map that contains all of these."""
    inner = reshaped(places, shape, found.dims, dims)
    if inner is None:
        return None
    for piece in found.pieces:
        if all(inner[d].always_in(begin, end, dims) for d, begin, end in piece.where):
            return node.inputs[piece.operand], tuple(place.of(inner) for place in piece.source)
        if not any(inner[d].never_in(begin, end, dims) for d, begin, end in piece.where):
            return None
    return None


def _joined(facts: PartsGraph, gradient: Node, flat: Sequence[Coordinate], shape: Shape) -> Node:
    """Return the node that a gradient's three results become and that alone reads them. Raises NoMatch."""
    parts: dict[int, Node] = {}
    for reader, _ in facts.readers(gradient):
        if not isinstance(reader.op, TupleGetItem) or reader.op.index in parts:
            raise NoMatch
        parts[reader.op.index] = reader
    if set(parts) != {0, 1, 2}:
        raise NoMatch
    ways = [list(_followed(facts, parts[index])) for index in range(3)]
    for node in ways[0]:
        if math.prod(node.shape) == _size(shape) and all(node in way for way in ways[1:]):
            if all(_holds(node, parts[index], flat[index], shape) for index in range(3)):
                return node
    raise NoMatch


def _followed(facts: PartsGraph, value: Node) -> Iterator[Node]:
    """Yield the values made from a value, as long as it has one reader that moves elements."""
    while True:
        readers = facts.users.get(value, [])
        if value in facts.results or len(readers) != 1:
            return
        value = readers[0][0]
        if not isinstance(value.op, Reshape | Cast):
            if not _of_tensors(value) or cast(Op, value.op).index_map(*operand_types(value)) is None:
                return
        yield value


def _holds(whole: Node, part: Node, flat: Coordinate, shape: Shape) -> bool:
    dims = part.shape
    places = reshaped([flat], (_size(shape),), whole.shape, dims)
    if places is None:
        return False
    for value, seen in _origins(whole, tuple(places), dims):
        if value is part:
            return all(_same(place, along(d), dims) for d, place in enumerate(seen) if dims[d] > 1)
    return False


class PackAttention(Pass):
    """Replace the three operands of attentions by one. stage: a pipeline stage; -1: all."""

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
    """Let attentions read the tensor that contains their operands. Raises NoMatch."""
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
    heads = shape.heads + 2 * shape.key_heads
    return {
        "BSND": (shape.batch, shape.queries, heads, shape.depth),
        "BSH": (shape.batch, shape.queries, heads * shape.depth),
        "SBH": (shape.queries, shape.batch, heads * shape.depth),
    }[layout]


def _packed_attention(facts: PartsGraph, match: PartsMatch, node: Node, packed: Value, plan: _Packing) -> Node:
    """Return the attention on a packed operand; values by head that it shares with others change to the new layout."""
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
    if value in plan.by_place:
        return plan.by_place[value]
    if isinstance(value, Node) and isinstance(value.op, Transpose) and tuple(value.op.perm) == HEADS_BEHIND:
        return value.inputs[0]
    return plan.emit(place, Transpose(HEADS_BEHIND), [value], place)
