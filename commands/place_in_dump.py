"""Says where a node stands in the text of a rank's graph."""

from __future__ import annotations

import re
from pathlib import Path

from mspc.ir.graph import Graph, Node
from mspc.runtime.program import Program

_LINE = re.compile(
    r'^(?:subgraph @(?P<graph>"[^"\n]*"|[^\s("]+)\(|\s*(?P<node>%\d+)(?:\([^\n=]*\))? = [A-Za-z_]\w*\()', re.M
)
"""Where a graph begins, or a node."""


def place_in_dump(program: Program, rank: int, graph: Graph, node: Node) -> str:
    """`rank_0/19_execute_0000.ir:231, %14`, "" for a node that is none of this graph. graph: the one that the rank's
    file has, or one of the same nodes."""
    found = next((each for each in graph.graphs() if node in each.nodes), None)
    if found is None:
        return ""
    text, wanted = program.text(rank), found.nodes.index(node)
    inside, count = False, 0
    for match in _LINE.finditer(text):
        if match["graph"] is not None:
            inside, count = match["graph"].strip('"') == found.name, 0
        elif inside and count == wanted:
            line = text.count("\n", 0, match.start("node")) + 1
            return f"{Path(program.execute[rank])}:{line}, {match['node']}"
        else:
            count += 1
    return ""
