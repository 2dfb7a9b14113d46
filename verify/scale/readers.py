"""Finds who reads a value: across calls and loops, and past nodes that say nothing of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from mspc.ir.graph import Graph, Node, Value
from mspc.ops.control.loops import MakeStack
from mspc.ops.control.structural import TupleGetItem


class Readers:
    """The readers of all values of a program."""

    def __init__(self, graph: Graph) -> None:
        self._of: dict[Value, list[Value]] = {}
        for each in graph.graphs():
            for node in each.nodes:
                if node.regions:
                    self._regions(node)
                else:
                    for value in node.inputs:
                        self._of.setdefault(value, []).append(node)
        for each in graph.graphs():
            for node in each.nodes:
                for region in node.regions:
                    self._results(node, region)

    def _regions(self, node: Node) -> None:
        op: Any = node.op
        types = [value.type for value in node.inputs]
        for number, region in enumerate(node.regions):
            for value, places in zip(node.inputs, op.places(number, types), strict=True):
                inside = [region.parameters[place] for place in places if place < len(region.parameters)]
                self._of.setdefault(value, []).extend(inside)

    def _results(self, node: Node, region: Graph) -> None:
        readers = self._of.get(node, [])
        items = [n for n in readers if isinstance(n, Node) and isinstance(n.op, TupleGetItem)]
        for place, value in enumerate(region.results):
            found = [n for n in readers if n not in items or (isinstance(n, Node) and n.op.index == place)]  # type: ignore[attr-defined]
            self._of.setdefault(value, []).extend(found)

    def of(self, value: Value) -> list[Value]:
        """Nodes that read a value, and parameters of graphs that stand for it."""
        return self._of.get(value, [])

    def next(self, value: Value, known: Collection[Node]) -> Iterator[Node]:
        """The nodes that read a value, and past those that are not known their readers."""
        seen: set[Value] = set()
        waiting = [value]
        while waiting:
            for reader in self.of(waiting.pop()):
                if reader in seen:
                    continue
                seen.add(reader)
                if isinstance(reader, Node):
                    yield reader
                if reader not in known:
                    waiting.append(reader)


def writers(graph: Graph, values: Sequence[Value]) -> list[Node]:
    """The nodes of a graph, and of those that it runs, that overwrite any of these values, alone or in a stack."""
    found = {*values}
    found |= {node for node in graph.nodes if isinstance(node.op, MakeStack) and not found.isdisjoint(node.inputs)}
    made: list[Node] = []
    for node in graph.nodes:
        operands = [i for i in node.op.mutates if node.inputs[i] in found]
        op: Any = node.op
        types = [value.type for value in node.inputs]
        inner = [
            writer
            for number, region in enumerate(node.regions)
            if operands
            for places in [op.places(number, types)]
            for writer in writers(region, [region.parameters[p] for i in operands for p in places[i]])
        ]
        made += inner or [node] * bool(operands)
    return made
