"""Places a plan of a model on a graph of its own: the same network, read again, whose layouts nobody has decided on
yet."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.graph import Graph, Node, Parameter
from mspc.passes.autodiff.planned_cells import mark_cells
from mspc.passes.autodiff.recompute import Recompute
from mspc.search.layouts.cheapest import SOURCE
from mspc.search.model.memory import MemoryModel


def place(memory: MemoryModel, graph: Graph, values: Sequence[int]) -> None:
    """Give the operators and parameters of a graph what an assignment says, and compute again what it does; nothing is
    left to search. memory: of the model of another graph of the same network, at the same stage."""
    model = memory.model
    own = dict(zip(model.search.graph.nodes, graph.nodes, strict=True))
    stored = dict(zip(model.search.graph.parameters, graph.parameters, strict=True))
    for value, variable in model.of.items():
        decided = model.variables[variable]
        if isinstance(value, Parameter) and value.layout is None:
            stored[value].layout = model.layout(value, int(decided.outputs[0][values[variable]]))
        elif isinstance(value, Node) and value.in_layouts is None:
            node, choice = own[value], decided.choices[values[variable]]
            node.in_layouts, node.layout = choice.inputs, choice.layout(node.type)
            node.attrs["strategy_from"] = SOURCE
    gathered = {stored[parameter] for parameter in memory.gathered_again(values)}
    for node in graph.nodes:
        if node.phase == "forward" and any(value in gathered for value in node.inputs):
            node.attrs["gathers_again"] = True
    cells = memory.recomputed(values)
    if cells:
        mark_cells(graph, cells)
        Recompute().run(graph)
    graph.attrs.pop("search_mode", None)
    graph.attrs["search_held"] = round(memory.peak(values))
