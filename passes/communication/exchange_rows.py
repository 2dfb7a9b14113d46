"""Lets ranks exchange the rows that they look up, or add up, instead of gathering or reducing whole tables.

Input:  `%3 = Redistribute(%2)` from `(8) [0, -]` to `(8) [-, -]`, `%4 = TakeRows(%3, %places)` at `(8) [0, -]`
Output: `%4 = FetchRows(%2, %places) {mesh: (8), axes: (0)}`

Input:  `%4 = AddRows(%rows, %places)` at `(8) [-, -] sum[0]`, `%5 = Redistribute(%4)` to `(8) [0, -]`
Output: `%5 = SendRows(%rows, %places) {mesh: (8), axes: (0)}`

The same is done if the table is not gathered but lookups give partial sums, and if rows are gathered
before their sum, whenever that sends fewer bytes. A rule of factors cannot say it: the table's rows and its readers'
lie along one axis, and yet no rank has the rows it reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mspc.ir.graph import Builder, Graph, Node, Value
from mspc.ir.layout import Axes, Layout, common_mesh, on_mesh
from mspc.ops.collective.collectives import Redistribute
from mspc.ops.collective.row_exchange import FetchRows, SendRows
from mspc.ops.nn.experts import AddRows, SetRows, TakeRows
from mspc.passes.base import GLOBAL, OPENED, Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.lib.placement import readers_of, slice_bytes
from mspc.passes.lib.redistribution import cost

Users = dict[Value, list[Node]]


class ExchangeRows(Pass):
    regions = OPENED
    needs = (GLOBAL,)

    def run(self, graph: Graph) -> bool:
        return exchange(graph)


def exchange(graph: Graph, least: int = 1) -> bool:
    """Exchange rows, and return whether anything has changed. least: bytes that an exchange has to save."""
    if not any(isinstance(node.op, (TakeRows, AddRows, SetRows)) for node in graph.nodes):
        return False
    exchanger = _Exchanger(graph, readers_of(graph.nodes), least)
    for node in graph.nodes:
        exchanger.visit(node)
    graph.nodes = exchanger.nodes
    graph.results = [exchanger.replaced.get(value, value) for value in graph.results]
    if exchanger.replaced:
        remove_dead(graph)
    return bool(exchanger.replaced)


class _Exchanger:
    """Rewrites the nodes of a graph; `replaced` has the new values."""

    def __init__(self, graph: Graph, users: Users, least: int) -> None:
        self.least = least
        self.users, self.held = users, set(graph.results)
        self.nodes: list[Node] = []
        self.b = Builder(graph, self.nodes)
        self.replaced: dict[Value, Value] = {}
        self.brought: dict[tuple[Value, Layout], Value] = {}

    def visit(self, node: Node) -> None:
        """Append a node, or the exchange of its rows."""
        node.inputs = [self.replaced.get(value, value) for value in node.inputs]
        if node in self.replaced:
            return
        self.b.like(node).phase = node.phase
        self.b.forward = node.forward
        reader = self._final_reader(node)
        final = node.layout if reader is None else reader.layout
        made = None
        if node.in_layouts is None and isinstance(node.layout, Layout) and isinstance(final, Layout):
            if isinstance(node.op, TakeRows):
                made = self._fetch_rows(node, node.op, final)
            elif isinstance(node.op, (AddRows, SetRows)):
                made = self._send_rows(node, node.op, final)
        self.b.forward = None
        if made is None:
            self.nodes.append(node)
        else:
            self.replaced[reader or node] = made

    def _final_reader(self, node: Node) -> Node | None:
        """Return the only reader of a result if it brings it to a layout that is not partial."""
        read = self.users.get(node, [])
        if not isinstance(node.layout, Layout) or node in self.held or len(read) != 1:
            return None
        return read[0] if isinstance(read[0].op, Redistribute) and not read[0].op.target.partial else None

    def _fetch_rows(self, node: Node, taken: TakeRows, final: Layout) -> Node | None:
        """Return a lookup whose result has the layout `final`, by FetchRows."""
        (table, moved), (places, told) = map(self._before_redistribution, node.inputs)
        held, known = table.layout, places.layout
        if not isinstance(held, Layout) or not isinstance(known, Layout) or final.partial:
            return None
        mesh = common_mesh(held.mesh, final.mesh)
        if mesh is None or not _adds_up(held):
            return None
        (old, parts), (new, _), count = on_mesh(held, mesh), on_mesh(final, mesh), len(places.shape)
        owners = old[0]
        new = tuple(_axes_before(axes, parts) for axes in new)  # partial sums are scattered over the others afterwards
        if not owners or old[1:] != new[count:]:
            return None
        found = Layout.of(mesh, new, parts)
        asked = Layout.of(mesh, new[:count])
        op = FetchRows(total=table.shape[0], limit=taken.limit, share=taken.share, mesh=mesh, axes=owners)
        travel = op.travelling([0.0, slice_bytes(places.tensor_type, asked)], slice_bytes(node.tensor_type, final))
        spent = op.sent_bytes(travel, held.size_of(held.dims[0])) + _cost(places, known, asked)
        spared = moved + told + _cost(node, node.tensor_layout, final) - spent - _cost(node, found, final)
        if spared < self.least:
            return None
        made = self._exchange(node, op, (table, self._in_layout(places, asked)), found)
        return made if found == final else self._moved(made, final)

    def _send_rows(self, node: Node, put: AddRows | SetRows, final: Layout) -> Node | None:
        """Return a sum of rows by their places that has the layout `final`, by SendRows."""
        (rows, moved), (places, told) = map(self._before_redistribution, node.inputs)
        held, known = rows.layout, places.layout
        if not isinstance(held, Layout) or not isinstance(known, Layout) or final.partial:
            return None
        mesh = common_mesh(held.mesh, final.mesh)
        if mesh is None or not _adds_up(held):
            return None
        (old, parts), (new, _), count = on_mesh(held, mesh), on_mesh(final, mesh), len(places.shape)
        senders = [a for axes in old[:count] for a in axes]
        sets = isinstance(put, SetRows)
        owners = _axes_before(new[0], [a for a in new[0] if a not in senders])
        if not owners or old[count:] != new[1:] or (parts and sets):
            return None
        others = tuple(a for a in senders if a not in owners)
        if sets and others:
            owners, others = (*owners, *others), ()  # the last of all rows counts, not that of a few ranks
        if sets and (senders != sorted(senders) or node.shape[0] % math.prod(mesh[a] for a in owners)):
            return None
        summed, asked = Layout.of(mesh, [owners, *new[1:]], (*others, *parts)), Layout.of(mesh, old[:count])
        size, share = node.shape[0], 1.0 if isinstance(put, SetRows) else put.share
        limit = put.limit if isinstance(put, SetRows) else 0
        op = SendRows(size=size, total=size, limit=limit, sets=sets, share=share, mesh=mesh, axes=owners)
        travel = op.travelling([slice_bytes(rows.tensor_type, held), slice_bytes(places.tensor_type, asked)], 0.0)
        spent = op.sent_bytes(travel, math.prod(mesh[a] for a in owners))
        spent += _cost(places, known, asked) + _cost(node, summed, final)
        if moved + told + _cost(node, node.tensor_layout, final) - spent < self.least:
            return None
        made = self._exchange(node, op, (rows, self._in_layout(places, asked)), summed)
        return made if summed == final else self._moved(made, final)

    def _before_redistribution(self, value: Value) -> tuple[Value, float]:
        """Return (the value before its redistribution, the bytes of the redistribution if no other node reads its
        result)."""
        if isinstance(value, Node) and isinstance(value.op, Redistribute):
            alone = len(self.users.get(value, [])) == 1
            return value.inputs[0], _cost(value, value.op.source, value.op.target) if alone else 0.0
        return value, 0.0

    def _in_layout(self, value: Value, target: Layout) -> Value:
        """Return the value in a layout; readers of the same rows' places, as gradients, share it."""
        if value.layout == target:
            return value
        if (value, target) not in self.brought:
            self.brought[value, target] = self._moved(value, target)
        return self.brought[value, target]

    def _moved(self, value: Value, target: Layout) -> Node:
        made = self.b.emit(Redistribute(source=value.tensor_layout, target=target), value, name=value.name)
        made.layout = target
        made.attrs["reason"] = "rows are exchanged by their places"
        return made

    def _exchange(self, node: Node, op: FetchRows | SendRows, operands: Sequence[Value], layout: Layout) -> Node:
        made = self.b.emit(op, *operands, name=node.name)
        made.layout = layout
        made.attrs |= node.attrs
        made.attrs["reason"] = f"{node.label}: only rows that are named travel"
        return made


def _axes_before(axes: Axes, stops: Sequence[int]) -> Axes:
    """Return the axes of a dimension before the first of `stops`."""
    return next((axes[:i] for i, a in enumerate(axes) if a in stops), axes)


def _adds_up(layout: Layout) -> bool:
    """Return whether ranks have all of their slices, or partial sums, which are added up after an exchange."""
    return not layout.partial or layout.reduction == "sum"


def _cost(value: Value, source: Layout, target: Layout) -> float:
    type = value.tensor_type
    return cost(source, target, type.shape, type.dtype.itemsize)
