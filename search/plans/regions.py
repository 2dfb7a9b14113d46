"""The search weighs networks without loops and branches that only the run decides; equal layers that are one graph are
decided on together."""

from __future__ import annotations

from mspc.ir.graph import Graph
from mspc.ir.text.families import are_cells
from mspc.ops.control.regions import For, Scan, runs_layers
from mspc.passes.lib.choices import rule_of


def layers_alike(graph: Graph) -> int:
    """The number of layers that are decided on together."""
    loops = [node.op for node in graph.nodes if node.phase == "forward" and runs_layers(node)]
    return sum(op.turns for op in loops if isinstance(op, For | Scan))


def are_weighed(graph: Graph) -> bool:
    """Whether all that runs graphs are loops over layers, of which every operator has a name for all turns."""
    for node in graph.nodes:
        if node.regions and not runs_layers(node):
            return False
        for inner in node.regions[-1].nodes if node.regions else ():
            is_named = are_cells(inner.scope.removeprefix(node.scope))
            if inner.regions or (inner.phase == "forward" and rule_of(inner) is not None and not is_named):
                return False
    return True


def refuse_regions(graph: Graph) -> None:
    """Raises MspcError where a node runs graphs that are no layers, at its line."""
    for node in graph.nodes:
        if node.regions and not runs_layers(node):
            raise node.error(
                f"{node.label}: the search does not weigh what the run decides, how often a loop turns or which branch "
                "is taken",
                notes=["compile it with strategies, or let propagation choose them: mspc compile --ranks N"],
            )
