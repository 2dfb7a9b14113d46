"""Cells that a plan may recompute for gradients or store in host memory, and their marks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby

from mspc.ir.graph import OFFLOAD, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass

LARGE = 1 / 8
"""From this share of all values saved for gradients on, the cells inside of a cell are looked at one by one."""
INNER = 1 / 2
"""The share of the saving of a cell that its own cells must save to be taken instead; and the share of all saved values
that a cell may have at most, as the peak would not be lower."""


@dataclass(frozen=True, eq=False)
class RecomputableCell:
    """A cell that may be recomputed. inside: its operators with results that do not leave it; others are saved. again:
    those of them that gradients need."""

    cell: str
    inside: frozenset[Node]
    again: tuple[Node, ...]


def blocks_of(
    graph: Graph, users: Mapping[Value, Sequence[tuple[Node, int]]], held: Mapping[Node, float],
    source: Callable[[Value], Node | None],
) -> list[RecomputableCell]:  # fmt: skip
    """Return the cells of a network that are neither most of it nor too small to matter.

    users: the readers of each value. held: bytes of the results that gradients read, by operator. source: the operator
    that makes a value, None if it is a parameter or an input.
    """
    weight: dict[str, float] = {}
    for node, nbytes in held.items():
        parts = node.scope.split("/")
        for depth in range(1, len(parts) + 1):
            cell = "/".join(parts[:depth])
            weight[cell] = weight.get(cell, 0.0) + nbytes
    total = sum(held.values())
    inner: dict[str, list[str]] = {}
    for cell in weight:
        inner.setdefault(cell.rpartition("/")[0], []).append(cell)
    members: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.phase == "forward":
            members.setdefault(node.scope, []).append(node)

    def of(cell: str) -> RecomputableCell | None:
        return _block(members, set(graph.results), users, held, source, cell) if weight[cell] <= INNER * total else None

    def saved(block: RecomputableCell | None) -> float:
        return 0.0 if block is None else sum(held.get(node, 0.0) for node in block.inside)

    found: list[RecomputableCell] = []
    stack = list(reversed(inner.get("", [])))
    while stack:
        cell = stack.pop()
        below, block = inner.get(cell, []), of(cell)
        small = weight[cell] <= LARGE * total
        if block is None and small:
            continue
        if small or (block is not None and sum(saved(of(each)) for each in below) < INNER * saved(block)):
            assert block is not None
            found.append(block)
        else:
            stack += reversed(below)
    return found


def _block(
    nodes: Mapping[str, Sequence[Node]], results: Collection[Value],
    users: Mapping[Value, Sequence[tuple[Node, int]]], held: Mapping[Node, float],
    source: Callable[[Value], Node | None], cell: str,
) -> RecomputableCell | None:  # fmt: skip
    """Return a cell as a block, or None if computing it again would save nothing, or the script has decided on it."""
    members = [node for scope, own in nodes.items() if within(scope, cell) for node in own]
    if any("recompute" in node.attrs or node.op.has_side_effect for node in members):
        return None
    own = set(members)
    leaving = {
        source(node)
        for node in members
        if node in results or any(user.phase == "forward" and user not in own for user, _ in users.get(node, ()))
    }
    inside = frozenset(node for node in members if node not in leaving)
    needed = {node for node in inside if node in held}
    for node in reversed(members):
        if node in needed:
            needed.update(made for value in node.inputs if (made := source(value)) is not None and made in inside)
    return RecomputableCell(cell, inside, tuple(node for node in members if node in needed)) if needed else None


_PLANNED = ", planned "


def within(scope: str, cell: str) -> bool:
    """Return whether a scope is a cell's, or one of a cell inside of it."""
    return scope == cell or scope.startswith(f"{cell}/")


def mark_cells(graph: Graph, cells: Collection[str]) -> list[str]:
    """Mark the forward operators of cells to be computed again, and return the cells without operators.

    Every run of a cell is marked by itself, so that a cell that is called twice is two blocks. Marks and exclusions of
    the script stay.
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
    """Return the cells that were marked by `mark_cells`, those of micro-batches, too."""
    return list(dict.fromkeys(cell for node in graph.all_nodes() if (cell := _planned(node))))


def _planned(node: Node) -> str:
    mark = node.attrs.get("recompute")
    cell, _, number = mark.partition(_PLANNED) if isinstance(mark, str) else ("", "", "")
    return cell if number else ""


AUTO = "Auto"


def mark_offloaded(graph: Graph, cells: Collection[str]) -> list[str]:
    """Mark the forward operators of cells whose saved values go to the host, and return the cells without operators.

    Marks of the script, and operators that are recomputed, stay.
    """
    forward = [node for node in graph.nodes if node.phase == "forward"]
    missing: list[str] = []
    for cell in cells:
        own = [node for node in forward if within(node.scope, cell)]
        for node in own:
            if not node.attrs.get("recompute"):
                node.attrs.setdefault(OFFLOAD, f"{cell}, {AUTO}")
        if not own:
            missing.append(cell)
    return missing


def states_of(graph: Graph) -> list[Parameter]:
    """Return the parameters that updates change beside trained ones, and which are of the shape of one: no counters."""
    trained = {p.shape for p in graph.parameters if p.trainable}
    changed = {node.inputs[i] for node in graph.nodes if node.phase == "update" for i in node.op.mutates}
    return [
        p for p in graph.parameters
        if p in changed and not p.trainable and p.shape in trained and p.tensor_type.size > 1
    ]  # fmt: skip


def mark_states(graph: Graph) -> int:
    """Let states of optimizers live on the host, each fetched when the compiler finds it best. How many there are."""
    found = states_of(graph)
    for state in found:
        state.attrs.setdefault(OFFLOAD, 0)
    return len(found)
