"""Copies of a graph as it stands behind several passes. What a pass has left as it was is the same in both of them:
nodes, and graphs that nodes run."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

from mspc.ir.copies import copied_node, copied_parameter
from mspc.ir.graph import Graph, Node, Parameter, Value


class GraphSnapshots:
    """The copies of one graph, which nobody changes."""

    def __init__(self) -> None:
        self._nodes: dict[Node, Node] = {}
        """The last copy of each node; so of the others."""
        self._parameters: dict[Parameter, Parameter] = {}
        self._graphs: dict[Graph, Graph] = {}

    def take(self, graph: Graph) -> Graph:
        """The graph as it stands now."""
        return self._take(graph, {})

    def _take(self, graph: Graph, taken: dict[Graph, Graph]) -> Graph:
        if graph in taken:
            return taken[graph]
        made = Graph(graph.name)
        made.attrs, made.returns_tuple = dict(graph.attrs), graph.returns_tuple
        of: dict[Value, Value] = {}
        for parameter in graph.parameters:
            of[parameter] = copy = self._parameter(parameter)
            made.parameters.append(copy)
        for node in graph.nodes:
            inputs = [of.get(value, value) for value in node.inputs]  # constants stay
            regions = tuple([self._take(region, taken) for region in node.regions]) if node.regions else ()
            forward = of.get(node.forward) if node.forward is not None else None
            own = self._nodes.get(node)
            if own is None or not _is_alike(own, node, inputs, regions, forward):
                own = self._nodes[node] = copied_node(node, inputs)
                own.regions = regions
                own.forward = forward if isinstance(forward, Node) else None
            of[node] = own
            made.nodes.append(own)
        made.results = [of.get(value, value) for value in graph.results]
        before = self._graphs.get(graph)
        if before is None or not _is_same(before, made):
            self._graphs[graph] = before = made
        taken[graph] = before
        return before

    def _parameter(self, parameter: Parameter) -> Parameter:
        own = self._parameters.get(parameter)
        if own is None or any(getattr(own, name) != getattr(parameter, name) for name in _OF_PARAMETERS):
            own = self._parameters[parameter] = copied_parameter(parameter)
        return own


_OF_PARAMETERS = ("name", "type", "kind", "layout", "trainable", "global_type", "attrs")


def _is_alike(
    own: Node, node: Node, inputs: list[Value], regions: tuple[Graph, ...], forward: Value | None
) -> bool:  # fmt: skip
    """Whether a copy still says what the node does. What is large is compared by identity: at worst it is copied."""
    return (
        own.op is node.op
        and own.type is node.type
        and own.frames is node.frames
        and own.forward is forward
        and own.in_layouts is node.in_layouts
        and own.layout is node.layout
        and len(own.inputs) == len(inputs)
        and all(map(is_, own.inputs, inputs))
        and len(own.regions) == len(regions)
        and all(map(is_, own.regions, regions))
        and own.attrs == node.attrs
        and own.name == node.name
        and own.phase == node.phase
        and own.scope == node.scope
        and own.instance == node.instance
        and own.place == node.place
        and own.forward_input == node.forward_input
        and own.strategy is node.strategy
        and own.in_strategy is node.in_strategy
        and own.out_strategy is node.out_strategy
    )


def _is_same(before: Graph, made: Graph) -> bool:
    """Whether two copies are of the same nodes."""
    return (
        before.name == made.name
        and before.returns_tuple == made.returns_tuple
        and before.attrs == made.attrs
        and _are_same(before.parameters, made.parameters)
        and _are_same(before.nodes, made.nodes)
        and _are_same(before.results, made.results)
    )


def _are_same(some: Sequence[Value], others: Sequence[Value]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))
