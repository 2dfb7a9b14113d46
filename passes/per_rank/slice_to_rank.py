"""Makes one rank's own graph: local types, this rank's groups and slice bounds. It knows no operator by name.

Input:  the graph of all ranks with collectives over mesh axes. Output: a new graph for `rank`; the input is unchanged,
so the work of all passes before is done once for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import STAGE, STAGES, Constant, Graph, Node, Value, copied_parameter
from mspc.ops.control.structural import Joined, MakeTuple, TupleGetItem
from mspc.passes.base import GLOBAL, LOWERED, WHOLE, Pass
from mspc.passes.lib.batch_rows import ROWS
from mspc.passes.lib.choices import is_released
from mspc.passes.lib.ranks import GraphPositions, RankElement, local_type

Shared = dict[tuple[Value, object], Node]
"""Nodes that operators became and share, by the value and the question that they answer."""


class SliceToRank(Pass):
    """Specialise the graph for `rank`."""

    regions = WHOLE
    needs = (GLOBAL, LOWERED)
    rank: int = 0

    def apply(self, graph: Graph) -> tuple[Graph, bool]:
        check_rank(graph, self.rank)
        if not any(node.regions for node in graph.nodes):
            return self._sliced(graph), True
        from mspc.passes.lib.opened_graphs import opened  # late: few graphs have regions

        with opened(graph):
            return self._sliced(graph), True

    def _sliced(self, graph: Graph) -> Graph:
        places = GraphPositions(graph)
        return sliced(graph, self.rank, places, places.on(self.rank))


def check_rank(graph: Graph, rank: int) -> None:
    """Raise MspcError if the graph has no such rank."""
    stages = 1 if STAGE in graph.attrs else int(graph.attrs.get(STAGES, 1))
    ranks = int(graph.attrs.get("ranks", 1)) * stages
    if not 0 <= rank < ranks:
        raise MspcError(f"there is no rank {rank}; ranks are 0 to {ranks - 1}", code="E0104")


def sliced(graph: Graph, rank: int, places: GraphPositions, parts: Sequence[RankElement]) -> Graph:
    """The graph of a rank on which the places of the graph, whose regions are open, are these parts."""
    local = Graph(graph.name)
    local.attrs = {**graph.attrs, "rank": rank}
    local.returns_tuple = graph.returns_tuple
    mapping: dict[Value, Value] = {}
    shared: Shared = {}
    tuples: dict[Value, Node] = {}
    for parameter in graph.parameters:
        copy = copied_parameter(parameter)
        copy.type, copy.global_type = local_type(parameter.type, parameter), parameter.global_type or parameter.type
        local.parameters.append(copy)
        mapping[parameter] = copy
    for node in graph.nodes:
        if is_released(node):
            continue
        inputs = [value if isinstance(value, Constant) else mapping[value] for value in node.inputs]
        if isinstance(node.op, TupleGetItem) and inputs[0] in tuples:
            mapping[node] = tuples[inputs[0]].inputs[node.op.index]
            continue
        if places.of_operand:
            for index in range(len(inputs)):
                place = places.of_operand.get((node, index))
                if place is not None:
                    inputs[index] = parts[place].constant or inputs[index]
        place = places.of_node.get(node)
        part = None if place is None else parts[place]
        mapping[node] = made = add_on_rank(local.nodes, node, inputs, part, shared)
        if part is not None and part.op is None and isinstance(made, Node) and isinstance(made.op, MakeTuple):
            tuples[made] = made
    local.results = [mapping.get(v, v) for v in graph.results]
    if tuples:  # of nodes that one operator became, whose results are read one by one
        read = {value for node in local.nodes for value in node.inputs}.union(local.results)
        local.nodes = [node for node in local.nodes if node not in tuples or node in read]
    if any(isinstance(node.op, Joined) for node in local.nodes):
        from mspc.passes.lib.opened_graphs import close_regions  # late: few graphs have regions

        close_regions(local)
    return local


def add_on_rank(nodes: list[Node], node: Node, inputs: list[Value], part: RankElement | None, shared: Shared) -> Value:
    """Append the nodes that are a node on a rank, and return their result."""
    if part is not None and part.op is None:
        return _place_several(nodes, node, inputs, part, shared)
    op = node.op if part is None or part.op is None else part.op
    copy = Node(op, inputs, local_type(node.type, node), node.name, node.instance, node.scope, node.frames, node.phase)
    copy.in_strategy, copy.out_strategy = node.in_strategy, node.out_strategy
    copy.attrs, copy.provenance = _attrs_on_rank(node), node.provenance
    nodes.append(copy)
    return copy


def _attrs_on_rank(node: Node) -> dict[str, Any]:
    return {k: v for k, v in node.attrs.items() if k not in ("gradient_for", "strategy_from", ROWS)}


def _place_several(nodes: list[Node], node: Node, inputs: list[Value], part: RankElement, shared: Shared) -> Value:
    made: list[Value] = []

    def value(read: int | Value) -> Value:
        if not isinstance(read, int):
            return read
        return made[read] if read >= 0 else inputs[-1 - read]

    for own in part.nodes:
        read = list(map(value, own.inputs))
        key = None if own.shared is None else (value(own.shared[0]), own.shared[1])
        if key in shared:
            made.append(shared[key])
            continue
        new = Node(own.op, read, own.type, own.name, own.instance, node.scope, node.frames, node.phase)
        if not isinstance(own.op, TupleGetItem):
            new.attrs |= _attrs_on_rank(node)
        if own.reason:
            new.attrs["reason"] = f"{node.label}: {own.reason}"
        new.provenance = f"{SliceToRank.name}/{node.op.name}"
        made.append(new)
        nodes.append(new)
        if key is not None:
            shared[key] = new
    return value(part.result)
