"""This module finds how long values are needed, also through others that share their memory, and how many bytes are
alive at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mspc.ir.graph import Graph, Node, Value


def last_reads(graph: Graph, aliased: Callable[[Node], Iterable[int]]) -> dict[Value, int]:
    """For every value that is read or returned the position of the last node that reads its memory.

    aliased: the operands of a node whose memory its result shows, so that who reads the result reads them. What is
    returned is read behind all nodes.
    """
    last: dict[Value, int] = dict.fromkeys(graph.results, len(graph.nodes))
    for number in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[number]
        through = set(aliased(node))
        for index, value in enumerate(node.inputs):
            until = last.get(node, number) if index in through else number
            last[value] = max(last.get(value, 0), until)
    return last


def viewed_operands(node: Node) -> Iterable[int]:
    """The operands whose memory is the node's result, for `last_reads` where every other node makes its own."""
    return node.op.aliased_operands(len(node.inputs)) if node.op.is_view else ()


def results_over(graph: Graph) -> list[list[Node]]:
    """For every node those whose results nobody reads behind it, maybe itself. What is returned is never over."""
    last: dict[Value, int] = {}
    for number, node in enumerate(graph.nodes):
        last[node] = number
        last |= dict.fromkeys((value for value in node.inputs if isinstance(value, Node)), number)
    found: list[list[Node]] = [[] for _ in graph.nodes]
    returned = set(graph.results)
    for value, number in last.items():
        if isinstance(value, Node) and value not in returned:
            found[number].append(value)
    return found


def most_alive(
    order: Sequence[int], operands: Sequence[Sequence[int]], views: Sequence[bool], sizes: Sequence[int],
    results: Iterable[int],
) -> int:  # fmt: skip
    """Most bytes of nodes' results alive at once.

    Args:
        order: the nodes by number, as they run. operands: for every node those whose results it reads. views: whether
        a node's result is memory of its operands. sizes: bytes that its result takes. results: nodes whose results are
        needed behind all.
    """
    last = [-1] * len(order)
    for position in range(len(order) - 1, -1, -1):
        i = order[position]
        until = max(position, last[i]) if views[i] else position
        for k in operands[i]:
            if last[k] < until:
                last[k] = until
    for i in results:
        last[i] = len(order)
    dying = [0] * (len(order) + 1)
    alive = most = 0
    for position, i in enumerate(order):
        size = sizes[i]
        if size:
            alive += size
            dying[max(last[i], position)] += size
            most = max(most, alive)
        alive -= dying[position]
    return most
