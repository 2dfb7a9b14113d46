"""Brings nodes behind what they read."""

from __future__ import annotations

from mspc.ir.graph import Graph, Node, Value


def in_order(graph: Graph) -> None:
    """Sort a graph's nodes so that each comes behind what it reads, and else stays where it is."""
    own = set(graph.nodes)
    done: set[Value] = set()
    waiting: dict[Value, list[Node]] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        stack = [node]
        while stack:
            each = stack.pop()
            missing = next((value for value in each.inputs if value in own and value not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(each)
                continue
            nodes.append(each)
            done.add(each)
            stack.extend(reversed(waiting.pop(each, ())))
    graph.nodes = nodes
