"""What cells and operators ask to have kept on the host is noted on forward nodes; here it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from mspc.ir.graph import OFFLOAD, Graph, Node

AUTO = 0


def _said(node: Node) -> tuple[str, str]:
    """(the cell that asks, "" for an operator by itself; how far ahead). A fused node has the marks of its parts, of
    which the last makes its result."""
    mark = node.attrs.get(OFFLOAD, "")
    while isinstance(mark, tuple):
        mark = cast("tuple[Any, ...]", mark)[-1]
    cell, _, ahead = str(mark).rpartition(", ")
    return cell, ahead


def cell_of(node: Node) -> str:
    """The cell that has asked; "" where none has."""
    return _said(node)[0]


def marked_cells(graph: Graph) -> dict[str, str]:
    """The cells that ask, with how far ahead."""
    return {cell: ahead for cell, ahead in map(_said, graph.nodes) if cell}


def distance(node: Node, cells: Mapping[str, str]) -> int | None:
    """How many operators ahead of its reader the result of a forward node is fetched, as it says or its cell: what
    passes have made of others may have no mark. `AUTO` where that is left to the compiler; None where it stays."""
    if node.phase != "forward":
        return None
    ahead, scope = _said(node)[1], node.scope
    while not ahead and scope:
        ahead, scope = cells.get(scope, ""), scope.rpartition("/")[0]
    if not ahead:
        return None
    return int(ahead) if ahead.isdigit() else AUTO
