"""Layouts of forward operators without a strategy: cut along the batch, or spread from what is decided."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from mspc.ir.graph import Node, Value
from mspc.ir.layout import Layout
from mspc.ops.op import Op
from mspc.passes.sharding.layout_search import Search
from mspc.passes.sharding.placement import batch_choice, is_master, stored, structural_layout
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


def cut_asked(search: Search, forward: list[Node]) -> None:
    """Cut the operators of data parallel cells along the batch; those that follow their neighbours are left to that."""
    for node in forward:
        rule, op = search.rules[node], cast(Op, node.op)
        if node.attrs.get("strategy_gen_mode") != "data_parallel" or rule is None or node.in_layouts is not None:
            continue
        if not (op.follows_neighbours or op.operandwise or is_master(stored(node))):
            search.take(node, batch_choice(node, rule, search.ranks), "batch")


def spread(search: Search, forward: list[Node]) -> None:
    """Sharding propagation: downstream from what is decided, then upstream, until nothing is left to reach."""
    known: set[Value] = {node for node in forward if node.in_layouts is not None}
    if not known:
        data = [p for p in search.graph.parameters if p.kind == "input"]
        if all(isinstance(p.layout, Layout) and p.layout.is_replicated for p in data):
            _share_out(search, forward, set(data))
        known = {*data, *(node for node in forward if node.in_layouts is not None)}
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


def _share_out(search: Search, forward: list[Node], data: set[Value]) -> None:
    """Nobody asked for anything and every rank has all the data: the operators that read them take a part of the batch
    each, or all ranks would compute the same."""
    for node in forward:
        rule = search.rules[node]
        if rule is not None and rule.outputs[0] and any(v in data for v in node.inputs):
            search.take(node, batch_choice(node, rule, search.ranks), "the data")


def _origin(node: Node, around: Iterable[Value]) -> str:
    """In words, from which decided neighbour a sharding came."""
    for value in around:
        if isinstance(value, Node) and value.in_layouts is not None:
            return value.label
    return "the data"
