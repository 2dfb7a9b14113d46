"""Copies of a graph as it stands behind several passes. What a pass has left as it was is the same in both of them:
nodes, and graphs that nodes run."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_

from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, copied_node, copied_parameter
from mspc.ir.text.printer import SharedTexts


class GraphSnapshots:
    """The copies of one graph, which nobody changes. texts: are told which copies are written alike."""

    def __init__(self, texts: SharedTexts) -> None:
        self._texts = texts
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
            before = self._nodes.get(node)
            says_the_same = before is not None and _says_the_same(before, node, forward)
            if before is not None and says_the_same and _reads_the_same(before, inputs, regions):
                own = before
            else:
                own = self._nodes[node] = copied_node(node, inputs)
                own.regions = regions
                own.forward = forward if isinstance(forward, Node) else None
                if before is not None and says_the_same and _is_written_alike(before, own):
                    self._texts.write_alike(own, before)
            of[node] = own
            made.nodes.append(own)
        made.results = [of.get(value, value) for value in graph.results]
        earlier = self._graphs.get(graph)
        if earlier is None or not _is_same(earlier, made):
            self._graphs[graph] = earlier = made
        taken[graph] = earlier
        return earlier

    def _parameter(self, parameter: Parameter) -> Parameter:
        own = self._parameters.get(parameter)
        if own is None or any(getattr(own, name) != getattr(parameter, name) for name in _OF_PARAMETERS):
            own = self._parameters[parameter] = copied_parameter(parameter)
        return own


_OF_PARAMETERS = ("name", "type", "kind", "layout", "trainable", "global_type", "attrs")


def _says_the_same(own: Node, node: Node, forward: Value | None) -> bool:
    """Whether a copy still says what the node does, whatever this reads and runs. What is large is compared by
    identity: at worst it is copied."""
    return (
        own.op is node.op
        and own.type is node.type
        and own.frames is node.frames
        and own.forward is forward
        and own.in_layouts is node.in_layouts
        and own.layout is node.layout
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


def _reads_the_same(own: Node, inputs: list[Value], regions: tuple[Graph, ...]) -> bool:
    return _are_same(own.inputs, inputs) and len(own.regions) == len(regions) and all(map(is_, own.regions, regions))


def _is_written_alike(one: Node, other: Node) -> bool:
    """Whether two nodes that say the same differ at most in which values they read, of the same types, and in what is
    in the graphs that they run."""
    return (
        len(one.inputs) == len(other.inputs)
        and all(
            a is b or (a.type is b.type and not isinstance(a, Constant) and not isinstance(b, Constant))
            for a, b in zip(one.inputs, other.inputs, strict=True)
        )
        and [region.name for region in one.regions] == [region.name for region in other.regions]
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
