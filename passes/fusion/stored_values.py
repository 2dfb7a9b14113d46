"""The values of a graph in the orders in which they are stored, and a graph that grows by what brings them there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mspc.analysis.aliasing import Updates
from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.types import TupleType
from mspc.ops.memory_order import DimensionPart, MemoryOrder, Reordered
from mspc.ops.op import Op
from mspc.ops.tensor.broadcast import BroadcastTo
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import Reshape

Memory = tuple[DimensionPart, ...]


class FusedValueMap:
    """Every value of the old graph, and what holds its elements in the new one, by how they lie in memory.

    b: the new graph. orders: the order in which others go on that read a value, where it is not that of its shape.
    """

    def __init__(self, graph: Graph) -> None:
        self.b = Builder(graph, [])
        self.orders: dict[Value, MemoryOrder] = {}
        self.held: dict[Value, dict[Memory, tuple[MemoryOrder, Value]]] = {}
        self._shown: dict[tuple[Value, tuple[int, ...]], Value] = {}
        self._updates = Updates(graph)

    def order(self, value: Value) -> MemoryOrder:
        """The order in which others go on that read a value."""
        return self.orders.get(value) or MemoryOrder.of(value.shape)

    def hold(self, value: Value, order: MemoryOrder, stored: Value) -> None:
        """`stored` has the elements of `value`, in this order."""
        known = MemoryOrder(tuple(part for part in order.parts if part.dim >= 0), order.rank)
        self.held.setdefault(value, {})[known.memory] = known, stored

    def make(self, value: Value, order: MemoryOrder, stored: Value, continues: bool = True) -> None:
        """The same, where others go on in this order if it `continues`."""
        self.hold(value, order, stored)
        if continues and not order.is_plain:
            self.orders[value] = order

    def same(self, value: Value, other: Value) -> None:
        """A value is another one."""
        for order, stored in self.known(other):
            self.hold(value, order, stored)
        if other in self.orders:
            self.orders[value] = self.orders[other]

    def moved_for_good(self, values: Sequence[Value], orders: Sequence[MemoryOrder]) -> None:
        """What reads values, now that they are in these orders, goes on there; but for parameters, whose updates do
        not."""
        for value, order in zip(values, orders, strict=True):
            updated = isinstance(value, Parameter) and value.trainable
            held = order.memory in self.held.get(value, {})
            if held and value not in self.orders and not order.is_plain and not updated:
                self.orders[value] = order

    def known(self, value: Value) -> list[tuple[MemoryOrder, Value]]:
        """All that holds the elements of a value."""
        if value not in self.held:
            self.hold(value, MemoryOrder.of(value.shape), value)
        return list(self.held[value].values())

    def plain(self, value: Value) -> Value:
        """A value, a tensor or a tuple, as its shape says."""
        if value not in self.held:
            return value
        return self.stored(value, MemoryOrder.of(value.shape))

    def stored(self, value: Value, order: MemoryOrder) -> Value:
        """What holds the elements of a value in this order, with the shape that it says."""
        self.known(value)
        found = self.held[value].get(order.memory)
        if found is not None:
            return self._with_shape(found[1], order.stored)
        made = self.made_again(value, order) or self._moved(value, order)
        if not self._updates.changes(value):
            self.hold(value, order, made)
        return self._with_shape(made, order.stored)

    def made_again(self, value: Value, order: MemoryOrder) -> Value | None:
        """The value made once more, in this order, where that moves nothing and reads less."""
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
        """How the value is made once more, from operands that are smaller, or can be made so themselves."""
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
    """Bytes of what transposes make."""
    return sum(node.tensor_type.nbytes for node in nodes if isinstance(node.op, Transpose))
