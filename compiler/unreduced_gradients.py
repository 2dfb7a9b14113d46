"""Finds the gradients that no collective of the script reduces, in stand-alone and hybrid mode.

These modes run the script's own collectives as written. Every rank feeds rows of its own, so that what is computed
from them is the rank's own, until a collective makes it agree. A parameter that is updated by something of the rank's
own differs between ranks from the first step on.
"""

from __future__ import annotations

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.text.families import gradient_names
from mspc.ops.collective.base import Collective
from mspc.ops.control.regions import is_stack_of_parameters

LISTED = 8
"""Names of parameters that the warning spells out."""


def warning_of_own_gradients(graph: Graph, mode: str) -> str:
    """What to tell the user of a differentiated graph of a mode in which ranks exchange what the script says; "" where
    all gradients are reduced, and in stand-alone mode where the graph exchanges nothing: each rank is a job of its own
    then."""
    names = unreduced(graph) if decided_by_script(graph, mode) else []
    if not names:
        return ""
    listed = ", ".join(names[:LISTED]) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
    return (
        f"{mode} mode runs the script's own collectives only, and none of them reduces the gradients of "
        f"{listed}: they will differ between ranks; use parallel_mode='data_parallel', reduce the gradients with "
        "nn.DistributedGradReducer or ops.AllReduce() ahead of the update, or mark what is to differ with "
        "layerwise_parallel=True"
    )


def decided_by_script(graph: Graph, mode: str) -> bool:
    """Whether the script's own collectives decide how ranks compute together, so that no single device does the same:
    in hybrid mode, and in stand-alone mode if ranks meet in the graph."""
    nodes = (node for each in graph.graphs() for node in each.nodes)
    meets = any(isinstance(node.op, Collective) and node.op.communicates for node in nodes)
    return mode == "hybrid_parallel" or (mode == "stand_alone" and meets)


def unreduced(graph: Graph) -> list[str]:
    """Parameters, in the order of the graph, whose gradient is the rank's own where it updates them or is returned.
    Those with `layerwise_parallel` differ by intent."""
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
    """The values that depend on what this rank alone has, and went through no collective that makes them agree."""
    own: set[Value] = {p for p in graph.parameters if p.kind == "input" or _by_intent(p)}
    for node in graph.nodes:
        if not _agrees(node) and any(value in own for value in node.inputs):
            own.add(node)
    return own


def _agrees(node: Node) -> bool:
    """Whether ranks have the results of a node alike: of a collective, or of one that runs a graph with such a
    collective. Which of its results went through it is not followed, so that no reduction is missed."""
    agrees = isinstance(node.op, Collective) and node.op.agrees
    return agrees or any(_agrees(inner) for region in node.regions for inner in region.nodes)


def _by_intent(parameter: Parameter) -> bool:
    return bool(parameter.attrs.get("layerwise_parallel"))
