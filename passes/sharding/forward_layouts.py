"""Gives forward operators without a strategy layouts: sharded along the batch, or propagated from what is decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from mspc.ir.graph import Node, Value
from mspc.ir.layout import Layout
from mspc.ops.op import Op
from mspc.passes.sharding.later_sums import sum_later
from mspc.passes.sharding.layout_plans import State, restore, state_of
from mspc.passes.sharding.layout_search import Search
from mspc.passes.sharding.placement import batch_choice, is_master, stored, structural_layout
from mspc.passes.sharding.traffic import work_of
from mspc.passes.sharding.unset_layouts import AS_GOOD, UnsetLayouts, bytes_of


def shard_batch(search: Search, forward: list[Node]) -> None:
    """Shard every operator along the batch, or as its neighbours are where that costs less; casts of parameters follow
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


def shard_asked(search: Search, forward: list[Node]) -> None:
    """Shard the operators of data parallel cells along the batch; those that follow their neighbours are left to
    that."""
    for node in forward:
        rule, op = search.rules[node], cast(Op, node.op)
        if node.attrs.get("strategy_gen_mode") != "data_parallel" or rule is None or node.in_layouts is not None:
            continue
        if not (op.follows_neighbours or op.operandwise or is_master(stored(node))):
            search.take(node, batch_choice(node, rule, search.ranks), "batch")


def spread(search: Search, forward: list[Node]) -> None:
    """Sharding propagation: from what is decided until nothing is left to reach, downstream before upstream or upstream
    before downstream, whichever sends fewer bytes; where that is hardly a difference, whichever computes less on a
    rank, as norms and residuals do that are sharded along the sequence."""
    configured = any(node.in_layouts is not None and search.rules[node] is not None for node in forward)
    begin = [state_of(node) for node in forward]
    found: list[tuple[float, float, list[State], list[Any]]] = []
    for direction in (_downstream, _upstream) if configured else (_downstream,):
        _spread_from(search, forward, direction)
        sources = [node.attrs.get("strategy_from") for node in forward]
        work = sum(work_of(node, search.rules[node]) for node in forward)
        found.append((round(bytes_of(search, forward), 1), work, [state_of(node) for node in forward], sources))
        restore(forward, begin)
    most = min(nbytes for nbytes, *_ in found) * AS_GOOD
    _, _, states, sources = min((each for each in found if each[0] <= most), key=lambda each: (each[1], each[0]))
    restore(forward, states)
    for node, source in zip(forward, sources, strict=True):
        if source is not None:
            node.attrs["strategy_from"] = source
    sum_later(search, forward)


def _spread_from(search: Search, forward: list[Node], first: Way) -> None:
    known: set[Value] = {node for node in forward if node.in_layouts is not None}
    if not known:
        data = [p for p in search.graph.parameters if p.kind == "input"]
        if all(isinstance(p.layout, Layout) and p.layout.is_replicated for p in data):
            _share_out(search, forward, set(data))
        known = {*data, *(node for node in forward if node.in_layouts is not None)}
    directions = (first, _upstream if first is _downstream else _downstream)
    changed = True
    while changed:
        changed = False
        for direction in directions:
            changed |= direction(search, forward, known)
        if not changed:
            left = [node for node in forward if search.rules[node] is not None and node.in_layouts is None]
            if left:
                search.choose(left[0], "the data")
                known.add(left[0])
                changed = True
    search.structure(forward)


Way = Callable[[Search, list[Node], set[Value]], bool]


def _downstream(search: Search, forward: list[Node], known: set[Value]) -> bool:
    """Decide on operators that read what is known, in run order; True where there were any."""
    changed = False
    for node in forward:
        if search.rules[node] is None:
            if structural_layout(node, search.ranks) and any(v in known for v in node.inputs):
                known.add(node)
        elif node.in_layouts is None and any(v in known for v in node.inputs):
            search.choose(node, _origin(node, node.inputs))
            known.add(node)
            changed = True
    return changed


def _upstream(search: Search, forward: list[Node], known: set[Value]) -> bool:
    """Decide on operators that known ones read, last first; True where there were any."""
    changed = False
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
    return changed


def _share_out(search: Search, forward: list[Node], data: set[Value]) -> None:
    """Shard the operators that read the data along the batch, where the script gives no strategy and every rank has the
    global batch: otherwise all ranks would compute the same."""
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
