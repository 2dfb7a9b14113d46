"""How long values of a graph wait in memory, and how many bytes wait at once."""

from __future__ import annotations

from typing import cast

from mspc.analysis.aliasing import aliased_operands
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import TensorType
from mspc.ops.control.structural import TupleGetItem


class Alive:
    """How long the memory of every value is read. root: what a view shows. made, last: positions of the node that makes
    a value and of the last one that reads it, by root. readers: nodes that read it or a view of it, by root."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.position = {node: i for i, node in enumerate(graph.nodes)}
        self.root: dict[Value, Value] = {}
        self.made: dict[Value, int] = {}
        self.readers: dict[Value, list[Node]] = {}
        for i, node in enumerate(graph.nodes):
            part = isinstance(node.op, TupleGetItem)
            shown = aliased_operands(node) if not part else ()
            root = self.of(node.inputs[shown[0]]) if len(shown) == 1 and node.op.is_view else node
            self.root[node] = root
            if root is node:
                self.made[node] = self.position[cast(Node, node.inputs[0])] if is_part(node) else i
            for value in node.inputs:
                self.readers.setdefault(self.of(value), []).append(node)
        end = len(graph.nodes)
        self.last = {root: max(self.position[node] for node in nodes) for root, nodes in self.readers.items()}
        self.returned = {self.of(value) for value in graph.results}
        self.last.update(dict.fromkeys(self.returned, end))

    def of(self, value: Value) -> Value:
        """The value whose memory this one shows."""
        return self.root.get(value, value)

    def nbytes(self, value: Value) -> int:
        """Bytes of the memory that a step takes for a value."""
        if not isinstance(value, Node) or self.of(value) is not value or not isinstance(value.type, TensorType):
            return 0
        return value.type.nbytes

    def peak(self) -> tuple[int, int]:
        """The first position at which most bytes are alive, and these bytes."""
        change = [0] * (len(self.graph.nodes) + 2)
        for value, start in self.made.items():
            if value in self.last:
                nbytes = self.nbytes(value)
                change[start] += nbytes
                change[self.last[value] + 1] -= nbytes
        alive = most = place = 0
        for i, more in enumerate(change):
            alive += more
            if alive > most:
                most, place = alive, i
        return place, most


def is_part(node: Node) -> bool:
    """Whether a node is one result of several of a fused kernel."""
    return isinstance(node.op, TupleGetItem) and isinstance(node.inputs[0], Node)
