"""Origins of a rank's nodes: the nodes of the graph of all ranks, with known layouts, from which they were made.

Passes after slicing preserve scope, lines and instance of a node, change the order and merge nodes. A node is found by
scope, lines and instance. If several nodes are equal, the one that shares most operands with the rank's node is used,
then the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from mspc.ir.graph import Graph, Node, Value, element_layouts, element_types
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.collective.base import Collective
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise, step_types, steps_of
from mspc.ops.fused.updates import GroupedUpdate
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.slicing import StridedSlice

FUSED = "Fused"
"""Prefix of the names of operators that merge one operator with others."""
COMPARED = 32
"""Most equal nodes among which one is chosen."""


def origins_of(graph: Graph, plan: Graph) -> dict[str, Any]:
    """Return the origins of a graph's nodes in the form of the page: `origin`, the number of each node's original in
    the plan, -1 for none; `members`, for a node that merges several, the numbers of all of them; and `origins`, for a
    node with several results, the numbers of the nodes that produce them."""
    found = Origins(graph, plan)
    return {"origin": found.of, "members": found.members, "origins": found.results}


class Origins:
    """Finder of the nodes of `plan` from which the nodes of `graph` were made, see `origins_of`."""

    def __init__(self, graph: Graph, plan: Graph) -> None:
        self.plan = plan
        self.numbers = {node: i for i, node in enumerate(plan.nodes)}
        self.readers = plan.users()
        self._taken: set[Node] = set()
        self._free: dict[Any, dict[Node, None]] = defaultdict(dict)
        self._at: dict[Any, list[Node]] = defaultdict(list)
        self._around: dict[Any, list[Node]] = defaultdict(list)
        for node in plan.nodes:
            self._free[_key(node)][node] = None
            self._at[_place(node)].append(node)
            self._around[_line(node)].append(node)
        self._elements: dict[Value, Sequence[Node | None]] = {}
        by_name = {parameter.name: parameter for parameter in plan.parameters}
        self._found: dict[Value, Value | None] = {p: by_name.get(p.name) for p in graph.parameters}
        self._operators = {node.op.name for node in plan.nodes}
        self.of: list[int] = []
        self.members: dict[int, list[int]] = {}
        self.results: dict[int, list[int]] = {}
        for index, node in enumerate(graph.nodes):
            found = self._find(index, node)
            self.of.append(self._number(found))
            self._found.setdefault(node, found)
        self._note_results(graph)

    def _number(self, node: Value | None) -> int:
        return self.numbers.get(node, -1) if isinstance(node, Node) else -1

    def _note_results(self, graph: Graph) -> None:
        """Record the elements of tuples that the plan does not have, by the nodes that extract them."""
        elements: dict[Value, dict[int, int]] = defaultdict(dict)
        for node, at in zip(graph.nodes, self.of, strict=True):
            if isinstance(node.op, TupleGetItem):
                elements[node.inputs[0]][node.op.index] = at
        for index, (node, at) in enumerate(zip(graph.nodes, self.of, strict=True)):
            count = len(element_types(node.type))
            same = at >= 0 and len(element_types(self.plan.nodes[at].type)) == count
            if count > 1 and index not in self.results and not same:
                self.results[index] = [elements[node].get(i, -1) for i in range(count)]

    def _find(self, index: int, node: Node) -> Node | None:
        if isinstance(node.op, FusedElementwise):
            return self._fused(index, node, node.op)
        if isinstance(node.op, GroupedUpdate):
            return self._grouped(index, node, node.op)
        operands = [self._found.get(value) for value in node.inputs]
        if "fused" in node.attrs:
            self.members[index] = self._chain(node, operands)
        if isinstance(node.op, TupleGetItem):
            return self._element(node, node.op.index) or self._in_place(node, node.type)
        found = self._take((one for one in self._free.get(_key(node), ()) if _fits(node.type, one)), operands)
        if found is not None:
            return found
        name = node.op.name.removeprefix(FUSED)
        if name != node.op.name:
            self._found[node] = None  # the result is that of the last operator that it merges
            return self._take((one for one in self._read(operands) if one.op.name.endswith(name)), operands)
        around = self._around.get(_line(node), ())
        if isinstance(node.type, TupleType):
            # The last of several steps in which a rank computes one node with the same scope and line.
            same = [one for one in around if _is_slice(node.type, one)]
            return same[0] if len(same) == 1 else None
        if isinstance(node.op, StridedSlice | Concat) or node.op.name not in self._operators:  # only ranks have it
            return self._in_place(node, node.type)
        # The operator, surrounded by others and therefore without its name, as a convolution of others' rows.
        alike = (one for one in around if one.op.name == node.op.name and _is_slice(node.type, one))
        return self._take(alike, operands)

    def _element(self, node: Node, index: int) -> Node | None:
        """Return the plan's node that extracts the same element of a tuple; None if there is none."""
        source = node.inputs[0]
        if source in self._elements:
            return self._elements[source][index]
        original = self._found.get(source)
        if not isinstance(original, Node) or len(element_types(original.type)) != len(element_types(source.type)):
            return None
        readers = self._read([original])
        return next((one for one in readers if isinstance(one.op, TupleGetItem) and one.op.index == index), None)

    def _in_place(self, node: Node, type: Type, operator: str = "") -> Node | None:
        """Return a node at the same place that is the same tensor on the rank; None if such nodes have several layouts.

        This is for tensors made by operators that only ranks have: elements of merged operators, and results of
        redistribution. operator: the node's, if it is known.
        """
        here = (one for one in self._at.get(_place(node), ()) if operator in ("", one.op.name))
        found = [one for one in here if _is_slice(type, one)]
        made = [one for one in found if not isinstance(one.op, Collective)] or found
        return made[-1] if len({(str(one.type), str(one.layout)) for one in made}) == 1 else None

    def _take(self, alike: Iterable[Node], operands: Sequence[Value | None]) -> Node | None:
        """Return, and mark as taken, the first of the equal nodes that reads most of the operands; None if none is
        free."""
        free = list(islice((node for node in alike if node not in self._taken), COMPARED))
        known = {operand for operand in operands if operand is not None}
        best = max(free, key=lambda node: len(known & {*node.inputs}), default=None)
        if best is not None:
            self._taken.add(best)
            self._free[_key(best)].pop(best, None)  # else long loops on one line would take quadratic time
        return best

    def _chain(self, node: Node, operands: Sequence[Value | None]) -> list[int]:
        """Return the numbers of a node's named members. Each reads an operand or an earlier member, possibly through a
        collective of it."""
        at_hand = [operand for operand in operands if operand is not None]
        found: list[int] = []
        for label in map(str, node.attrs["fused"]):
            readers = self._read(at_hand)
            readers += self._read([reader for reader in readers if isinstance(reader.op, Collective)])
            alike = [one for one in readers if one.label == label and one.phase == node.phase and one not in at_hand]
            best = max(alike, key=lambda one: len({*at_hand} & {*one.inputs}), default=None)
            found.append(self._number(best))
            at_hand += [] if best is None else [best]
        return found

    def _read(self, values: Sequence[Value | None]) -> list[Node]:
        """Return the plan's nodes that read some of the values, each once."""
        return [*dict.fromkeys(one for value in values if value is not None for one, _ in self.readers.get(value, ()))]

    def _fused(self, index: int, node: Node, op: FusedElementwise) -> Node | None:
        lines: list[Node | None] = []
        types = step_types(op, [type for value in node.inputs if isinstance(type := value.type, TensorType)])
        for line, type in zip(steps_of(op), types, strict=True):
            operands = [
                self._found.get(node.inputs[number]) if kind == "x" else lines[number]
                for kind, number in line.operands
            ]
            known = [operand for operand in operands if operand is not None]
            readers = [one for one in self._read(known[:1]) if {*known} <= {*one.inputs}]
            alike = (one for one in readers if (one.op.name, one.phase) == (line.op.name, node.phase))
            lines.append(self._take(alike, operands) or self._in_place(node, type, line.op.name))
        self.members[index] = [self._number(line) for line in lines]
        self._elements[node] = [lines[place] for place in op.returns]
        self.results[index] = [self._number(line) for line in self._elements[node]]
        return self._elements[node][-1] if op.returns else None

    def _grouped(self, index: int, node: Node, op: GroupedUpdate) -> Node | None:
        found: list[Node | None] = []
        for operands in op.members(node.inputs):
            there = [self._found.get(value) for value in operands]
            alike = (one for one in self._read(there[:1]) if one.op.name == op.member.name)
            found.append(self._take(alike, there))
        self.members[index] = self.results[index] = [self._number(member) for member in found]
        if all(isinstance(member, Node) and isinstance(member.type, TensorType) for member in found):
            self._elements[node] = found
        return None


def _key(node: Node) -> tuple[Any, ...]:
    return node.op.name.removeprefix(FUSED), *_place(node)


def _place(node: Node) -> tuple[Any, ...]:
    return *_line(node), node.instance, node.name


def _line(node: Node) -> tuple[Any, ...]:
    return node.scope, node.phase, node.frames


def _fits(type: Type, original: Node) -> bool:
    """Return whether a rank's node of that type may be made from a node: the type is that of its slice or of its whole
    tensor, or the slice is unknown."""
    layout = original.layout
    told = isinstance(original.type, TensorType) and isinstance(layout, Layout) and layout.divides(original.shape)
    return not told or type == original.type or _is_slice(type, original)


def _is_slice(type: Type, original: Node) -> bool:
    """Return whether the tensors of a type are a rank's slices of those of a node."""
    own, types, layouts = element_types(type), element_types(original.type), element_layouts(original.layout)
    return len(own) == len(types) == len(layouts) and all(
        layout.divides(whole.shape) and one == whole.with_shape(layout.local_shape(whole.shape))
        for one, whole, layout in zip(own, types, layouts, strict=True)
    )
