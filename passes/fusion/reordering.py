"""Walks a graph node by node, and lets what reads a value that lies in another order than its shape says go on there.

Every operator says itself how it works on what lies in another order (`Op.reordered`), and one that cannot may be taken
apart into those that can (`Op.as_reductions`). What only shows a value otherwise, a reshape or a transpose of the
script's, costs nothing: it is another order of the same memory. Values are moved where others need them as their shapes
say, once for all of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, cast

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import TensorType, TupleType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import closes, row_axes
from mspc.ops.memory_order import MemoryOrder
from mspc.ops.op import Op
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.stored_values import FusedValueMap, moved_bytes


def reorder(graph: Graph, continues: Callable[[MemoryOrder], bool], most: int) -> bool:
    """Walk a graph; whether it is another then. It stays where more than `most` bytes are moved.

    continues: whether what reads a value as its shape says goes on in an order that a transpose of the script shows.
    """
    nodes, results, inputs = graph.nodes, graph.results, [list(node.inputs) for node in graph.nodes]
    walk = _ReorderingWalk(graph, continues)
    for node in nodes:
        walk.visit(node)
    graph.nodes, graph.results = walk.values.b.nodes, [walk.values.plain(value) for value in results]
    remove_dead(graph)
    if moved_bytes(graph.nodes) <= most:
        return True
    graph.nodes, graph.results = nodes, results
    for node, own in zip(nodes, inputs, strict=True):
        node.inputs = own
    return False


class _ReorderingWalk:
    """The nodes in order, each as it was or on values in other orders.

    tuples: what is in the place of a node with several results, and their orders. parts: the results of nodes that were
    taken apart. whole: values that something reads as a tuple.
    """

    def __init__(self, graph: Graph, continues: Callable[[MemoryOrder], bool]) -> None:
        self.continues = continues
        self.values = FusedValueMap(graph)
        self.tuples: dict[Value, tuple[Node, Sequence[MemoryOrder]]] = {}
        self.parts: dict[Value, Sequence[Value]] = {}
        self.whole = {v for n in graph.nodes if not isinstance(n.op, TupleGetItem) for v in n.inputs}
        self.whole.update(graph.results)

    def visit(self, node: Node) -> None:
        """Put a node behind the others."""
        self.values.b.like(node)
        self.values.b.phase, self.values.b.forward = node.phase, node.forward
        if isinstance(node.op, TupleGetItem) and node.inputs[0] in self.tuples:
            made, orders = self.tuples[node.inputs[0]]
            self.values.make(node, orders[node.op.index], self.values.emit_as(node, node.op, [made]))
        elif isinstance(node.op, TupleGetItem) and node.inputs[0] in self.parts:
            self.values.same(node, self.parts[node.inputs[0]][node.op.index])
        elif not (self._is_tensors(node) and (self._shows(node) or self._changes(node) or self._comes_apart(node))):
            self._stays(node)

    def _is_tensors(self, node: Node) -> bool:
        """Whether the node works on tensors, and every tensor that it makes is read by itself."""
        if isinstance(node.type, TupleType) and node in self.whole:
            return False
        shapes = [value.type.shape for value in node.inputs if isinstance(value.type, TensorType)]
        return isinstance(node.op, Op) and 0 < len(node.inputs) == len(shapes) and not any(0 in s for s in shapes)

    def _stays(self, node: Node) -> None:
        node.inputs = [self.values.plain(value) for value in node.inputs]
        self.values.b.nodes.append(node)

    def _shows(self, node: Node) -> bool:
        """Whether the node shows its operand in another shape or order, in the same memory."""
        op, (value, *others) = cast(Op, node.op), node.inputs
        own = self.values.order(value)
        if others or not (op.reshapes or op.moves):
            return False
        found = op.reordered([value.tensor_type], [own])
        if found is None or found.op is not None:
            return False
        result, plain = found.results[0], MemoryOrder.of(node.shape)
        for order, stored in self.values.known(value):
            seen = op.reordered([value.tensor_type], [order])
            if seen is not None:
                self.values.hold(node, seen.results[0], stored)
                result = seen.results[0] if own.is_plain and self.continues(seen.results[0]) else result
        if own.is_plain and not op.reshapes and plain.memory not in self.values.held[node]:
            dims = sorted(range(own.rank), key=lambda place: result.parts[place].dim)
            made = self.values.made_again(value, MemoryOrder.of(value.shape, dims))
            if made is not None:
                self.values.hold(node, plain, made)
        # What moves nothing and was moved by nobody stays the script's node; so does a transpose of such a value.
        if own.is_plain and (op.reshapes or plain.memory not in self.values.held[node]):
            self._stays(node)
            self.values.hold(node, plain, node)
        if not own.is_plain or self.continues(result):
            self.values.make(node, result, self.values.held[node][result.memory][1])
        return True

    def _changes(self, node: Node) -> bool:
        """Whether the node works on operands in the orders in which they lie."""
        op = cast(Op, node.op)
        orders = [self.values.order(value) for value in node.inputs]
        if all(order.is_plain for order in orders) and not op.wants_channels_last:
            return False
        found = op.reordered([value.tensor_type for value in node.inputs], orders)
        if found is None or found.op is None:
            return False
        sources = [self.values.stored(value, own) for value, own in zip(node.inputs, found.operands, strict=True)]
        if op.wants_channels_last:
            self.values.moved_for_good(node.inputs, found.operands)
        if isinstance(node.type, TensorType):
            self.values.make(node, found.results[0], self._made(node, found.op, sources), found.continues)
            return True
        self.tuples[node] = self.values.emit_as(node, found.op, sources), found.results
        return True

    def _made(self, node: Node, op: Any, sources: Sequence[Value]) -> Node:
        """The operator in a node's place. A reduction along dimensions that lie apart is several, one along neighbours
        after the other, that of most places first: it leaves the least. (Not where it would round in between.)"""
        kind = sources[0].tensor_type
        axes = (row_axes(op, [kind]) or ()) if closes(op) and kind.dtype.itemsize >= 4 else ()
        dims = [(d in axes, d) for d, n in enumerate(kind.shape) if n != 1]
        runs = [[d for _, d in run] for reduced, run in groupby(dims, key=lambda pair: pair[0]) if reduced]
        if len(runs) < 2:
            return self.values.emit_as(node, op, sources)
        first = max(runs, key=lambda run: math.prod(kind.shape[d] for d in run))
        left = self.values.emit_as(node, replace(op, axis=tuple(first), keep_dims=True), sources)
        return self._made(node, op, [left])

    def _comes_apart(self, node: Node) -> bool:
        """Whether the node is one of several operators on operands that do not lie as their shapes say."""
        op = cast(Op, node.op)
        kind = type(op)
        if kind.as_reductions is Op.as_reductions and kind.as_rows is Op.as_rows:
            return False
        if all(self.values.order(value).is_plain for value in node.inputs):
            return False
        nodes: list[Node] = []
        b = Builder(self.values.b.graph, nodes).like(node)
        b.phase, b.forward = node.phase, node.forward
        found = op.as_reductions(b, *node.inputs)
        for each in nodes:
            each.attrs["fused"] = (node.label,)
            self.visit(each)
        self.parts[node] = found
        if isinstance(node.type, TensorType):
            self.values.same(node, found[0])
        return True
