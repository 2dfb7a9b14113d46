"""Finds one tensor of which an attention's query, key and value are parts, and what their gradients are joined to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import cast

from mspc.ir.graph import Graph, Node, Value, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.index_map import Coordinate, IndexMap, along, flattened, reshaped
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from mspc.ops.nn.attention_kernel import Shape
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.passes.cleanup.simplify import live_values

Attention = FlashAttentionScore | FlashAttentionScoreGrad | FlashAttentionScoreShiftGrad
Dims = tuple[int, ...]
Seen = tuple[Value, tuple[Coordinate, ...]]
"""A value, and the places along its dimensions."""


class NoMatch(Exception):
    """There is no tensor of parts, or something needs the gradients apart."""


@dataclass(frozen=True)
class PartsGraph:
    """The graph as it was. live: what is needed. users: the readers among them."""

    live: set[Value]
    users: dict[Value, list[tuple[Node, int]]]
    results: set[Value]

    @staticmethod
    def of(graph: Graph) -> PartsGraph:
        live = live_values(graph)
        users: dict[Value, list[tuple[Node, int]]] = {}
        for node in graph.nodes:
            for place, value in enumerate(node.inputs if node in live else ()):
                users.setdefault(value, []).append((node, place))
        return PartsGraph(live, users, set(graph.results))

    def readers(self, value: Value) -> list[tuple[Node, int]]:
        """Raises NoMatch for what the graph returns."""
        if value in self.results:
            raise NoMatch
        return self.users.get(value, [])


@dataclass(frozen=True)
class PartsMatch:
    """An attention of parts. whole: holds, for every token, the heads of query, key and value one behind the other.
    layout: the new one of the attentions. joined: by gradient of an attention, what has all elements of its three
    results in the order of `whole`."""

    whole: Node
    shape: Shape
    layout: str
    transposed: bool
    joined: dict[Node, Node]


def parts_matched(facts: PartsGraph, operands: Sequence[Value], attentions: list[Node]) -> PartsMatch:
    """Raises NoMatch."""
    if not attentions or len(set(operands)) != 3:
        raise NoMatch
    op = attention_of(attentions[0])
    shape, layout = op.shape_of(operands), op.input_layout
    if shape.queries != shape.keys or shape.depth != shape.value_depth:
        raise NoMatch
    ways = [dict(_origins(value, _unmoved(value), value.shape)) for value in operands]
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
    """Where an element of query, key or value (0, 1, 2) lies in the whole tensor, by its coordinates in `layout`."""
    row = (shape.heads + 2 * shape.key_heads) * shape.depth
    first = (0, shape.heads, shape.heads + shape.key_heads)[index] * shape.depth
    steps = {"B": shape.queries * row, "S": row, "N": shape.depth, "D": 1, "H": 1}
    if layout == "SBH":
        steps |= {"S": shape.batch * row, "B": row}
    return Coordinate(first, tuple((d, steps[name]) for d, name in enumerate(layout)))


def _unmoved(value: Value) -> tuple[Coordinate, ...]:
    return tuple(along(d) for d in range(len(value.shape)))


def _same(one: Coordinate, other: Coordinate, dims: Dims) -> bool:
    """Whether two places are one over a space of these dimensions."""
    terms = [tuple(term for term in place.terms if dims[term[0]] > 1) for place in (one, other)]
    return one.offset == other.offset and terms[0] == terms[1]


def _origins(value: Value, places: tuple[Coordinate, ...], dims: Dims) -> Iterator[Seen]:
    """The value at these places, and what its elements were before they moved, step by step, and before one change of
    their type."""
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
    """An operand of what moved the elements, and their places there; None where something else made them."""
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
    """The operand, and the places in it, in the one piece of a map that has all these places."""
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
    """What a gradient's three results become, and nothing else reads. Raises NoMatch."""
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
    """What is made of a value alone, or of it and others, as long as it has one reader that moves elements."""
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
    """Whether a part's elements lie in `whole` at these places."""
    dims = part.shape
    places = reshaped([flat], (_size(shape),), whole.shape, dims)
    if places is None:
        return False
    for value, seen in _origins(whole, tuple(places), dims):
        if value is part:
            return all(_same(place, along(d), dims) for d, place in enumerate(seen) if dims[d] > 1)
    return False
