"""Layouts of forward operators without a strategy: cut along the batch, or spread from what is decided."""

from __future__ import annotations

from collections.abc import Iterable

from mspc.ir.graph import Node, Value
from mspc.passes.sharding.layout_search import Search
from mspc.passes.sharding.placement import is_master, stored, structural_layout
from mspc.passes.sharding.unset_layouts import UnsetLayouts


def cut_batch(search: Search, forward: list[Node]) -> None:
    """Cut every operator along the batch, or as its neighbours are where that costs less; casts of parameters follow
    their readers."""
    unset: list[Node] = []
    casts: list[Node] = []
    for node in forward:
        if search.rules[node] is None:
            structural_layout(node, search.ranks)
        elif node.in_layouts is None:
            (casts if is_master(stored(node)) else unset).append(node)
    UnsetLayouts(search, unset).place()
    for node in reversed(casts):
        search.choose(node, "its neighbours")
    search.structure(forward)


def spread(search: Search, forward: list[Node]) -> None:
    """Sharding propagation: downstream from what is decided, then upstream, until nothing is left to reach."""
    reached = {node for node in forward if node.in_layouts is not None}
    if not reached:
        reached = {p for p in search.graph.parameters if p.kind == "input"}  # type: ignore[assignment]  # values too
    known: set[Value] = set(reached)
    changed = True
    while changed:
        changed = False
        for node in forward:
            if search.rules[node] is None:
                if structural_layout(node, search.ranks) and any(v in known for v in node.inputs):
                    known.add(node)
            elif node.in_layouts is None and any(v in known for v in node.inputs):
                search.choose(node, _origin(node, node.inputs))
                known.add(node)
                changed = True
        for node in reversed(forward):
            users = [user for user, _ in search.traffic.users.get(node, ()) if user in known]
            if node in known or not users:
                continue
            if search.rules[node] is None:
                known.add(node)
                changed = True
            elif node.in_layouts is None:
                search.choose(node, _origin(node, users), upstream=True)
                known.add(node)
                changed = True
        if not changed:
            left = [node for node in forward if search.rules[node] is not None and node.in_layouts is None]
            if left:
                search.choose(left[0], "the data")
                known.add(left[0])
                changed = True
    search.structure(forward)


def _origin(node: Node, around: Iterable[Value]) -> str:
    """In words, from which decided neighbour a sharding came."""
    for value in around:
        if isinstance(value, Node) and value.in_layouts is not None:
            return value.label
    return "the data"
