"""Tells the kinds of a program that the table has no row for: all at once, with how often and where each is first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mspc.ir.diagnostics import MspcError
from mspc.ir.nearest import did_you_mean
from mspc.readers.pytorch.control import CONTROL
from mspc.readers.pytorch.kinds.table import kind_of, kinds
from mspc.readers.pytorch.program import ExportedGraph, ExportedNode, ExportedProgram

_MOST = 20
"""Kinds that are told each by a line."""


def check_kinds(program: ExportedProgram) -> None:
    """Raises MspcError where there are unknown kinds."""
    first: dict[str, ExportedNode] = {}
    counts: Counter[str] = Counter()
    for node in all_nodes(program.graph):
        if node.target not in CONTROL and kind_of(node.target) is None:
            first.setdefault(node.target, node)
            counts[node.target] += 1
    if not counts:
        return
    lines = [_told(node, counts[name]) for name, node in list(first.items())[:_MOST]]
    if len(first) > _MOST:
        lines.append(f"and {len(first) - _MOST} more kinds")
    one = next(iter(first))
    if len(first) == 1:
        lines += did_you_mean(one, [name for name in kinds() if name.split(".")[0] == one.split(".")[0]])
    what = "an operator that is" if len(first) == 1 else f"{len(first)} kinds of operators that are"
    location = next((node.user_line for node in first.values() if node.user_line is not None), None)
    raise MspcError(f"{program.name} has {what} not known: {', '.join(first)}", location, lines)


def all_nodes(graph: ExportedGraph) -> Iterator[ExportedNode]:
    """The nodes of a graph and of those that its nodes run."""
    for node in graph.nodes:
        yield node
        for _, argument in node.arguments:
            if isinstance(argument, ExportedGraph):
                yield from all_nodes(argument)


def _told(node: ExportedNode, count: int) -> str:
    line = node.user_line
    where = f", first at {line}: {line.text.strip()}" if line is not None else ""
    return f"{node.target}: {count} time{'s' if count > 1 else ''}{where}{f' ({node.scope})' if node.scope else ''}"
