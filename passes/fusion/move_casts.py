"""Move elements while they are narrow: a cast to a wider element type comes after the moves, one to
a narrower type comes first.

Input:  `%1 = Cast(%x) {dst_type: Float32}`, `%2 = Transpose(%1)`,
        `%8 = Reshape(%7)`, `%9 = Cast(%8) {dst_type: BFloat16}`
Output: `%1 = Transpose(%x)`, `%2 = Cast(%1) {dst_type: Float32}`,
        `%8 = Cast(%7) {dst_type: BFloat16}`, `%9 = Reshape(%8)`

A cast gives an element the same value anywhere, so that the numbers stay bit for bit. A value that is widened and then
narrowed again is read as it was. Nothing is done twice: a cast passes an operator where all that read its result can
take it so, and if no more elements are converted on the other side; it passes a view of memory in any case.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeGuard, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.iterative import iterative
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType, TensorType, TupleType, Type
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Cast
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.rewriter import NodeWalk

EXACT = {FLOAT16: (FLOAT32, FLOAT64), BFLOAT16: (FLOAT32, FLOAT64), FLOAT32: (FLOAT64,)}
"""Element types that hold all numbers of another."""


class MoveCasts(Pass):
    def run(self, graph: Graph) -> bool:
        if not any(isinstance(node.op, Cast) for node in graph.nodes):
            return False
        changed = remove_dead(graph)
        for walk_of in (_WidenLater, _NarrowEarlier):
            walk = walk_of(graph)
            walk.run()
            changed |= walk.changed
        if changed:
            remove_dead(graph)
        return changed


class _CastWalk(NodeWalk):
    """changed: whether anything was."""

    changed = False

    def cast(self, value: Value, dtype: DType, like: Node) -> Node:
        """Return a new cast of a value, at the lines of another node."""
        return self.make(like, Cast(dst_type=dtype), [value], _with_dtype(value.type, dtype))

    def retype(self, node: Node, inputs: list[Value], dtype: DType) -> Node:
        """Return the node's operator on operands of another element type."""
        return self.make(node, cast(Op, node.op), inputs, _with_dtype(node.type, dtype), takes=True)


class _WidenLater(_CastWalk):
    """narrow: the operands of casts whose readers can all read these instead; and tuples of narrow tensors by the
    tuples that they replace."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.narrow: dict[Value, Value] = {}

    def visit(self, node: Node) -> None:
        sources = [self.narrow.get(value) for value in node.inputs]
        if node.op.moves and sources and None not in sources:
            narrow = [source for source in sources if source is not None]
            kinds = {element.dtype for source in narrow for element in element_types(source.type)}
            (kind, *others) = kinds
            whole = isinstance(node.type, TensorType) or (
                node not in self.results and _is_taken_apart(self.readers(node))
            )
            if not others and _takes(node) and _knows(node, kind) and whole:
                self._pass(node, narrow, kind)
                return
        self.nodes.append(node)
        if isinstance(node.op, Cast) and _bytes(node.inputs[0]) < _bytes(node) and self._is_moved(node):
            if not self.updates.changes(node.inputs[0]):
                self.narrow[node] = node.inputs[0]

    def _pass(self, node: Node, narrow: list[Value], dtype: DType) -> None:
        moved = self.retype(node, narrow, dtype)
        self.changed = True
        if isinstance(node.type, TupleType):
            self.narrow[node] = moved
            return
        wide = self.cast(moved, node.tensor_type.dtype, node)
        wide.name, moved.name = node.name, ""
        self.replaced[node] = wide
        if self._is_moved(node):
            self.narrow[wide] = moved

    def _is_moved(self, value: Value) -> bool:
        readers = self.readers(value)
        return bool(readers) and value not in self.results and all(_takes(reader) for reader in readers)


class _NarrowEarlier(_CastWalk):
    """wanted: the element type to which all readers of a node's result cast it. made: casts by operand."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.wanted: dict[Node, DType] = {}
        self.made: dict[tuple[Value, DType], Value] = {}
        for node in reversed(graph.nodes):
            if node.op.moves and not isinstance(node.op, TupleGetItem):
                self._want(node)

    def _want(self, node: Node) -> None:
        parts = [node] if isinstance(node.type, TensorType) else self.readers(node)
        if self.results.intersection((node, *parts)) or (node not in parts and not _is_taken_apart(parts)):
            return
        kinds = {
            reader.op.dst_type if isinstance(reader.op, Cast) else self.wanted.get(reader)
            for part in parts
            for reader in self.readers(part)
        }
        kind = kinds.pop() if len(kinds) == 1 else None
        read = {part.op.index if isinstance(part.op, TupleGetItem) else 0: _elements(part.type) for part in parts}
        if kind is None or kind.itemsize >= _bytes(parts[0]) or not _knows(node, kind):
            return
        if sum(read.values()) >= _given(node):
            self.wanted.update(dict.fromkeys((node, *parts), kind))

    def visit(self, node: Node) -> None:
        kind = self.wanted.get(node)
        if kind is not None:
            node.inputs = [v if v in self.wanted else self._narrowed(v, kind, node) for v in node.inputs]
            node.type = _with_dtype(node.type, kind)
            node.name = ""
            self.changed = True
        elif isinstance(node.op, Cast):
            self._cast(node)
            return
        self.nodes.append(node)

    @iterative
    def _narrowed(self, value: Value, dtype: DType, like: Node) -> Generator[Any, Value, Value]:
        source = self._before_widening(value)
        if source.tensor_type.dtype == dtype:
            return source
        found = self.made.get((source, dtype))
        if found is None and _is_moved_view(source):
            found = self.retype(source, [(yield self, source.inputs[0], dtype, like)], dtype)
        elif found is None:
            found = self.cast(source, dtype, like)
        self.made[source, dtype] = found
        return found

    def _cast(self, node: Node) -> None:
        (value,), dtype = node.inputs, node.tensor_type.dtype
        if value.tensor_type.dtype == dtype and value in self.wanted:
            self.replaced[node] = value
            return
        source = self._before_widening(value)
        if source is not value:
            self.changed = True
            if source.tensor_type.dtype == dtype:
                self.replaced[node] = source
                return
            node.inputs = [source]
        elif _is_moved_view(value) and _bytes(node) < _bytes(value):
            self.changed = True
            self.replaced[node] = self._narrowed(value, dtype, node)
            return
        self.made.setdefault((source, dtype), node)
        self.nodes.append(node)

    def _before_widening(self, value: Value) -> Value:
        """Return a value before a cast to an element type that holds all its numbers."""
        while isinstance(value, Node) and isinstance(value.op, Cast):
            source = value.inputs[0]
            if value.op.dst_type not in EXACT.get(source.tensor_type.dtype, ()) or self.updates.changes(source):
                break
            value = source
        return value


def _is_taken_apart(readers: list[Node]) -> bool:
    return all(isinstance(reader.op, TupleGetItem) for reader in readers)


def _is_moved_view(value: Value) -> TypeGuard[Node]:
    if not isinstance(value, Node) or not value.op.moves or not value.op.is_view:
        return False
    return not isinstance(value.op, TupleGetItem)


def _takes(node: Node) -> bool:
    """Return True if a node moves elements, to no more places than they had."""
    return node.op.moves and _elements(node.type) <= _given(node)


def _knows(node: Node, dtype: DType) -> bool:
    types: list[Any] = [_with_dtype(value.type, dtype) for value in node.inputs]
    try:
        cast(Op, node.op).infer(*types)
    except MspcError:
        return False
    return True


def _given(node: Node) -> int:
    """Return the elements of all operands."""
    return sum(_elements(value.type) for value in node.inputs)


def _elements(type: Type) -> int:
    return sum(element.size for element in element_types(type))


def _bytes(value: Value) -> int:
    """Return the bytes of one element."""
    return element_types(value.type)[0].dtype.itemsize


def _with_dtype(type: Type, dtype: DType) -> Type:
    if isinstance(type, TensorType):
        return TensorType(dtype, type.shape)
    return TupleType(tuple(TensorType(dtype, element.shape) for element in element_types(type)))
