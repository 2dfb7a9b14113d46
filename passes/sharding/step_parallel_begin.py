"""Makes the view that people read to see every operator's strategy: the forward operators with global shapes.

Input: the graph after propagation. Output: a new graph of the forward operators (and updates that they read), each with
`{in_strategy: ((2, 4), (4, 1))}` after it; the compile itself continues with the input.
"""

from __future__ import annotations

from mspc.ir.graph import Graph, Node, Parameter, Value, copied_region
from mspc.ops.control.structural import Depend
from mspc.passes.base import WHOLE, Pass


class StepParallelBegin(Pass):
    """Copy the forward part with its strategies."""

    regions = WHOLE

    def apply(self, graph: Graph) -> tuple[Graph, bool]:
        view = Graph(graph.name)
        view.attrs = dict(graph.attrs)
        view.returns_tuple = graph.returns_tuple
        mapping: dict[Value, Value] = {}
        used: set[Value] = set()
        shown = _shown_nodes(graph)
        copies: dict[Graph, Graph] = {}
        for node in graph.nodes:
            if node not in shown:
                continue
            inputs = [mapping.get(value, value) for value in node.inputs]
            remaining = [v for v, original in zip(inputs, node.inputs, strict=True) if _is_among(shown, original)]
            if isinstance(node.op, Depend) and len(remaining) < len(inputs):
                mapping[node] = inputs[0]
                continue
            copy = Node(node.op, inputs, node.type, node.name, node.instance, node.scope, node.frames)
            copy.in_strategy, copy.out_strategy = node.in_strategy, node.out_strategy
            copy.strategy = _shown_strategy(node)
            copy.regions = tuple(copied_region(region, known=copies) for region in node.regions)
            mapping[node] = copy
            used.update(inputs)
            view.nodes.append(copy)
        for region in copies.values():  # of the decisions on regions only strategies are shown
            for parameter in region.parameters:
                parameter.layout = None
            for node in region.nodes:
                node.strategy = _shown_strategy(node)
                node.in_layouts = node.layout = node.forward = None
                node.attrs = {}
        view.results = [mapping.get(value, value) for value in graph.results if _is_among(shown, value)]
        used.update(view.results)
        for parameter in graph.parameters:
            copy = Parameter(parameter.name, parameter.type, parameter.kind, parameter.trainable)
            copy.global_type = parameter.global_type
            if parameter in used or parameter.kind == "input":
                view.parameters.append(copy)
                mapping[parameter] = copy
        view.replace({p: mapping[p] for p in graph.parameters if p in mapping})
        return view, True


def _shown_strategy(node: Node) -> tuple[tuple[int, ...], ...] | None:
    """Return the user's strategy, in the user's terms, or else the one of the layouts."""
    if node.in_layouts is None:
        return None
    given = node.in_strategy or ()
    if given and all(isinstance(entry, tuple) for entry in given):
        return (*given, *[()] * (len(node.in_layouts) - len(given)))
    return tuple(layout.strategy if layout is not None else () for layout in node.in_layouts)


def _shown_nodes(graph: Graph) -> set[Node]:
    """Return the forward operators, and updates whose results they compute with, without operators that only have to
    run before."""
    shown = {node for node in graph.nodes if node.phase == "forward"}
    for node in reversed(graph.nodes):
        if node in shown:
            read = node.inputs[:1] if isinstance(node.op, Depend) else node.inputs
            shown.update(value for value in read if isinstance(value, Node))
    return shown


def _is_among(shown: set[Node], value: Value) -> bool:
    return not isinstance(value, Node) or value in shown
