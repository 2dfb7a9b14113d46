"""Copies of nodes and graphs: what passes change in one place stays as it was in another."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mspc.ir.graph import Graph, Node, OpLike, Parameter, Value


def copied_node(node: Node, inputs: Iterable[Value], op: OpLike | None = None) -> Node:
    """A node with all that `node` says, which reads other values and may have another operator. Its regions are the
    same graphs, and it belongs to the same forward node."""
    own = Node(
        node.op if op is None else op, inputs, node.type, node.name, node.instance, node.scope, node.frames, node.phase
    )
    own.regions = node.regions
    own.in_strategy, own.out_strategy, own.strategy = node.in_strategy, node.out_strategy, node.strategy
    own.in_layouts, own.layout = node.in_layouts, node.layout
    own.forward, own.forward_input, own.place = node.forward, node.forward_input, node.place
    own.attrs = dict(node.attrs)
    return own


def interpose(node: Node, op: OpLike) -> Node:
    """Move what a node computes to a new node, which is not in the graph yet, and return that one. The node itself
    becomes `op` of it, for all that read it."""
    moved = copied_node(node, node.inputs)
    node.op, node.regions = op, ()
    node.inputs = [moved]
    node.in_strategy = node.out_strategy = None
    node.attrs = {}
    node.instance = node.name = ""
    return moved


def copied_parameter(parameter: Parameter) -> Parameter:
    """A parameter with all that `parameter` says."""
    own = object.__new__(Parameter)  # there are thousands
    own.name, own.type, own.kind, own.layout = parameter.name, parameter.type, parameter.kind, parameter.layout
    own.trainable, own.global_type, own.attrs = parameter.trainable, parameter.global_type, {**parameter.attrs}
    return own


def copied_graph(graph: Graph, name: str | None = None) -> Graph:
    """A copy of a graph, called `name` or as the graph is. Its nodes run the same regions."""
    made = Graph(graph.name if name is None else name)
    made.attrs, made.returns_tuple = dict(graph.attrs), graph.returns_tuple
    of: dict[Value, Value] = {}
    for parameter in graph.parameters:
        of[parameter] = own = copied_parameter(parameter)
        made.parameters.append(own)
    for node in graph.nodes:
        copy = copied_node(node, [of.get(value, value) for value in node.inputs])
        forward = of.get(node.forward) if node.forward is not None else None
        copy.forward = forward if isinstance(forward, Node) else node.forward
        of[node] = copy
        made.nodes.append(copy)
    made.results = [of.get(value, value) for value in graph.results]
    return made


def copied_region(graph: Graph, name: Callable[[str], str] = str, known: dict[Graph, Graph] | None = None) -> Graph:
    """A copy of a graph and of those that its nodes run, or the copy that `known` has of it.

    name: what a copy of a graph of some name is called. known: copies that were made already, by what they are of;
    those made here are added.
    """
    known = {} if known is None else known
    if graph in known:
        return known[graph]
    made = known[graph] = copied_graph(graph, name(graph.name))
    for node in made.nodes:
        node.regions = tuple(copied_region(region, name, known) for region in node.regions)
    return made
