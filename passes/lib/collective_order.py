"""Settles the order in which collectives go out on the graph of all ranks, so that it is one order for all of them.

Input:  `%3 = MatMul(...)`, `%4 = MatMul(...)`, `%5 = AllReduce(%3)` before the first reader of `%5`
Output: `%3 = MatMul(...)`, `%4 = AllReduce(%3)`, `%5 = MatMul(...)`

A collective is placed after the last of its operands, but no more than two collectives before its former place: its
result stays alive until it is used. A gradient's reduction may move farther, as its result is no larger than its
operand; but it lets the next other collective go first, since only the updates wait for it. Parameters are gathered
before few collectives too, and of few reductions: all ranks run collectives in this order, and gradients are partial
until they are reduced. The `TupleGetItem`s of a bucket stay with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ops.collective.base import Collective
from mspc.ops.control.structural import TupleGetItem

AHEAD = 2
"""How many other collectives one is put before."""
AHEAD_OF_SUMS = 8
"""The number of reductions of gradients before which the gathering of a parameter may be put: their operands stay
alive."""

Key = tuple[int, int, int]
"""The place of a node: after the operator of this number; there before the collectives, among them, after them, or
after these; its number."""


def order_collectives(graph: Graph) -> bool:
    """Move the collectives. Returns whether any changed its place; other nodes keep their order."""
    nodes = graph.nodes
    place: dict[Value, int] = {node: i for i, node in enumerate(nodes)}
    collectives = [i for i, node in enumerate(nodes) if isinstance(node.op, Collective)]
    if not collectives:
        return False
    behind: dict[Value, int] = {}
    line: list[int] = []
    for i in collectives:
        behind[nodes[i]] = _ready_place(nodes[i], i, place, behind)
        if not sums_gradients(nodes[i]):
            if len(line) >= AHEAD:
                behind[nodes[i]] = max(behind[nodes[i]], line[-AHEAD])
            line.append(behind[nodes[i]])
    keys: dict[int, Key] = {i: (behind[nodes[i]], 1, i) for i in collectives}
    unchanged = _constant_parameters(graph)
    gathers = {i for i in collectives if nodes[i].inputs and parameter_of(nodes[i].inputs[0]) in unchanged}
    others = sorted(keys[i] for i in collectives if i not in gathers and not sums_gradients(nodes[i]))
    items: dict[Value, Node] = {  # single gradients that are taken out of a reduction of several
        node: bucket for node in nodes
        if isinstance(node.op, TupleGetItem) and isinstance(bucket := node.inputs[0], Node)
        and isinstance(bucket.op, Collective) and sums_gradients(bucket)
    }  # fmt: skip
    first_use = _first_uses(nodes, place, behind, items)
    sums = sorted(keys[i] for i in collectives if sums_gradients(nodes[i]))
    for i in collectives:
        if i in gathers:
            early = max(_ahead_of(others, AHEAD, keys[i]), _ahead_of(sums, AHEAD_OF_SUMS, keys[i]))
            converted = place.get(nodes[i].inputs[0], -1)
            keys[i] = (early, 0, i) if early > converted else (converted, int(converted >= 0), i)
        elif sums_gradients(nodes[i]):
            later = others[bisect_left(others, keys[i]) :][:1]
            if later and later[0][0] < first_use.get(nodes[i], len(nodes)):
                keys[i] = (later[0][0], 2, i)
    keys.update((place[item], (keys[place[bucket]][0], 3, place[item])) for item, bucket in items.items())
    order = sorted(range(len(nodes)), key=lambda i: keys.get(i, (i, 0, i)))
    graph.nodes = [nodes[i] for i in order]
    return any(i != k for i, k in enumerate(order))


def _ahead_of(line: Sequence[Key], count: int, key: Key) -> int:
    """Return the number of the operator after which only `count` of some collectives come before a key."""
    before = bisect_left(line, key)
    return line[before - count][0] if before >= count else -1


def _ready_place(node: Node, index: int, place: Mapping[Value, int], behind: Mapping[Value, int]) -> int:
    """Return the number of the operator after which all operands are there, or the node's own place."""
    if any(parameter_of(value) is not None for value in node.inputs):
        return index
    found = [behind.get(value, place.get(value, -1)) for value in node.inputs]
    return max(found, default=-1) if max(found, default=-1) >= 0 else index


def parameter_of(value: Value) -> Value | None:
    """Return the parameter that a value is, converted or not; None of any other one."""
    while isinstance(value, Node) and len(value.inputs) == 1 and not value.regions and not value.op.is_collective:
        value = value.inputs[0]
    return value if isinstance(value, Parameter) else None


def sums_gradients(node: Node) -> bool:
    """Return whether a collective sums gradients of parameters."""
    return "mirror_user_id" in node.attrs


def _constant_parameters(graph: Graph) -> set[Value]:
    """Return the parameters that nothing changes before their last reader."""
    changed: set[Value] = set()
    late: set[Value] = set()
    for node in graph.nodes:
        mutates: set[int] = set(node.op.mutates)
        late.update(value for i, value in enumerate(node.inputs) if value in changed and i not in mutates)
        changed.update(node.inputs[i] for i in mutates)
    return {p for p in graph.parameters if p.kind == "parameter" and p not in late}


def _first_uses(
    nodes: list[Node], place: Mapping[Value, int], behind: Mapping[Value, int], items: Mapping[Value, Node]
) -> dict[Value, int]:
    """Return for every collective the number of the operator that first needs its result."""
    found: dict[Value, int] = {}
    for node in nodes:
        if node in items:
            continue
        for value in node.inputs:
            made = items.get(value, value)
            if made in behind:
                found[made] = min(found.get(made, len(nodes)), behind.get(node, place[node]))
    return found
