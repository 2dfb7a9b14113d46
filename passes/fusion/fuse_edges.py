"""Sum the weighted rows that edges look up without a tensor of these rows, and sort the ends of edges once.

Input:  `%3 = Gather(%x, %sources)`, `%4 = Mul(%3, %weights)`, `%5 = GatherGrad(%4, %targets) {size: 40}`
Output: `%3 = OrderRows(%targets) {size: 40}`, a tuple of the sorted edges and of the first one of every target, and
        `%5 = EdgeSums(%x, %3[0], %3[1], %sources, %weights) {shape: (40, 16)}`

All sums over the same integers read one order. A gradient of the weights, `ReduceSum(Mul(Gather(%x, %sources),
Gather(%dout, %targets)))` over the rows' elements, becomes `EdgeProducts`. Lookups are Gather, EmbeddingLookup and
GatherNd by the first dimension, sums their gradients, segment sums, TensorScatterAdd and extrema of rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import FLOAT32, HALVES, DType
from mspc.ir.varying import OpKey
from mspc.ops.collective.base import is_all_zero
from mspc.ops.cuda.moves import RowLookup
from mspc.ops.fused.edges import EdgeProducts, EdgeSums, OrderRows
from mspc.ops.math.arithmetic import Add, Maximum, Minimum, Mul, Neg
from mspc.ops.nn.activation import ReLU, ReluGrad
from mspc.ops.op import Op
from mspc.ops.tensor.embedding import RowsByIntegers, RowSums
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import BroadcastTo, Cast, ReduceSum
from mspc.ops.tensor.scatter import GatherNd, ScatterNd, TensorScatterAdd, TensorScatterMax, TensorScatterMin
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.fusion_groups import looked_at
from mspc.passes.fusion.rewriter import Emitter, element

_MAX_ROWS = (1 << 31) - 2
"""Rows and edges that 31 bits number."""
_SUMS = (ScatterNd, TensorScatterAdd, TensorScatterMax, TensorScatterMin)
_MIN_PART = 4
"""Elements of a row per weight from which packs of them share it, if the row has several."""


class FuseEdges(Pass):
    def run(self, graph: Graph) -> bool:
        if not any(isinstance(node.op, RowSums) or type(node.op) in _SUMS for node in graph.nodes):
            return False
        found = _Edges(graph)
        for node in graph.nodes:
            found.look_at(node)
        changed = found.apply()
        return remove_dead(graph) or changed


class _NamedRows(NamedTuple):
    """A lookup of rows by ids, or sums or extrema of rows by ids, as `lookup` says; these are combined with `base` if
    there is one."""

    node: Node
    rows: Value
    ids: Value
    lookup: RowLookup
    base: Value | None = None

    @property
    def key(self) -> Hashable:
        """A key equal for sums in one order."""
        return _same(self.ids), self.lookup.size, self.ends

    @property
    def ends(self) -> tuple[int, int]:
        """(offset, total) of the lookup."""
        return self.lookup.offset, self.lookup.total


class _Message(NamedTuple):
    """The rows of a sum: looked up, and multiplied by weights. parts: the nodes between lookup and sum."""

    lookup: _NamedRows
    weights: Value | None
    parts: Sequence[Node]


class _Edges:
    """The sums of a graph, with the rows that they read; None for rows in memory."""

    def __init__(self, graph: Graph) -> None:
        self.emitter, self.updates = Emitter(graph), Updates(graph)
        self.numbers: dict[Value, int] = {node: number for number, node in enumerate(graph.nodes)}
        self.sums: dict[_NamedRows, _Message | None] = {}
        self.products: list[tuple[Node, _NamedRows, _NamedRows]] = []
        self._narrow: dict[Value, Value] = {}

    def look_at(self, node: Node) -> None:
        """Note a sum over edges."""
        if isinstance(node.op, ReduceSum):
            self.products += self._products(node)
        elif (summed := _named_rows(node, True)) is not None and not self.updates.changes(summed.ids):
            self.sums[summed] = self._message(summed)

    def apply(self) -> bool:
        """Change the graph. A sum of rows in memory takes part if others have its order, unless an update may read its
        rows instead (`update_rows`)."""
        wanted = Counter(summed.key for summed in self.sums)
        wanted.update(summed.key for summed, message in self.sums.items() if message is not None)
        orders: dict[Hashable, tuple[Node, Node]] = {}
        by_ids: dict[Hashable, tuple[int, Node]] = {}
        for summed, message in self.sums.items():
            key, node = summed.key, summed.node
            updates = any(reader.phase == "update" for reader in self.emitter.readers(node))
            if wanted[key] < 2 or (message is None and updates):
                continue
            if key not in orders:
                order = self.emitter.emit(node, OrderRows(summed.lookup.size, *summed.ends), [summed.ids], node)
                orders[key] = element(order, 0, node), element(order, 1, node)
                self.emitter.put_ahead(node, orders[key])
                by_ids.setdefault(_same(summed.ids), (self.numbers[node], orders[key][0]))
            self._put(summed, message, orders[key])
        for node, *sides in self.products:
            op = EdgeProducts(node.shape, node.tensor_type.dtype, tuple(side.ends for side in sides))
            inputs = [value for side in sides for value in (self._table(side, node), side.ids)]
            named = [by_ids[_same(side.ids)] for side in sides if _same(side.ids) in by_ids]
            inputs += [names for number, names in named if number < self.numbers[node]][:1]
            parts = [*(side.node for side in sides), node]
            self.emitter.replace(node, self.emitter.emit(node, op, inputs, node, parts, takes=True))
        return self.emitter.apply()

    def _put(self, summed: _NamedRows, message: _Message | None, order: tuple[Node, Node]) -> None:
        node, dtype = summed.node, summed.node.tensor_type.dtype
        combine = getattr(node.op, "combine", "add")
        op, inputs, parts = EdgeSums(node.shape, dtype, False, False, combine=combine), [summed.rows, *order], [node]
        if message is not None:
            lookup, weights = message.lookup, message.weights
            op = EdgeSums(node.shape, dtype, True, weights is not None, *lookup.ends, combine)
            inputs = [self._table(lookup, node), *order, lookup.ids, *([] if weights is None else [weights])]
            parts = [lookup.node, *message.parts, node]
        made = self.emitter.emit(node, op, inputs, node, parts, summed.base is None)
        if summed.base is not None:
            both = {"add": Add, "maximum": Maximum, "minimum": Minimum}[combine]()
            made = self.emitter.emit(node, both, [summed.base, made], node, takes=True)
        self.emitter.replace(node, made)

    def _table(self, found: _NamedRows, place: Node) -> Value:
        """Return the table of a lookup, in halves if these are all of its numbers: rows are read many times."""
        table = found.rows
        if table not in self._narrow:
            half, source = _half_of(table), table.inputs[0] if isinstance(table, Node) and table.inputs else table
            made = source if half is not None and source.tensor_type.dtype == half else table
            if half is not None and (made is table or source.shape != table.shape):
                made = self.emitter.emit(place, Cast(half), [table], place)
            self._narrow[table] = made
        return self._narrow[table]

    def _message(self, summed: _NamedRows) -> _Message | None:
        parts: list[Node] = []
        value, reader, count = summed.rows, summed.node, summed.lookup.count
        while isinstance(value, Node) and self.emitter.only_reader(value) is reader:
            if isinstance(value.op, Mul):
                for rows, weights in (value.inputs, value.inputs[::-1]):
                    factor, lookup = _weights(weights, value.shape, count), self._lookup(rows, count, summed.node)
                    if lookup is not None and factor is not None:
                        return _Message(lookup, factor, [value, *parts])
                return None
            if not _passes(value, count):
                break
            parts.insert(0, value)
            value, reader = value.inputs[0], value
        lookup = self._lookup(value, count, summed.node)
        return None if lookup is None else _Message(lookup, None, parts)

    def _lookup(self, value: Value, count: int, reader: Node) -> _NamedRows | None:
        """Return the lookup of `count` rows whose result this value is, if its operands are the same at the reader."""
        while isinstance(value, Node) and _passes(value, count):
            value = value.inputs[0]
        found = _named_rows(value, False) if isinstance(value, Node) else None
        if found is None or found.lookup.count != count:
            return None
        changed = self.updates.between((found.rows, found.ids), self.numbers[found.node], self.numbers[reader])
        return None if changed else found

    def _products(self, node: Node) -> list[tuple[Node, _NamedRows, _NamedRows]]:
        """Return the lookups whose rows are multiplied and summed over their last dimensions by a node, if it does."""
        assert isinstance(node.op, ReduceSum)
        value, reader, rank = node.inputs[0], node, len(node.inputs[0].shape)
        axes = node.op.axes(rank)
        if not axes or not axes[0] or list(axes) != list(range(axes[0], rank)):
            return []
        while isinstance(value, Node) and self.emitter.only_reader(value) is reader:
            if isinstance(value.op, Mul) and all(side.shape == value.shape for side in value.inputs):
                first, second = (self._lookup(side, value.shape[0], node) for side in value.inputs)
                return [] if first is None or second is None else [(node, first, second)]
            if not isinstance(value.op, Cast) or not _passes(value, value.shape[0]):
                break
            value, reader = value.inputs[0], value
        return []


def _same(value: Value, depth: int = 4) -> Hashable:
    """Return a key equal for values that equal operators compute from the same values."""
    op = value.op if isinstance(value, Node) else None
    if not depth or not isinstance(value, Node) or not isinstance(op, Op) or value.regions:
        return value
    if op.has_side_effect or op.draws or op.mutates:
        return value
    return OpKey(op), tuple(_same(each, depth - 1) for each in value.inputs)


def _passes(node: Node, count: int) -> bool:
    """Whether a node gives `count` rows with the same elements: in another shape, or in a type that a kernel may read
    which adds up in Float32, or in Float64 for both."""
    op, source = node.op, node.inputs[0] if node.inputs else None
    if not isinstance(op, Op) or source is None or getattr(source.type, "shape", ())[:1] != (count,):
        return False
    if isinstance(op, Cast):
        return {source.tensor_type.dtype, op.dst_type} <= {FLOAT32, *HALVES}
    if isinstance(op, Transpose):
        return tuple(op.perm) == tuple(range(len(node.shape)))
    return op.reshapes and node.shape[:1] == (count,)


def _half_of(value: Value, depth: int = 8) -> DType | None:
    """Return the half of which all elements of a Float32 value are numbers, if it is known."""
    if not depth or not isinstance(value, Node) or not isinstance(value.op, Op) or not value.inputs:
        return None
    if isinstance(value.op, Cast):
        source = value.inputs[0].tensor_type.dtype
        return source if value.op.dst_type == FLOAT32 and source in HALVES else None
    exact = isinstance(value.op, Neg | ReLU | ReluGrad | Transpose) or value.op.reshapes
    return _half_of(value.inputs[0], depth - 1) if exact else None


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
    while isinstance(value, Node) and (_passes(value, count) or getattr(value.op, "reshapes", False)):
        value = value.inputs[0]
    return value


def _named_rows(node: Node, sums: bool) -> _NamedRows | None:
    """Return the sum of rows, or the lookup of rows, along a first dimension that a node is."""
    op, base = node.op, None
    if isinstance(op, RowSums if sums else RowsByIntegers):
        rows, ids = node.inputs
        lookup = looked_at(op).lookup(rows.shape, ids.shape)  # type: ignore[attr-defined]  # both classes have it
    elif type(op) in (_SUMS if sums else (GatherNd,)) and not getattr(op, "dims", ()):
        *bases, rows, ids = node.inputs if isinstance(op, ScatterNd | GatherNd) else node.inputs[::2] + node.inputs[1:2]
        rows, ids = (ids, rows) if isinstance(op, ScatterNd) else (rows, ids)
        base = bases[0] if bases and not (type(op) is TensorScatterAdd and is_all_zero(bases[0])) else None
        size = node.shape[0] if sums else rows.shape[0]
        begins, sizes = looked_at(op).begins, looked_at(op).sizes  # type: ignore[attr-defined]  # all of them have it
        count = ids.tensor_type.size if ids.shape[-1:] == (1,) else 0
        inner = math.prod(node.shape[1:] if sums else rows.shape[1:])
        lookup = RowLookup(1, 1, size, inner, count, *((begins[0], sizes[0]) if sizes else (0, size)))
    else:
        return None
    fits = 0 < lookup.size < _MAX_ROWS and 0 < lookup.count < _MAX_ROWS and lookup.batch == lookup.middle == 1
    if not fits or not rows.tensor_type.dtype.is_float or not rows.tensor_type.size:
        return None
    while isinstance(ids, Node) and isinstance(ids.op, Op) and ids.op.reshapes:
        ids = ids.inputs[0]
    return _NamedRows(node, rows, ids, lookup, base)
