"""Sum the weighted rows that edges look up without a tensor of these rows, and sort the ends of edges once.

Input:  `%3 = Gather(%x, %sources)`, `%4 = Mul(%3, %weights)`, `%5 = GatherGrad(%4, %targets) {size: 40}`
Output: `%3 = OrderRows(%targets) {size: 40}`, a tuple of the sorted edges and of the first one of every target, and
        `%5 = EdgeSums(%x, %3[0], %3[1], %sources, %weights) {shape: (40, 16)}`

All sums over the same integers read one order. A gradient of the weights, `ReduceSum(Mul(Gather(%x, %sources),
Gather(%dout, %targets)))` over the rows' elements, becomes `EdgeProducts`. Lookups are Gather, EmbeddingLookup and
GatherNd by the first dimension, sums their gradients, segment sums and TensorScatterAdd.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Graph, Node, Value, operand_types
from mspc.ir.types import FLOAT32, HALVES, DType, TensorType
from mspc.ir.varying import OpKey
from mspc.ops.fused.edges import EdgeProducts, EdgeSums, OrderRows
from mspc.ops.math.arithmetic import Add, Mul, Neg
from mspc.ops.nn.activation import ReLU, ReluGrad
from mspc.ops.op import Op
from mspc.ops.tensor.broadcast import BroadcastTo, ReduceSum, is_filled
from mspc.ops.tensor.embedding import RowsByIntegers, RowSums
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import Cast
from mspc.ops.tensor.scatter import GatherNd, ScatterNd, TensorScatterAdd
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.fusion_groups import looked_at
from mspc.passes.fusion.rewriter import Emitter, element

_MAX_ROWS = (1 << 31) - 2
"""Rows and edges that 31 bits number."""
_MIN_PART = 4
"""Elements of a row per weight from which packs of them share it, if the row has several."""


class FuseEdges(Pass):
    """Fuse lookups, weights and sums of rows."""

    def run(self, graph: Graph) -> bool:
        if not any(isinstance(node.op, RowSums | TensorScatterAdd | ScatterNd) for node in graph.nodes):
            return False
        found = _Edges(graph)
        for node in graph.nodes:
            found.look_at(node)
        changed = found.apply()
        return remove_dead(graph) or changed


class _Lookup(NamedTuple):
    """Rows looked up by `node` in a table by ids, as `RowLookup` says."""

    node: Node
    table: Value
    ids: Value
    offset: int
    total: int


class _Sum(NamedTuple):
    """Sums of rows by ids to `size` rows, added to `base` if there is one."""

    node: Node
    rows: Value
    ids: Value
    size: int
    offset: int
    total: int
    base: Value | None = None


class _Message(NamedTuple):
    """The rows that a sum reads: looked up, and multiplied by weights. parts: nodes that are needed no more."""

    lookup: _Lookup
    weights: Value | None
    parts: Sequence[Node]


class _Edges:
    """The sums of a graph. alone: those that read rows in memory."""

    def __init__(self, graph: Graph) -> None:
        self.emitter, self.updates = Emitter(graph), Updates(graph)
        self.numbers: dict[Value, int] = {node: number for number, node in enumerate(graph.nodes)}
        self.sums: list[tuple[_Sum, _Message]] = []
        self.alone: list[_Sum] = []
        self.products: list[tuple[Node, _Lookup, _Lookup]] = []
        self._narrow: dict[Value, Value] = {}

    def look_at(self, node: Node) -> None:
        """Note a sum over edges."""
        if isinstance(node.op, ReduceSum):
            sides = self._product(node)
            if sides is not None:
                self.products.append((node, *sides))
            return
        summed = _sum_of(node)
        if summed is None or self.updates.changes(summed.ids):
            return
        message = self._message(summed)
        if message is None:
            self.alone.append(summed)
        else:
            self.sums.append((summed, message))

    def apply(self) -> bool:
        """Change the graph. A sum of rows in memory takes part if the order of its integers is made for others: its
        update would read rows, too."""
        counts: dict[Hashable, int] = {}
        for summed in self.alone:
            counts[_key(summed)] = counts.get(_key(summed), 0) + 1
        shared = {_key(summed) for summed, _ in self.sums} | {key for key, count in counts.items() if count > 1}
        alone = [one for one in self.alone if _key(one) in shared and not self._updates_rows(one.node)]
        messages = dict(self.sums) | dict.fromkeys(alone)
        orders: dict[Hashable, tuple[Node, Node]] = {}
        for summed in sorted(messages, key=lambda one: self.numbers[one.node]):
            if _key(summed) not in orders:
                orders[_key(summed)] = self._order(summed)
            self._put(summed, messages[summed], orders[_key(summed)])
        for node, first, second in self.products:
            ends = (first.offset, first.total), (second.offset, second.total)
            op = EdgeProducts(node.shape, node.tensor_type.dtype, ends)
            inputs = [self._table(first, node), first.ids, self._table(second, node), second.ids]
            self.emitter.replace(node, self.emitter.emit(node, op, inputs, node, [first.node, second.node, node], True))
        return self.emitter.apply()

    def _updates_rows(self, node: Node) -> bool:
        return any(reader.phase == "update" for reader in self.emitter.readers(node))

    def _order(self, summed: _Sum) -> tuple[Node, Node]:
        op = OrderRows(summed.size, summed.offset, summed.total)
        order = self.emitter.emit(summed.node, op, [summed.ids], summed.node)
        parts = element(order, 0, summed.node), element(order, 1, summed.node)
        self.emitter.put_ahead(summed.node, parts)
        return parts

    def _put(self, summed: _Sum, message: _Message | None, order: tuple[Node, Node]) -> None:
        node, dtype = summed.node, summed.node.tensor_type.dtype
        if message is None:
            op, inputs = EdgeSums(node.shape, dtype, looks_up=False, weighted=False), [summed.rows, *order]
            parts = [node]
        else:
            lookup, weights = message.lookup, message.weights
            op = EdgeSums(node.shape, dtype, True, weights is not None, lookup.offset, lookup.total)
            inputs = [self._table(lookup, node), *order, lookup.ids, *([] if weights is None else [weights])]
            parts = [*message.parts, node]
        made = self.emitter.emit(node, op, inputs, node, parts, summed.base is None)
        if summed.base is not None:
            made = self.emitter.emit(node, Add(), [summed.base, made], node, takes=True)
        self.emitter.replace(node, made)

    def _table(self, lookup: _Lookup, place: Node) -> Value:
        """Return a table of a lookup, in halves if these are all of its numbers: rows are read many times."""
        table = lookup.table
        if table not in self._narrow:
            half = _half_of(table)
            if half is not None and isinstance(table, Node) and isinstance(table.op, Cast):
                self._narrow[table] = table.inputs[0]
            else:
                self._narrow[table] = table if half is None else self.emitter.emit(place, Cast(half), [table], place)
        return self._narrow[table]

    def _message(self, summed: _Sum) -> _Message | None:
        """Return the rows of a sum if they are looked up."""
        parts: list[Node] = []
        value, reader, count = summed.rows, summed.node, summed.ids.tensor_type.size
        while isinstance(value, Node) and self.emitter.only_reader(value) is reader:
            parts.insert(0, value)
            if isinstance(value.op, Mul):
                for rows, weights in (value.inputs, value.inputs[::-1]):
                    lookup = self._lookup(rows, count, summed.node)
                    factor = None if lookup is None else _weights(weights, value.shape, count)
                    if lookup is not None and factor is not None:
                        return _Message(lookup, factor, [lookup.node, *parts])
                return None
            if not _passes(value, count):
                break
            value, reader = value.inputs[0], value
        lookup = self._lookup(value, count, summed.node)
        return None if lookup is None else _Message(lookup, None, [lookup.node, *parts])

    def _lookup(self, value: Value, count: int, reader: Node) -> _Lookup | None:
        """Return the lookup of `count` rows whose result this value is, if its operands are the same at the reader."""
        while isinstance(value, Node) and _passes(value, count):
            value = value.inputs[0]
        found = _lookup_of(value) if isinstance(value, Node) else None
        if found is None or found.ids.tensor_type.size != count:
            return None
        operands = found.table, found.ids
        return None if self.updates.between(operands, self.numbers[found.node], self.numbers[reader]) else found

    def _product(self, node: Node) -> tuple[_Lookup, _Lookup] | None:
        """Return the lookups whose rows are multiplied and summed over their last dimensions."""
        assert isinstance(node.op, ReduceSum)
        value, reader = node.inputs[0], node
        rank = len(value.shape)
        axes = node.op.axes(rank)
        if not axes or list(axes) != list(range(axes[0], rank)) or not axes[0] or not node.tensor_type.size:
            return None
        count = 0
        while isinstance(value, Node) and self.emitter.only_reader(value) is reader:
            if isinstance(value.op, Mul) and value.inputs[0].shape == value.inputs[1].shape == value.shape:
                count = value.shape[0]
                first, second = (self._lookup(side, count, node) for side in value.inputs)
                return None if first is None or second is None else (first, second)
            if not isinstance(value.op, Cast) or not _may_widen(value.inputs[0].tensor_type.dtype, value.op.dst_type):
                return None
            value, reader = value.inputs[0], value
        return None


def _key(summed: _Sum) -> Hashable:
    return _same(summed.ids), summed.size, summed.offset, summed.total


def _same(value: Value, depth: int = 4) -> Hashable:
    """Return a key equal for values that equal operators compute from the same values."""
    if not depth or not isinstance(value, Node) or value.op.has_side_effect or value.regions:
        return value
    op = value.op
    if not isinstance(op, Op) or op.draws or op.mutates:
        return value
    return OpKey(op), tuple(_same(each, depth - 1) for each in value.inputs)


def _passes(node: Node, count: int) -> bool:
    """Whether a node gives `count` rows with the same elements: in another type or shape."""
    op = node.op
    if not isinstance(op, Op) or not node.inputs or not isinstance(node.type, TensorType) or not node.shape:
        return False
    source = node.inputs[0].tensor_type
    if isinstance(op, Cast):
        return _may_widen(source.dtype, node.type.dtype)
    if isinstance(op, Transpose):
        return tuple(op.perm) == tuple(range(len(node.shape)))
    return op.reshapes and bool(source.shape) and source.shape[0] == node.shape[0] == count


def _half_of(value: Value, depth: int = 8) -> DType | None:
    """Return the half of which all elements of a Float32 value are numbers, if it is known."""
    if not depth or not isinstance(value, Node) or not isinstance(value.op, Op) or not value.inputs:
        return None
    source = value.inputs[0]
    if isinstance(value.op, Cast):
        return source.tensor_type.dtype if value.op.dst_type == FLOAT32 and source.tensor_type.dtype in HALVES else None
    if isinstance(value.op, Neg | ReLU | ReluGrad | Transpose) or value.op.reshapes:
        return _half_of(source, depth - 1)
    return None


def _may_widen(source: DType, target: DType) -> bool:
    """Whether a kernel that adds up in Float32, or in Float64 for both, may take a cast in."""
    return source == target or {source, target} <= {FLOAT32, *HALVES}


def _weights(value: Value, shape: tuple[int, ...], count: int) -> Value | None:
    """Return the factors of equal parts of `count` rows, [count, parts], that a value of rows of this shape repeats."""
    while isinstance(value, Node) and isinstance(value.op, BroadcastTo):
        value = value.inputs[0]
    given = (1,) * (len(shape) - len(value.shape)) + tuple(value.shape)
    repeated = next((d for d in range(len(shape)) if given[d] != shape[d]), len(shape))
    if shape[0] != count or not repeated or any(n != 1 for n in given[repeated:]):
        return None
    if not value.tensor_type.dtype.is_float or (math.prod(shape[1:]) > 1 and math.prod(shape[repeated:]) < _MIN_PART):
        return None
    while isinstance(value, Node) and isinstance(value.op, Op):
        widens = isinstance(value.op, Cast) and _may_widen(value.inputs[0].tensor_type.dtype, value.op.dst_type)
        if not widens and not value.op.reshapes:
            break
        value = value.inputs[0]
    return value


def _lookup_of(node: Node) -> _Lookup | None:
    """Return the lookup by the first dimension of a table that a node is."""
    op = node.op
    if isinstance(op, RowsByIntegers):
        op = looked_at(op)
        assert isinstance(op, RowsByIntegers)
        table, ids = operand_types(node)
        lookup = op.lookup(table.shape, ids.shape)
        if lookup.batch != 1 or lookup.middle != 1 or not _fits(lookup.size, lookup.count, table):
            return None
        return _Lookup(node, node.inputs[0], _flat(node.inputs[1]), lookup.offset, lookup.total)
    if isinstance(op, GatherNd):
        table, ids = operand_types(node)
        if not _fits(table.shape[0], ids.size, table) or ids.shape[-1] != 1:
            return None
        return _Lookup(node, node.inputs[0], _flat(node.inputs[1]), *_slice(looked_at(op), table.shape[0]))
    return None


def _sum_of(node: Node) -> _Sum | None:
    """Return the sum of rows, by the first dimension of its result, that a node is."""
    op = node.op
    if isinstance(op, RowSums):
        op = looked_at(op)
        assert isinstance(op, RowSums)
        rows, ids = operand_types(node)
        lookup = op.lookup(rows.shape, ids.shape)
        if lookup.batch != 1 or lookup.middle != 1 or not _fits(lookup.size, lookup.count, rows):
            return None
        return _Sum(node, node.inputs[0], _flat(node.inputs[1]), lookup.size, lookup.offset, lookup.total)
    if type(op) is ScatterNd or (type(op) is TensorScatterAdd and not op.dims):
        place = 0 if isinstance(op, ScatterNd) else 1
        ids, rows = (node.inputs[place + i].tensor_type for i in range(2))
        if not ids.shape or ids.shape[-1] != 1 or not _fits(node.shape[0], ids.size, rows):
            return None
        base = None if isinstance(op, ScatterNd) or _is_zero(node.inputs[0]) else node.inputs[0]
        begin = _slice(looked_at(op), node.shape[0])
        return _Sum(node, node.inputs[place + 1], _flat(node.inputs[place]), node.shape[0], *begin, base)
    return None


def _fits(size: int, count: int, rows: TensorType) -> bool:
    return 0 < size < _MAX_ROWS and 0 < count < _MAX_ROWS and rows.dtype.is_float and rows.size > 0


def _slice(op: Op, size: int) -> tuple[int, int]:
    """Return (offset, total) of the rows that indices name."""
    begins, sizes = op.begins, op.sizes  # type: ignore[attr-defined]  # of all operators with indices[..., k]
    return (begins[0], sizes[0]) if sizes else (0, size)


def _flat(ids: Value) -> Value:
    """Return ids in the shape in which they were made."""
    while isinstance(ids, Node) and isinstance(ids.op, Op) and ids.op.reshapes:
        ids = ids.inputs[0]
    return ids


def _is_zero(value: Value) -> bool:
    while isinstance(value, Node) and isinstance(value.op, Transpose | Cast):
        value = value.inputs[0]
    return is_filled(value, 0)
