"""Which nodes of the graph of all ranks a rank's node was made of: layouts stand there, what runs stands here.

Passes behind the slicing keep scope, lines and instance of a node, change the order and join several into one. A node
is found by these, of several alike the one whose operands are those of the rank's node, then the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from mspc.ir.graph import Graph, Node, Value
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.fused.grouped_update import GroupedUpdate

FUSED = "Fused"
"""What begins the names of operators that were made of one with others."""
COMPARED = 32
"""Nodes that are alike of which one is chosen."""


class Origins:
    """For every node of `graph` the number of its node in `plan` (`of`, -1 for none), of a node that is several the
    numbers of all of them (`members`), and of those whose results are the node's (`results`)."""

    def __init__(self, graph: Graph, plan: Graph) -> None:
        self.plan = plan
        self.numbers = {node: i for i, node in enumerate(plan.nodes)}
        self.readers = plan.users()
        self._taken: set[Node] = set()
        self._alike: dict[Any, dict[Node, None]] = defaultdict(dict)
        for node in plan.nodes:
            self._alike[_key(node)][node] = None
        self._elements: dict[Value, Sequence[Node | None]] = {}
        by_name = {parameter.name: parameter for parameter in plan.parameters}
        self._found: dict[Value, Value | None] = {p: by_name.get(p.name) for p in graph.parameters}
        self.of: list[int] = []
        self.members: dict[int, list[int]] = {}
        self.results: dict[int, list[int]] = {}
        for index, node in enumerate(graph.nodes):
            self.of.append(self._number(self._find(index, node)))

    def _number(self, node: Value | None) -> int:
        return self.numbers.get(node, -1) if isinstance(node, Node) else -1

    def _find(self, index: int, node: Node) -> Node | None:
        if isinstance(node.op, FusedElementwise):
            return self._fused(index, node, node.op)
        if isinstance(node.op, GroupedUpdate):
            return self._grouped(index, node, node.op)
        operands = [self._found.get(value) for value in node.inputs]
        if isinstance(node.op, TupleGetItem) and node.inputs[0] in self._elements:
            found = self._elements[node.inputs[0]][node.op.index]
        else:
            alike = self._alike.get(_key(node), {})
            found = self._take(alike, operands)
            if found is None and node.op.name.startswith(FUSED):
                return self._take(self._joined(node, operands), operands)
            if found is not None:
                alike.pop(found)
        self._found[node] = found
        return found

    def _joined(self, node: Node, operands: Sequence[Value | None]) -> list[Node]:
        """For an operator that was made of one with what follows it the nodes that may be that one. Its result is that
        of what follows, which is not looked for."""
        ending = node.op.name.removeprefix(FUSED)
        readers = [r for value in operands if value is not None for r, _ in self.readers.get(value, ())]
        return [reader for reader in dict.fromkeys(readers) if reader.op.name.endswith(ending)]

    def _take(self, alike: Iterable[Node], operands: Sequence[Value | None]) -> Node | None:
        """The one of nodes that are alike which reads most of the operands, the first of several."""
        free = list(islice((node for node in alike if node not in self._taken), COMPARED))
        if not free:
            return None
        known = {operand for operand in operands if operand is not None}
        best = max(free, key=lambda node: len(known & {*node.inputs})) if len(free) > 1 else free[0]
        self._taken.add(best)
        return best

    def _fused(self, index: int, node: Node, op: FusedElementwise) -> Node | None:
        lines: list[Node | None] = []
        for line in steps_of(op):
            operands = [
                self._found.get(node.inputs[number]) if kind == "x" else lines[number]
                for kind, number in line.operands
            ]
            known = [operand for operand in operands if operand is not None]
            readers = dict.fromkeys(reader for operand in known[:1] for reader, _ in self.readers.get(operand, ()))
            alike = [reader for reader in readers if (reader.op.name, reader.phase) == (line.op.name, node.phase)]
            fitting = [reader for reader in alike if {*known} <= {*reader.inputs}]
            lines.append(self._take(fitting, operands))
        self.members[index] = [self._number(line) for line in lines]
        self._elements[node] = [lines[place] for place in op.returns]
        self.results[index] = [self._number(line) for line in self._elements[node]]
        last = self._elements[node][-1] if op.returns else None
        self._found[node] = last
        return last

    def _grouped(self, index: int, node: Node, op: GroupedUpdate) -> Node | None:
        found: list[Node | None] = []
        for operands in op.members(node.inputs):
            there = [self._found.get(value) for value in operands]
            readers = self.readers.get(there[0], ()) if there[0] is not None else ()
            alike = [reader for reader, place in readers if reader.op.name == op.member.name and place == 0]
            found.append(self._take(alike, there))
        self.members[index] = [self._number(member) for member in found]
        return None


def _key(node: Node) -> Any:
    return node.op.name.removeprefix(FUSED), node.scope, node.phase, node.instance, node.name, node.frames
