"""Replaces every abstract Redistribute by the cheapest collectives and slices that do it.

Input:  `%3 = Redistribute(%2)` from `(2, 4) [0, -] sum[1]` to `(2, 4) [0, 1]`
Output: `%3 = ReduceScatter(%2) {mesh: (2, 4), axes: (1), axis: 1}`; types stay global, groups are still mesh axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

from mspc.analysis.cost.nodes import sent_bytes
from mspc.ir.graph import (
    Builder,
    Graph,
    Node,
    Parameter,
    Value,
    copied_node,
    element_layouts,
    element_types,
    operand_types,
)
from mspc.ir.layout import Axes, Layout
from mspc.ir.types import StackType, TensorType
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import Redistribute
from mspc.ops.collective.exchange import Exchange, Regroup
from mspc.ops.control.regions import COUNT, For, TurnCount, emit_regions, times_of
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import Mul
from mspc.ops.op import Op
from mspc.passes.base import WHOLE, Pass, live_values, rewrite_nodes, runs_anyway
from mspc.passes.lib.placement import sent_inside
from mspc.passes.lib.redistribution import emit_collective, plan
from mspc.sharding.pieces import missing_elements


class LowerRedistribution(Pass):
    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        changed = False
        used: dict[Graph, list[Node]] = {}
        for each in graph.graphs():
            own, each.attrs = each.attrs, graph.attrs  # passes read the header
            changed |= rewrite_nodes(each, _lowered)
            each.attrs = own
        for each in graph.graphs():
            live = live_values(each.nodes, each.results, runs_anyway)
            used[each] = [node for node in each.nodes if node in live]
            for node in each.nodes:
                if node not in live:
                    # Only here is it known for all ranks alike; if one rank dropped it, the others would wait for it.
                    node.attrs["unused"] = True
        if "search_cost" in graph.attrs:
            _say_sent(graph, used)
        return changed


def _say_sent(graph: Graph, nodes: Mapping[Graph, Sequence[Node]]) -> None:
    """Write into the header the bytes that the program sends, loops times their iterations: exact bytes, whereas the
    search adds small terms for messages. nodes: of every graph those that run."""
    times = times_of(graph)
    means = [(times[g].count, sum(map(_of_collective, own)) + sent_inside(own)) for g, own in nodes.items()]
    reckoned, nbytes = graph.attrs["search_cost"], round(sum(count * mean for count, mean in means))
    graph.attrs["search_cost"] = nbytes
    if "search_bound" in graph.attrs:
        graph.attrs["search_bound"] = round(nbytes * graph.attrs["search_bound"] / max(1, reckoned))


def _lowered(b: Builder, node: Node) -> Value | None:
    if not isinstance(node.op, Redistribute):
        return None
    b.like(node).phase = node.phase
    if isinstance(node.type, StackType):
        return _lower_entries(b, node, node.op, node.type)
    value, type, layout = node.inputs[0], node.tensor_type, node.op.source
    for step in plan(node.op.source, node.op.target, type.shape, type.dtype.itemsize).steps:
        sent, value = emit_collective(b, step.op, value, layout, node.name)
        layout = sent.layout = value.layout = step.layout
        sent.attrs.update(node.attrs)
        if step.scale != 1.0:
            value = b.emit(Mul(), value, b.constant(step.scale, type.dtype), name=node.name)
            value.layout = step.layout
            value.attrs["reason"] = "a mean is the sum of the partial values divided by their number"
    return value


def _lower_entries(b: Builder, node: Node, op: Redistribute, type: StackType) -> Value:
    """Emit a loop over the entries of a stack, which are all redistributed alike."""
    ranks = int(b.graph.attrs.get("ranks", 1))
    body = Graph(f"redistribute_{len(b.nodes)}_of_{b.graph.name}")
    entry = Parameter("entry", type.entry, layout=op.source)
    body.parameters = [Parameter("turn", COUNT, layout=Layout.replicated(ranks, 0)), entry]
    body.attrs = {"ranks": ranks}
    inner = copied_node(node, [entry])
    inner.type = type.entry
    moved = _lowered(Builder(body), inner)
    assert moved is not None
    body.attrs = {}
    body.results, body.returns_tuple = [moved], True
    count = b.emit(TurnCount(), node.inputs[0])
    count.layout = Layout.replicated(ranks, 0)
    loop = emit_regions(b, For(scanned=1, stacked=1), [count, node.inputs[0]], [body])
    loop.layout = (op.target,)
    loop.attrs.update(node.attrs)
    found = b.emit(TupleGetItem(0), loop, name=node.name)
    found.layout = op.target
    return found


def _of_collective(node: Node) -> float:
    op = cast(Op, node.op)
    if isinstance(op, (Exchange, Regroup)):
        type = node.tensor_type
        missing, _ = missing_elements(op.source, op.target, type.shape)
        return missing * type.dtype.itemsize / op.source.ranks
    if isinstance(op, Collective) and op.over_mesh:
        mesh, axes = cast("tuple[tuple[int, ...], Axes]", (op.mesh, op.axes))  # type: ignore[attr-defined]  # of all that are over a mesh
        operands = [
            _on_rank((type,), element_layouts(value.layout))
            for type, value in zip(operand_types(node), node.inputs, strict=True)
        ]
        result = _on_rank(element_types(node.type), element_layouts(node.layout))
        return op.sent_bytes(op.travelling(operands, result), math.prod(mesh[a] for a in axes))
    return sent_bytes(node)


def _on_rank(types: Sequence[TensorType], layouts: Sequence[Layout | None]) -> float:
    """Return the bytes of a rank's slices of a value's tensors."""
    pairs = zip(types, layouts, strict=True)
    return sum(type.nbytes / math.prod(layout.strategy) for type, layout in pairs if layout is not None)
