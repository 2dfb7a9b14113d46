"""Grouped products on blocks of rows, for graphs that have any of it."""

from __future__ import annotations

from typing import cast

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ir.types import INT32, TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.expert_product import ExpertProduct, ExpertRows
from mspc.ops.math.grouped_product import GroupedProduct, GroupedRows
from mspc.ops.nn.expert_places import ExpertPlaces
from mspc.ops.nn.expert_rows import TakeRows
from mspc.ops.op import Op
from mspc.ops.tensor.embedding import Gather
from mspc.passes.sharding.expert_meshes import ExpertMesh, mesh_of
from mspc.passes.sharding.row_by_row import with_other_rows


def route_experts(graph: Graph) -> bool:
    """What the pass does; whether anything has changed."""
    ranks = int(graph.attrs.get("strategies_for", graph.attrs.get("ranks", 1)))
    meshes = {node: mesh_of(node, ranks) for node in graph.nodes if isinstance(node.op, GroupedProduct)}
    found = {node: mesh for node, mesh in meshes.items() if mesh is not None}
    if found:
        _Router(graph, found).run()
    return bool(found)


class _Route:
    """Blocks of the rows that go with one tensor of ends.

    source: where the rows are from. index, numbers, slots, ends: results of ExpertPlaces. blocks: of values with these
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
    """Rewrites one graph; `meshes` has the products whose experts are sharded.

    outside: what stands in the place of a value for those who want its rows in their order.
    """

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
        """Replace the nodes of the graph."""
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
        """Note what a value with the rows of a route is in blocks."""
        route.blocks[value] = made
        number = self.numbers[route]
        self.first[value] = min(self.first.get(value, number), number)

    def _multiply(self, node: Node, mesh: ExpertMesh) -> None:
        """Multiply rows in blocks in the place of rows."""
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
        """A value with these rows, in blocks."""
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
        """Look up of the blocks what is looked up of the rows."""
        table = _looked_up(node)
        if table is None or table[0] not in route.blocks or table[1] in route.blocks:
            return False
        places = self.b.emit(Gather(), route.slots, self._rows_of(table[1]))
        self.outside[node] = self._bring(route, route.blocks[table[0]], places, node)
        return True

    def _add_bias(self, route: _Route, node: Node) -> bool:
        """Every expert's own row for each of its rows."""
        if not isinstance(node.op, GroupedRows) or self._rows_of(node.inputs[2]) is not route.given:
            return False
        if node.inputs[0] not in route.blocks:
            return False
        made = self._emit(
            node, ExpertRows(), route.blocks[node.inputs[0]], self._rows_of(node.inputs[1]), route.ends
        )
        self._put(route, node, made)
        return True

    def _compute(self, route: _Route, node: Node) -> bool:
        """Compute of the blocks what is computed row by row of rows."""
        found = with_other_rows(node, route.count, route.index.shape[0])
        is_tuple = not isinstance(node.type, TensorType)
        if found is None or (is_tuple and node in self.read_whole):
            return False
        op, with_rows = found
        operands = [self._in_blocks(route, value) if i in with_rows else value for i, value in enumerate(node.inputs)]
        self._put(route, node, self._emit(node, op, *operands))
        return True

    def _emit(self, node: Node, op: Op, *operands: Value) -> Node:
        """An operator in the place of a node."""
        made = self.b.emit(op, *operands, name=node.name, instance=node.instance)
        if "recompute" in node.attrs:
            made.attrs["recompute"] = node.attrs["recompute"]
        return made

    def _bring(self, route: _Route, blocks: Value, places: Value, node: Value) -> Node:
        """Rows from blocks, one for each of the places."""
        made = self.b.emit(TakeRows(share=route.near), blocks, places, name=node.name)
        if len(places.shape) == 1:
            made.in_strategy = route.mesh.of_lookup(made.tensor_type, of_product=False)
        return made

    def _rows_of(self, value: Value) -> Value:
        """The value for readers that want its rows in their order."""
        if value not in self.outside and value in self.first:
            route = self.ordered[self.first[value]]
            self.outside[value] = self._bring(route, route.blocks[value], route.slots, value)
        return self.outside.get(value, value)


def _looked_up(value: Value) -> tuple[Value, Value] | None:
    """(table, integers) where rows of a table are looked up by integers."""
    if not isinstance(value, Node) or not isinstance(value.op, Gather) or value.op.batch_dims:
        return None
    table, ids = value.inputs
    return (table, ids) if value.op.axis % len(table.shape) == 0 and len(ids.shape) == 1 else None
