"""Messages about the path through a node that runs graphs, for every device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mspc.ir.diagnostics import ExecutionError
from mspc.ir.graph import Node
from mspc.ops.control.regions import If, While


def too_long(limit: float, turns: int, has_condition: bool) -> ExecutionError:
    """Return the error of a loop that has run for more than `limit` seconds."""
    goes_on = "its condition still holds" if has_condition else "more turns are to come"
    return ExecutionError(
        f"it has run for more than {limit:g} s, {turns} turn{'s' * (turns != 1)} so far, and {goes_on}",
        notes=["mspc run --timeout SECONDS lets it run longer; without it a loop may take any time"],
    )


def went(node: Node, way: int) -> str:
    """Return the text about a rank's path: the condition `way` of a branch, or `way` iterations of a loop."""
    if isinstance(node.op, If):
        return f"has {'true' if way else 'false'} as the condition of {node.label}"
    turns = way
    counted = f"{turns} turn{'s' * (turns != 1)}"
    return f"has left {node.label} after {counted}" if isinstance(node.op, While) else f"has {counted} of {node.label}"


def check_lengths(label: str, turns: int, scanned: Iterable[Any]) -> None:
    """Raise ExecutionError if one of the arrays or stacks that a loop scans does not have an entry for every
    iteration."""
    for entries in scanned:
        if len(entries) != turns:
            raise ExecutionError(f"{label} has {turns} turns and scans a stack of {len(entries)} entries")
