"""This module finds the loops of a `.mindir` file: MindSpore writes a loop as graphs that call each other as their last
step.

Of `while i < n: x = f(x)` there are three: the head computes `i < n` and chooses between the body, whose last step
calls the head with the next values, and what comes behind the loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from mspc.checkpoint.mindir_graph import CALL, MindirGraph
from mspc.checkpoint.mindir_operators import ORDER
from mspc.ir.late_dataclass import dataclass

Graphs = Mapping[str, MindirGraph]


@dataclass(frozen=True)
class TailCall:
    """A call that is the last step of a graph, of one of two where it chooses. inputs: as the caller names them."""

    graph: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class MindirLoop:
    """A loop around a graph, its head.

    members: graphs of a turn, the head too. exits: graphs that come behind, in order. stands: of each of them and of
    the members, for each input the number of the head's input whose value of this turn it has, None where it has none.
    fixed: numbers of the head's inputs that no turn changes. again: whether any turn calls the head.
    """

    head: str
    members: frozenset[str]
    exits: tuple[str, ...]
    stands: Mapping[str, tuple[int | None, ...]]
    fixed: frozenset[int]
    again: bool


def last_call(graph: MindirGraph) -> str:
    """The name of the node that calls a graph as the last step; "" where a graph ends otherwise."""
    nodes = {node.name: node for node in graph.nodes}
    name = graph.outputs[0] if len(graph.outputs) == 1 else ""
    seen = set[str]()
    while name in nodes and name not in seen:
        seen.add(name)
        node = nodes[name]
        if node.operator == CALL:
            return name
        if node.operator not in ORDER or not node.inputs:
            return ""
        name = node.inputs[0]
    return ""


def tails_of(graph: MindirGraph, graphs: Graphs) -> tuple[TailCall, ...]:
    """What a graph calls as its last step: one, two where it chooses, nothing where it ends otherwise."""
    name = last_call(graph)
    if not name:
        return ()
    nodes = {node.name: node for node in graph.nodes}

    def called(callee: str, behind: tuple[str, ...], depth: int = 0) -> tuple[TailCall, ...]:
        if callee in graphs and callee not in nodes:
            return (TailCall(callee, behind),)
        node = nodes.get(callee)
        if node is None or depth > len(nodes):
            return ()
        if node.operator == "Partial" and node.inputs:
            return called(node.inputs[0], (*node.inputs[1:], *behind), depth + 1)
        if node.operator == "Switch" and len(node.inputs) == 3:
            return tuple(tail for each in node.inputs[1:] for tail in called(each, behind, depth + 1))
        return ()

    callee, *behind = nodes[name].inputs
    return called(callee, tuple(behind))


def loop_of(head: str, graphs: Graphs, outside: frozenset[str]) -> MindirLoop:
    """The loop around a head. outside: heads of the loops around it, which are none of its turn."""
    tails = {name: tails_of(graph, graphs) for name, graph in graphs.items()}
    ahead = _reached(head, {name: {t.graph for t in tails[name]} for name in graphs}, outside)
    callers: dict[str, set[str]] = {name: set() for name in graphs}
    for name in ahead:
        for tail in tails[name]:
            callers[tail.graph].add(name)
    members = ahead & _reached(head, callers, outside)
    exits = tuple(dict.fromkeys(
        tail.graph for name in graphs if name in members for tail in tails[name] if tail.graph not in members
    ))  # fmt: skip
    stands: dict[str, tuple[int | None, ...]] = {head: tuple(range(len(graphs[head].inputs)))}
    edges = [(name, tail) for name in graphs if name in members for tail in tails[name] if tail.graph != head]
    changed = True
    while changed:
        changed = False
        for name, tail in edges:
            if name not in stands:
                continue
            given = _given(graphs[name], stands[name], tail)
            known = stands.get(tail.graph)
            met = given if known is None else tuple(a if a == b else None for a, b in zip(known, given, strict=False))
            if met != known:
                stands[tail.graph], changed = met, True
    back = [_given(graphs[name], stands[name], t) for name in members for t in tails[name] if t.graph == head]
    numbers = range(len(graphs[head].inputs))
    fixed = frozenset(i for i in numbers if all(len(given) > i and given[i] == i for given in back))
    return MindirLoop(head, members, exits, stands, fixed, bool(back))


def _given(graph: MindirGraph, stands: tuple[int | None, ...], tail: TailCall) -> tuple[int | None, ...]:
    own = dict(zip(graph.inputs, stands, strict=False))
    return tuple(own.get(name) for name in tail.inputs)


def _reached(first: str, edges: Mapping[str, set[str]], without: frozenset[str]) -> frozenset[str]:
    found = {first}
    waiting = [first]
    while waiting:
        new = edges[waiting.pop()] - found - without
        found |= new
        waiting += sorted(new)
    return frozenset(found)
