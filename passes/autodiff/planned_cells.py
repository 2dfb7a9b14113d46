"""Finds the cells that a plan recomputes for gradients, and marks their operators."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby

from mspc.ir.graph import Graph, Node

_PLANNED = ", planned "


def within(scope: str, cell: str) -> bool:
    """Whether a scope is a cell's, or one of a cell inside of it."""
    return scope == cell or scope.startswith(f"{cell}/")


def mark_cells(graph: Graph, cells: Collection[str]) -> list[str]:
    """Mark the forward operators of cells to be computed again, every run of them by itself, so that a cell that is
    called twice is two blocks. What the script has marked or excluded stays so.

    Returns:
        The cells that have no operator.
    """
    missing: list[str] = []
    for cell in cells:
        runs = groupby(graph.nodes, key=lambda node, cell=cell: node.phase == "forward" and within(node.scope, cell))
        blocks = [list(nodes) for inside, nodes in runs if inside]
        for number, block in enumerate(blocks):
            for node in block:
                node.attrs.setdefault("recompute", f"{cell}{_PLANNED}{number}")
        if not blocks:
            missing.append(cell)
    return missing


def planned_cells(graph: Graph) -> list[str]:
    """The cells that were marked by `mark_cells`."""
    return list(dict.fromkeys(cell for node in graph.nodes if (cell := _planned(node))))


def _planned(node: Node) -> str:
    mark = node.attrs.get("recompute")
    cell, _, number = mark.partition(_PLANNED) if isinstance(mark, str) else ("", "", "")
    return cell if number else ""
