"""Routing of rows to experts and of lookups to slots of tables, which replaces gathers over all ranks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np

from mspc.ir.graph import Builder, Constant, Graph, Node, Value, element_types, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import NamedLayout, spread
from mspc.ir.types import INT32, TensorType
from mspc.ops.collective.base import is_all_zero
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import Add, Less, Select
from mspc.ops.math.matmul import MAX_ROWS, GroupedProduct, GroupedRows
from mspc.ops.nn.experts import AddRows, ExpertPlaces, ExpertProduct, ExpertRows, SetRows, TakeRows
from mspc.ops.op import Op
from mspc.ops.tensor.embedding import Gather, UnsortedSegmentSum
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.reshape import ExpandDims, Reshape
from mspc.ops.tensor.scatter import TensorScatterUpdate
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.base import rewrite_nodes

Entry = tuple[int, ...]


@dataclass(frozen=True)
class ExpertMesh:
    """Ranks of a grouped product whose experts are sharded.

    matrix: sizes of the grid. of_batch, of_experts, of_inner, of_results: its axes that shard rows, experts, and the
    two dimensions of every expert's product. room: the most rows that go to the experts of one rank; 0 if all may.
    """

    matrix: tuple[int, ...]
    of_batch: Entry
    of_experts: Entry
    of_inner: Entry
    of_results: Entry
    room: int = 0

    @property
    def outer(self) -> int:
        return self._size(self.of_batch)

    @property
    def parts(self) -> int:
        return self._size(self.of_experts)

    @property
    def of_blocks(self) -> tuple[object, ...]:
        """Return the grid without the dimensions of a matmul: the part that matmuls of equal blocks have in common."""
        return self.of_batch, self.of_experts, self.outer, self.parts, self.room

    def of_product(self, transposed: bool) -> tuple[NamedLayout, ...]:
        """Return the strategy of an ExpertProduct."""
        inner = (self.of_results, self.of_inner) if transposed else (self.of_inner, self.of_results)
        blocks = (*self.of_batch, *self.of_experts)
        return (
            self._layout(blocks, self.of_inner), self._layout(self.of_experts, *inner),
            self._layout(self.of_batch, self.of_experts, ()),
        )  # fmt: skip

    def of_lookup(self, type: TensorType, of_product: bool) -> tuple[NamedLayout, ...] | None:
        """Return the strategy of a lookup that gives a tensor of this type with a slice of its rows on every rank, None
        if its rows cannot be shared so. of_product: a product reads it."""
        blocks = (*self.of_batch, *self.of_experts)
        if type.shape[0] % self._size(blocks):
            return None
        rest: list[Entry] = [()] * (len(type.shape) - 1)
        if of_product:
            rest[-1] = self.of_inner
        return self._layout((), *rest), self._layout(blocks)

    def _size(self, axes: Entry) -> int:
        return math.prod(self.matrix[a] for a in axes)

    def _layout(self, *dims: Entry) -> NamedLayout:
        last = len(self.matrix) - 1
        entries = [tuple(last - a for a in axes) or (-1,) for axes in dims]
        names = tuple(f"axis{i}" for i in range(len(self.matrix)))
        return NamedLayout(self.matrix, names, tuple(e[0] if len(e) == 1 else e for e in entries))


def mesh_of(node: Node, ranks: int) -> ExpertMesh | None:
    """Return the grid of a grouped product, None if its experts are not sharded, or its strategy is a mistake.

    Ranks that a strategy of numbers leaves over share the batch, if they divide its rows. The batch is shared along
    the slowest axis, the experts along the next, so that those who exchange rows are next to each other.
    """
    strategy = spread(node.in_strategy or ())
    if len(strategy) != 3:
        return None
    x, w, _ = strategy
    transposed = bool(getattr(node.op, "transpose_b", False))
    if isinstance(x, NamedLayout) or isinstance(w, NamedLayout):
        return _named_grid(node, x, w, ranks)
    if len(x) != 2 or len(w) != 3 or not all(isinstance(n, int) and n > 0 for n in (*x, *w)) or w[0] == 1:
        return None
    inner, results = (w[2], w[1]) if transposed else (w[1], w[2])
    used = x[0] * w[0] * inner * results
    rows, experts = node.inputs[0].shape[0], node.inputs[1].shape[0]
    if ranks % used or x[1] != inner or experts % w[0] or rows % x[0]:
        return None
    outer, rest = (x[0], ranks // used)
    if rows % (outer * rest) == 0:
        outer, rest = outer * rest, 1
    return _with_room(node, ExpertMesh((outer, w[0], inner, results, rest), (0,), (1,), (2,), (3,)))


def _with_room(node: Node, mesh: ExpertMesh) -> ExpertMesh:
    """Return the grid with the capacity of `most_rows`. Raise MspcError if that is not positive."""
    most = node.attrs.get(MAX_ROWS)
    if most is None:
        return mesh
    if isinstance(most, bool) or not isinstance(most, int | float) or not most >= 1:
        raise node.error(
            f"{node.label}: {MAX_ROWS} is {most!r}, not a number from 1 on",
            notes=["it is how many even shares of the rows one rank's experts have room for"],
        )
    rows = node.inputs[0].shape[0] // mesh.outer
    room = min(rows, math.ceil(most * rows / mesh.parts))
    return replace(mesh, room=0 if room == rows else room)


def _named_grid(node: Node, x: object, w: object, ranks: int) -> ExpertMesh | None:
    """Return the grid that layouts name."""
    transposed = bool(getattr(node.op, "transpose_b", False))
    if not isinstance(x, NamedLayout) or not isinstance(w, NamedLayout) or len(x.axes) != 2 or len(w.axes) != 3:
        return None
    inner, results = (w.axes[2], w.axes[1]) if transposed else (w.axes[1], w.axes[2])
    fits = x.device_matrix == w.device_matrix and math.prod(x.device_matrix) == ranks and x.axes[1] == inner
    own = (*x.axes[0], *w.axes[0], *inner, *results)
    if not fits or len(set(own)) < len(own):
        return None
    mesh = ExpertMesh(x.device_matrix, x.axes[0], w.axes[0], inner, results)
    rows, experts = node.inputs[0].shape[0], node.inputs[1].shape[0]
    if mesh.parts == 1 or rows % mesh.outer or experts % mesh.parts:
        return None
    return _with_room(node, mesh)


def route_experts(graph: Graph) -> bool:
    """Route rows to experts, and return whether anything has changed."""
    ranks = int(graph.attrs.get("strategies_for", graph.attrs.get("ranks", 1)))
    meshes = {node: mesh_of(node, ranks) for node in graph.nodes if isinstance(node.op, GroupedProduct)}
    found = {node: mesh for node, mesh in meshes.items() if mesh is not None}
    if found:
        _Router(graph, found).run()
    return bool(found)


class _Route:
    """Blocks of the rows that go with one tensor of ends.

    source: the places of the rows. index, numbers, slots, ends: results of ExpertPlaces. blocks: of values with these
    rows, the values in blocks.
    """

    def __init__(self, b: Builder, ends: Value, rows: Value, mesh: ExpertMesh) -> None:
        self.mesh, self.count, self.given = mesh, rows.shape[0], ends
        table = _looked_up(rows)
        self.source = table[1] if table is not None else Constant(np.arange(self.count, dtype=np.int32), INT32)
        made = b.emit(ExpertPlaces(mesh.outer, mesh.parts, mesh.room), ends, self.source)
        self.index, self.numbers, self.slots, self.ends = (b.emit(TupleGetItem(i), made) for i in range(4))
        ranks = mesh.outer * mesh.parts
        self.near = (1 - 1 / mesh.parts) / (1 - 1 / ranks)  # rows stay within a share of the batch
        self.full = min(1.0, self.count / max(self.index.shape[0], 1))
        self.blocks: dict[Value, Value] = {}


class _Router:
    """Rewrites one graph; `meshes` has the matmuls with sharded experts. outside: the replacement of a value for
    readers that want its rows in their order."""

    def __init__(self, graph: Graph, meshes: dict[Node, ExpertMesh]) -> None:
        self.graph, self.meshes = graph, meshes
        self.nodes: list[Node] = []
        self.b = Builder(graph, self.nodes)
        self.routes: dict[tuple[Value, int, object], _Route] = {}
        self.ordered: list[_Route] = []
        self.numbers: dict[_Route, int] = {}
        self.first: dict[Value, int] = {}
        """The number of the first route that has a value in blocks."""
        self.outside: dict[Value, Value] = {}
        self.read_whole = {value for node in graph.nodes if not isinstance(node.op, TupleGetItem)
                           for value in node.inputs}.union(graph.results)  # fmt: skip

    def run(self) -> None:
        for node in self.graph.nodes:
            self.b.like(node).phase = node.phase
            if not self._replaced(node):
                node.inputs = [self._rows_of(value) for value in node.inputs]
                self.nodes.append(node)
        self.graph.nodes = self.nodes
        self.graph.results = [self._rows_of(value) for value in self.graph.results]

    def _replaced(self, node: Node) -> bool:
        if node in self.meshes:
            self._multiply(node, self.meshes[node])
            return True
        numbers = [self.first[value] for value in node.inputs if value in self.first]
        if not numbers:
            return False
        route = self.ordered[min(numbers)]
        return self._look_up(route, node) or self._add_bias(route, node) or self._compute(route, node)

    def _put(self, route: _Route, value: Value, made: Value) -> None:
        """Note the blocks of a value that has the rows of a route."""
        route.blocks[value] = made
        number = self.numbers[route]
        self.first[value] = min(self.first.get(value, number), number)

    def _multiply(self, node: Node, mesh: ExpertMesh) -> None:
        x, w, ends = node.inputs[0], *map(self._rows_of, node.inputs[1:])
        key = (ends, x.shape[0], mesh.of_blocks)
        if key not in self.routes:
            self.routes[key] = _Route(self.b, ends, x, mesh)
            self.numbers[self.routes[key]] = len(self.ordered)
            self.ordered.append(self.routes[key])
        route = self.routes[key]
        filled = -(-route.count // (mesh.outer * mesh.parts))
        op = ExpertProduct(cast(GroupedProduct, node.op).transpose_b, filled)
        made = self._emit(node, op, self._in_blocks(route, x, mesh), w, route.ends)
        made.in_strategy = mesh.of_product(op.transpose_b)
        self._put(route, node, made)

    def _in_blocks(self, route: _Route, value: Value, mesh: ExpertMesh | None = None) -> Value:
        """Return a value with these rows, in blocks."""
        if value not in route.blocks:
            table = _looked_up(value)
            looked_up = table is not None and table[1] is route.source
            rows, places = (table[0], route.index) if table is not None and looked_up else (value, route.numbers)
            self.outside.setdefault(value, self._rows_of(value))
            made = self.b.emit(TakeRows(share=route.full * route.near), self._rows_of(rows), places)
            made.in_strategy = (mesh or route.mesh).of_lookup(made.tensor_type, of_product=mesh is not None)
            self._put(route, value, made)
        return route.blocks[value]

    def _look_up(self, route: _Route, node: Node) -> bool:
        table = _looked_up(node)
        if table is None or table[0] not in route.blocks or table[1] in route.blocks:
            return False
        places = self.b.emit(Gather(), route.slots, self._rows_of(table[1]))
        self.outside[node] = self._bring(route, route.blocks[table[0]], places, node)
        return True

    def _add_bias(self, route: _Route, node: Node) -> bool:
        """Return every expert's own row for each of its rows."""
        if not isinstance(node.op, GroupedRows) or self._rows_of(node.inputs[2]) is not route.given:
            return False
        if node.inputs[0] not in route.blocks:
            return False
        made = self._emit(node, ExpertRows(), route.blocks[node.inputs[0]], self._rows_of(node.inputs[1]), route.ends)
        self._put(route, node, made)
        return True

    def _compute(self, route: _Route, node: Node) -> bool:
        """Compute on the blocks an operator that works row by row."""
        found = with_other_rows(node, route.count, route.index.shape[0])
        is_tuple = not isinstance(node.type, TensorType)
        if found is None or (is_tuple and node in self.read_whole):
            return False
        op, with_rows = found
        operands = [self._in_blocks(route, value) if i in with_rows else value for i, value in enumerate(node.inputs)]
        self._put(route, node, self._emit(node, op, *operands))
        return True

    def _emit(self, node: Node, op: Op, *operands: Value) -> Node:
        made = self.b.emit(op, *operands, name=node.name, instance=node.instance)
        if "recompute" in node.attrs:
            made.attrs["recompute"] = node.attrs["recompute"]
        return made

    def _bring(self, route: _Route, blocks: Value, places: Value, node: Value) -> Node:
        """Return rows from blocks, one for each of the places."""
        made = self.b.emit(TakeRows(share=route.near), blocks, places, name=node.name)
        if len(places.shape) == 1:
            made.in_strategy = route.mesh.of_lookup(made.tensor_type, of_product=False)
        return made

    def _rows_of(self, value: Value) -> Value:
        """Return the value for readers that want its rows in their order."""
        if value not in self.outside and value in self.first:
            route = self.ordered[self.first[value]]
            self.outside[value] = self._bring(route, route.blocks[value], route.slots, value)
        return self.outside.get(value, value)


def _looked_up(value: Value) -> tuple[Value, Value] | None:
    """Return (table, integers) if the rows of a table are looked up by integers."""
    if not isinstance(value, Node) or not isinstance(value.op, Gather) or value.op.batch_dims:
        return None
    table, ids = value.inputs
    return (table, ids) if value.op.axis % len(table.shape) == 0 and len(ids.shape) == 1 else None


def with_other_rows(node: Node, rows: int, other: int) -> tuple[Op, tuple[int, ...]] | None:
    """Return (the operator that computes a node's function on `other` instead of `rows` rows, operands that have them).
    None unless the operator computes every row of all results from the same row of operands and from constants alone,
    and draws no random numbers."""
    op = node.op
    if isinstance(op, TupleGetItem):
        return op, (0,)
    if not isinstance(op, Op) or op.seeds or op.has_side_effect or op.mutates or op.runs_on_host:
        return None
    if isinstance(op, Reshape):
        keeps = node.inputs[0].shape[:1] == node.tensor_type.shape[:1] == (rows,)
        return (replace(op, shape=(other, *node.tensor_type.shape[1:])), (0,)) if keeps else None
    if isinstance(op, StridedSlice):
        first = op.cuts(node.inputs[0].shape)[0]
        if first.dim != 0 or not first.takes_all or node.inputs[0].shape[0] != rows:
            return None
        if op.ellipsis_mask & 1 or op.end_mask & 1 or not op.end:
            return op, (0,)
        return replace(op, end=(other, *op.end[1:])), (0,)
    if type(op).localize is not Op.localize or type(op).expand is not Op.expand:
        return None  # its attributes may hold sizes
    rule = op.parsed_rule(*operand_types(node))
    if not element_types(node.type) or not rule.outputs or not rule.outputs[0] or len(rule.outputs[0][0]) != 1:
        return None
    (factor,) = rule.outputs[0][0]
    if factor in rule.frozen or rule.sizes[factor] != rows:
        return None
    if any(dims[:1] != ((factor,),) or _has(dims[1:], factor) for dims in rule.outputs):
        return None
    found: list[int] = []
    for index, dims in enumerate(rule.inputs):
        if dims[:1] == ((factor,),) and not _has(dims[1:], factor):
            found.append(index)
        elif _has(dims, factor) or not isinstance(node.inputs[index], Constant):
            return None
    return op, tuple(found)


def _has(dims: tuple[tuple[int, ...], ...], factor: int) -> bool:
    return any(factor in dim for dim in dims)


def route_slots(graph: Graph) -> bool:
    """Route slots, and return whether anything has changed."""
    ranks = int(graph.attrs.get("strategies_for", graph.attrs.get("ranks", 1)))
    if ranks < 2 or not any(node.in_strategy is not None for node in graph.nodes):
        return False

    def visit(b: Builder, node: Node) -> Node | None:
        b.like(node).phase = node.phase
        made = _lookup_without_zeros(b, node, ranks) or _put(b, node)
        if made is not None:
            made.name = node.name or made.name
        return made

    return rewrite_nodes(graph, visit)


def _lookup_without_zeros(b: Builder, node: Node, ranks: int) -> Node | None:
    """Return a lookup in a table that ends with rows of zeros, without the zeros; each rank has a share of it, because
    the rows are wanted by the rank of the tokens, not by that of the table."""
    op = node.op
    if not isinstance(op, Gather) or op.batch_dims or op.axis % len(node.inputs[0].shape):
        return None
    table, places = node.inputs
    if not isinstance(table, Node) or not isinstance(table.op, Concat) or table.op.axis % len(table.shape):
        return None
    rows, *spare = table.inputs
    if not spare or not all(map(is_all_zero, spare)) or not _is_sharded(rows):
        return None
    made = b.emit(TakeRows(limit=table.shape[0]), rows, _counted_from_start(b, places, table.shape[0]))
    if places.shape and places.shape[0] % ranks == 0:
        made.in_strategy = ((1,) * len(rows.shape), (ranks, *[1] * (len(places.shape) - 1)))
    return made


def _counted_from_start(b: Builder, places: Value, rows: int) -> Value:
    """Return places in a table of `rows` rows, of which negative ones count from its end, as indices from 0."""
    total, zero = (b.constant(number, places.tensor_type.dtype) for number in (rows, 0))
    return b.emit(Select(), b.emit(Less(), places, zero), b.emit(Add(), places, total), places)


def _is_sharded(value: Value) -> bool:
    """Return whether a value comes, through first operands, from an operator with a strategy that shards the first
    dimension."""
    while isinstance(value, Node) and value.in_strategy is None and value.inputs:
        value = value.inputs[0]
    given = spread(value.in_strategy or ()) if isinstance(value, Node) else []
    first = given[0] if given else ()
    counts = first.strategy if isinstance(first, NamedLayout) else first
    return bool(counts) and counts[0] > 1


def _put(b: Builder, node: Node) -> Node | None:
    """Return the first rows of a table of zeros into which rows are put, or to which they are added."""
    table, size = node, node.shape[0] if hasattr(node.type, "shape") and node.tensor_type.shape else 0
    if isinstance(node.op, StridedSlice) and isinstance(node.inputs[0], Node) and size:
        cuts = node.op.cuts(node.inputs[0].shape)
        first = cuts[0]
        is_first_rows = first.dim == 0 and first.size == size and first.start == 0 and first.step == 1
        if not is_first_rows or not all(cut.takes_all for cut in cuts[1:]):
            return None
        table = node.inputs[0]
    elif not isinstance(node.op, TensorScatterUpdate):
        return None
    op, limit = table.op, table.shape[0]
    if isinstance(op, SetRows):
        return b.emit(SetRows(size, limit=op.limit), *table.inputs)
    if isinstance(op, UnsortedSegmentSum) and not op.offset and table is not node:
        rows, places = table.inputs
        return b.emit(AddRows(size), rows, places) if len(places.shape) == 1 else None
    if type(op) is not TensorScatterUpdate or op.dims:
        return None
    zeros, indices, rows = table.inputs
    if not is_all_zero(zeros) or len(indices.shape) != 2 or indices.shape[1] != 1 or table.in_strategy is not None:
        return None
    return b.emit(SetRows(size, limit=limit), rows, _counted_from_start(b, _as_line(b, indices), limit))


def _as_line(b: Builder, indices: Value) -> Value:
    """Return integers [rows, 1] as [rows]."""
    if isinstance(indices, Node) and isinstance(indices.op, (ExpandDims, Reshape)):
        (found,) = indices.inputs
        if found.shape == indices.shape[:1]:
            return found
    return b.emit(Reshape(indices.shape[:1]), indices)
