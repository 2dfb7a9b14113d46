"""Makes the reference that ranks are compared with: the network as it was read, with its gradients.

Input:  the graph of the front end, in which operators may have strategies
Output: the graph of one device, in which composite operators are expanded and gradients are computed

A pass that ran for the reference, too, could not be judged by it: an error in it would change both sides alike. Only
two passes run here. Finite differences judge `grad`. `decompose` expands composite operators; all strategies are
removed first, so that it decomposes no others.
"""

from __future__ import annotations

from typing import Any

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.structural import MakeTuple, TupleGetItem
from mspc.passes.base import PassManager, find_pass
from mspc.passes.lib.choices import release_constraints
from mspc.verify.finite_differences import Doubled, requests
from mspc.verify.global_batch import name_by_script, name_gradients

Array = Any
PASSES = ("decompose", "grad")


@dataclass(frozen=True)
class PlainNetwork:
    """The network that ranks are compared with. doubled: see `plain_network`. weights: first values, by name."""

    graph: Graph
    doubled: Doubled
    weights: dict[str, Array]


def plain_network(graph: Graph) -> tuple[Graph, Doubled]:
    """Return the reference, and the Float64 graph by which its gradients are judged.

    Args:
        graph: of the front end; it is changed.
    """
    graph.attrs = {"mode": "stand_alone", "ranks": 1}
    for parameter in graph.parameters:
        parameter.layout = parameter.global_type = None
    for each in graph.graphs():
        for node in each.nodes:
            node.in_strategy = node.out_strategy = None
    manager = PassManager()
    decompose, grad = map(find_pass, PASSES)
    graph, _ = manager.apply(decompose, graph)
    name_by_script(graph)
    asked = requests(graph)
    graph, _ = manager.apply(grad, graph)
    release_constraints(graph)
    doubled = Doubled.of(graph, asked)
    name_gradients(graph)
    _read_elements(graph)
    _drop_dead(graph)
    return graph, doubled


def _read_elements(graph: Graph) -> None:
    """Let readers of an element of a tuple that the graph makes read the element itself: sums over ranks replace
    gradients in the operands of updates, so these must be operands there."""
    elements: dict[Value, Value] = {}
    for node in graph.nodes:
        node.inputs = [elements.get(value, value) for value in node.inputs]
        source = node.inputs[0] if isinstance(node.op, TupleGetItem) else None
        if isinstance(node.op, TupleGetItem) and isinstance(source, Node) and isinstance(source.op, MakeTuple):
            elements[node] = source.inputs[node.op.index]
    graph.results = [elements.get(value, value) for value in graph.results]
    graph.nodes = [node for node in graph.nodes if node not in elements]


def _drop_dead(graph: Graph) -> None:
    """Remove nodes without effects that no result needs, and then constants that nothing reads: a compiled program,
    whose first values are used here, does not have them."""
    live = set(graph.results)
    for node in reversed(graph.nodes):
        if node in live or node.op.has_side_effect:
            live.update((node, *node.inputs))
    graph.nodes = [node for node in graph.nodes if node in live]
    graph.parameters = [p for p in graph.parameters if p.kind != "constant" or p in live]
