"""New nodes between those of a graph, by the places at which these stand."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import Type
from mspc.ops.op import Op

LEAVE, FETCH_AT_ONCE, WAIT, FETCH, READ = range(5)
"""The order of what is put at one place: copies of what the node before has made, copies that come back while others
are waited for, who waits for earlier ones, copies that come back into their memory, and what is read of these."""


class Insertions:
    """Nodes that are made now and put into the graph by `apply`. count: how many there are."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ahead: list[list[tuple[int, Node]]] = [[] for _ in range(len(graph.nodes) + 1)]
        self.count = 0

    def put(
        self, place: int, op: Op, inputs: Sequence[Value], type: Type, like: Node, phase: str, stream: str = "",
        order: int = LEAVE,
    ) -> Node:  # fmt: skip
        """A node ahead of the one at `place`, at the lines of `like`."""
        made = Node(op, inputs, type, scope=like.scope, frames=like.frames, phase=phase)
        if stream:
            made.attrs["stream"] = stream
        self.add(place, made, order)
        return made

    def add(self, place: int, node: Node, order: int = READ) -> None:
        """The same for a node that is there already."""
        self._ahead[place].append((order, node))
        self.count += 1

    def apply(self) -> None:
        """Put them into the graph: at one place by their order, and else as they came."""
        nodes: list[Node] = []
        for place, ahead in enumerate(self._ahead):
            nodes += [node for _, node in sorted(ahead, key=lambda item: item[0])]
            nodes += self._graph.nodes[place : place + 1]
        self._graph.nodes = nodes
