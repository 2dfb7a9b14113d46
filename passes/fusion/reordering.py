"""Walk a graph node by node, and let readers of a value stored in another order than its shape continue in that order.

Every operator declares how it works on reordered operands (`Op.reordered`), and one that cannot may be taken
apart into those that can (`Op.as_reductions`). A view, a reshape or a transpose of the
script's, costs nothing: it is another order of the same memory. Values are moved if others need them as their shapes
say, once for all of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, cast

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Builder, Graph, Node, Parameter, Value
from mspc.ir.types import TensorType, TupleType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import closes, row_axes
from mspc.ops.memory_order import DimensionPart, MemoryOrder, Reordered
from mspc.ops.op import Op
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import BroadcastTo, Reshape
from mspc.passes.cleanup.simplify import remove_dead

# The values of a graph in the orders in which they are stored, and a graph that grows by what brings them there.


Memory = tuple[DimensionPart, ...]


class FusedValueMap:
    """Every value of the old graph, and the values that hold its elements in the new one, by their order in memory.

    b: the new graph. orders: the order in which readers continue, if it is not that of the shape.
    """

    def __init__(self, graph: Graph) -> None:
        self.b = Builder(graph, [])
        self.orders: dict[Value, MemoryOrder] = {}
        self.held: dict[Value, dict[Memory, tuple[MemoryOrder, Value]]] = {}
        self._shown: dict[tuple[Value, tuple[int, ...]], Value] = {}
        self._updates = Updates(graph)

    def order(self, value: Value) -> MemoryOrder:
        """Return the memory order in which readers of a value get it."""
        return self.orders.get(value) or MemoryOrder.of(value.shape)

    def hold(self, value: Value, order: MemoryOrder, stored: Value) -> None:
        """`stored` has the elements of `value`, in this order."""
        known = MemoryOrder(tuple(part for part in order.parts if part.dim >= 0), order.rank)
        self.held.setdefault(value, {})[known.memory] = known, stored

    def make(self, value: Value, order: MemoryOrder, stored: Value, continues: bool = True) -> None:
        """Record the same, if the reader `continues` in this order."""
        self.hold(value, order, stored)
        if continues and not order.is_plain:
            self.orders[value] = order

    def same(self, value: Value, other: Value) -> None:
        """Note that a value equals another one: it gets the orders of that."""
        for order, stored in self.known(other):
            self.hold(value, order, stored)
        if other in self.orders:
            self.orders[value] = self.orders[other]

    def moved_for_good(self, values: Sequence[Value], orders: Sequence[MemoryOrder]) -> None:
        """Let readers continue in these orders, except for parameters, whose updates do not."""
        for value, order in zip(values, orders, strict=True):
            updated = isinstance(value, Parameter) and value.trainable
            held = order.memory in self.held.get(value, {})
            if held and value not in self.orders and not order.is_plain and not updated:
                self.orders[value] = order

    def known(self, value: Value) -> list[tuple[MemoryOrder, Value]]:
        """Return all values that hold the elements of a value, each with its order."""
        if value not in self.held:
            self.hold(value, MemoryOrder.of(value.shape), value)
        return list(self.held[value].values())

    def plain(self, value: Value) -> Value:
        """Return a value, a tensor or a tuple, in the order of its shape."""
        if value not in self.held:
            return value
        return self.stored(value, MemoryOrder.of(value.shape))

    def stored(self, value: Value, order: MemoryOrder) -> Value:
        """Return the value with these elements in this order, in that shape."""
        self.known(value)
        found = self.held[value].get(order.memory)
        if found is not None:
            return self._with_shape(found[1], order.stored)
        made = self.made_again(value, order) or self._moved(value, order)
        if not self._updates.changes(value):
            self.hold(value, order, made)
        return self._with_shape(made, order.stored)

    def made_again(self, value: Value, order: MemoryOrder) -> Value | None:
        """Return the value recomputed in this order, if that moves nothing and reads less."""
        if not isinstance(value, Node) or not isinstance(value.op, Op):
            return None
        number = value.op.uniform() if not value.inputs else None
        if number is not None:
            return self.emit_as(value, BroadcastTo(order.stored), [self.b.constant(number, value.tensor_type.dtype)])
        found = self._can_be_made(value, order)
        if found is None or found.op is None:
            return None
        sources = [self.stored(source, own) for source, own in zip(value.inputs, found.operands, strict=True)]
        return self.emit_as(value, found.op, sources)

    def _can_be_made(self, value: Value, order: MemoryOrder, farthest: int = 4) -> Reordered | None:
        """Return the recomputation of the value from operands that are smaller or can be recomputed themselves."""
        if not farthest or not isinstance(value, Node) or not isinstance(value.op, Op):
            return None
        if any(map(self._updates.changes, value.inputs)) or any(isinstance(v.type, TupleType) for v in value.inputs):
            return None
        found = value.op.made_in(order, [source.tensor_type for source in value.inputs])
        if found is None:
            return None
        for source, own in zip(value.inputs, found.operands, strict=True):
            if source.tensor_type.size < value.tensor_type.size or own.memory in self.held.get(source, {}):
                continue
            uniform = isinstance(source, Node) and isinstance(source.op, Op) and source.op.uniform() is not None
            if not uniform and self._can_be_made(source, own, farthest - 1) is None:
                return None
        return found

    def _moved(self, value: Value, order: MemoryOrder) -> Value:
        own, _ = self.known(value)[0]
        parts = own.refined(order)
        if parts is None:  # by way of its shape, with whose dimensions all parts agree
            self.plain(value)
            parts = MemoryOrder.of(value.shape).refined(order)
        assert parts is not None
        source, target = parts
        dims = [source.parts.index(part) for part in target.parts]
        return self.b.emit(Transpose(tuple(dims)), self.stored(value, source))

    def _with_shape(self, value: Value, shape: tuple[int, ...]) -> Value:
        if value.shape == shape:
            return value
        source = value.inputs[0] if isinstance(value, Node) and isinstance(value.op, Reshape) else value
        if source.shape == shape:
            return source
        found = self._shown.get((source, shape))
        if found is None:
            found = self._shown[source, shape] = self.b.emit(Reshape(shape), source)
        return found

    def emit_as(self, node: Node, op: Any, inputs: Iterable[Value]) -> Node:
        """`op` in the place of a node, under its names."""
        made = self.b.emit(op, *inputs, name=node.name, instance=node.instance)
        made.scope, made.frames, made.phase, made.forward = node.scope, node.frames, node.phase, node.forward
        made.attrs = dict(node.attrs)
        return made


def moved_bytes(nodes: Sequence[Node]) -> int:
    """Return the bytes that transposes make."""
    return sum(node.tensor_type.nbytes for node in nodes if isinstance(node.op, Transpose))


def reorder(graph: Graph, continues: Callable[[MemoryOrder], bool], most: int) -> bool:
    """Walk a graph; return True if it changed. It stays if more than `most` bytes would be moved.

    continues: tells if readers of a value in the order of its shape continue in an order that a transpose of the script
    shows.
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

    tuples: the replacement of a node with several results, and their orders. parts: the results of nodes that were
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
        """Return True if the node works on tensors, and every tensor that it makes is read by itself."""
        if isinstance(node.type, TupleType) and node in self.whole:
            return False
        shapes = [value.type.shape for value in node.inputs if isinstance(value.type, TensorType)]
        return isinstance(node.op, Op) and 0 < len(node.inputs) == len(shapes) and not any(0 in s for s in shapes)

    def _stays(self, node: Node) -> None:
        node.inputs = [self.values.plain(value) for value in node.inputs]
        self.values.b.nodes.append(node)

    def _shows(self, node: Node) -> bool:
        """Return True for a view of the operand in another shape or order."""
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
        """Return True if the operator can work on operands in their present orders."""
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
        """Return the operator on reordered operands.

        A reduction along dimensions that are not adjacent becomes several, the largest first, which leaves the least.
        (Not if that rounds in between.)
        """
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
