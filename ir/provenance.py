"""Provenance of nodes: the pass that made each, and the operator that it rewrote, as in `simplify_products/Transpose`.

Passes set at most the second part ("/Transpose"); the pass manager adds the first. The text of a graph does not contain
it: `program.json` has it beside the digests of the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from mspc.ir.graph import Graph

FRONTEND = "frontend"
"""Provenance of nodes that are traced from a script or read from a file."""


def record_provenance(program: Graph, source: str) -> None:
    """Set the provenance of the new nodes of a graph and its regions. source: the pass that made them, or FRONTEND."""
    for node in program.all_nodes():
        if not node.provenance or node.provenance[0] == "/":
            node.provenance = source + node.provenance


def provenance_texts(program: Graph) -> dict[str, str]:
    """Return the provenance of all nodes by the name of their graph, in the form `frontend*3 grad/Gradient*2`."""
    runs = {graph.name: groupby(node.provenance for node in graph.nodes) for graph in program.graphs()}
    return {name: " ".join(f"{source}*{len([*equal])}" for source, equal in found) for name, found in runs.items()}


def restore_provenance(program: Graph, texts: Mapping[str, object]) -> None:
    """Set the provenance of all nodes from the result of `provenance_texts`. Graphs for which it is of another form, or
    of another number of nodes, have none."""
    for graph in program.graphs():
        sources: list[str] = []
        for part in str(texts.get(graph.name, "")).split():
            source, _, count = part.rpartition("*")
            sources += [source] * min(int(count[:9]) if count.isdecimal() else 0, len(graph.nodes) + 1)
        if len(sources) == len(graph.nodes):
            for node, source in zip(graph.nodes, sources, strict=True):
                node.provenance = source
