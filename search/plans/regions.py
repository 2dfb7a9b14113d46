"""The search weighs networks without loops and branches that only the run decides."""

from __future__ import annotations

from mspc.ir.graph import Graph


def refuse_regions(graph: Graph) -> None:
    """Raises MspcError where a node runs graphs, at its line."""
    for node in graph.nodes:
        if node.regions:
            raise node.error(
                f"{node.label}: the search does not weigh what the run decides, how often a loop turns or which branch "
                "is taken",
                notes=["compile it with strategies, or let propagation choose them: mspc compile --ranks N"],
            )
