"""Finds gradients that no collective of the script reduces, in stand-alone and hybrid mode.

These modes run the script's own collectives as written. Every rank feeds its own rows, so values computed from them
differ between ranks until a collective makes them agree. A parameter updated by such a value differs between ranks from
the first step on.
"""

from __future__ import annotations

from mspc.ir.diagnostics import listed
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.text.families import gradient_names
from mspc.ops.collective.base import Collective
from mspc.ops.control.regions import is_stack_of_parameters

LISTED = 8
"""Number of parameter names that the warning lists."""


def warning_of_own_gradients(graph: Graph, mode: str) -> str:
    """Return the warning for a differentiated graph in a mode whose communication is written in the script. Return ""
    if all gradients are reduced, and in stand-alone mode if the graph has no communication: each rank is then a
    separate job."""
    names = unreduced(graph) if decided_by_script(graph, mode) else []
    if not names:
        return ""
    return (
        f"{mode} mode runs the script's own collectives only, and none of them reduces the gradients of "
        f"{listed(names, LISTED)}: they will differ between ranks; use parallel_mode='data_parallel', reduce the "
        "gradients with nn.DistributedGradReducer or ops.AllReduce() before the update, or mark parameters that may "
        "differ with layerwise_parallel=True"
    )


def decided_by_script(graph: Graph, mode: str) -> bool:
    """Return whether only the script's own collectives define how ranks compute together, so that no single device
    computes the same: in hybrid mode, and in stand-alone mode if the graph has collectives."""
    nodes = (node for each in graph.graphs() for node in each.nodes)
    meets = any(isinstance(node.op, Collective) and node.op.communicates for node in nodes)
    return mode == "hybrid_parallel" or (mode == "stand_alone" and meets)


def unreduced(graph: Graph) -> list[str]:
    """Return the names of parameters, in the order of the graph, that are updated from values of one rank only, or
    whose gradient of this kind is returned. Those with `layerwise_parallel` differ by intent."""
    own = own_values(graph)
    gradients = {name for node in graph.nodes for name in gradient_names(node)}
    updated: set[str] = set()
    found: set[str] = set()
    for node in graph.nodes:
        written = [node.inputs[i] for i in getattr(node.op, "mutates", ()) if i < len(node.inputs)]
        members = [each for value in written for each in (value.inputs if is_stack_of_parameters(value) else [value])]
        names = {value.name for value in members if isinstance(value, Parameter)} & gradients
        updated |= names
        if not _agrees(node) and any(value in own for value in node.inputs if value not in written):
            found |= names
    for value in graph.results:
        if isinstance(value, Node) and value in own:
            found |= set(gradient_names(value)) - updated
    return [p.name for p in graph.parameters if p.name in found and not _by_intent(p)]


def own_values(graph: Graph) -> set[Value]:
    """Return the values that depend on this rank's own data and did not pass through a collective that makes ranks
    agree."""
    own: set[Value] = {p for p in graph.parameters if p.kind == "input" or _by_intent(p)}
    for node in graph.nodes:
        if not _agrees(node) and any(value in own for value in node.inputs):
            own.add(node)
    return own


def _agrees(node: Node) -> bool:
    """Return whether a node's results are equal on all ranks: it is a collective, or runs a graph with such a
    collective. Results of a region are not tracked one by one, so the check never reports a reduced gradient as
    missing."""
    agrees = isinstance(node.op, Collective) and node.op.agrees
    return agrees or any(_agrees(inner) for region in node.regions for inner in region.nodes)


def _by_intent(parameter: Parameter) -> bool:
    return bool(parameter.attrs.get("layerwise_parallel"))
