"""What cells and operators ask to have kept on the host is noted on forward nodes; here it is read."""

from __future__ import annotations

from collections.abc import Mapping

from mspc.ir.graph import OFFLOAD, Graph, Node

AUTO = 0


def distance(mark: object) -> int:
    """How many operators ahead of its reader a value is fetched; `AUTO` where that is left to the compiler."""
    text = mark.rpartition(", ")[2] if isinstance(mark, str) else str(mark)
    return int(text) if text.isdigit() else AUTO


def cell_of(mark: object) -> str:
    """The cell that has asked; "" for an operator by itself."""
    return mark.rpartition(", ")[0] if isinstance(mark, str) else ""


def marked_cells(graph: Graph) -> dict[str, object]:
    """The cells that ask, with a mark of theirs."""
    marks = (node.attrs.get(OFFLOAD) for node in graph.nodes)
    return {cell: mark for mark in marks if (cell := cell_of(mark))}


def mark_of(node: Node, cells: Mapping[str, object]) -> object:
    """The mark of a forward node, or that of its cell: what passes have made of others has none of its own."""
    if node.phase != "forward":
        return None
    scope = node.scope if cells and OFFLOAD not in node.attrs else ""
    while scope:
        if scope in cells:
            return cells[scope]
        scope = scope.rpartition("/")[0]
    return node.attrs.get(OFFLOAD)
