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


class Origins:
    """Origins of the nodes of `graph` in `plan`. of: the number of each node's original, -1 for none. members: for a
    node that merges several, the numbers of all of them. results: for a node with several results, the numbers of the
    nodes that produce them."""

    def __init__(self, graph: Graph, plan: Graph) -> None:
        self.plan = plan
        self.numbers = {node: i for i, node in enumerate(plan.nodes)}
        self.readers = plan.users()
        self._taken: set[Node] = set()
        self._alike: dict[Any, dict[Node, None]] = defaultdict(dict)
        self._there: dict[Any, list[Node]] = defaultdict(list)
        self._around: dict[Any, list[Node]] = defaultdict(list)
        for node in plan.nodes:
            self._alike[_key(node)][node] = None
            self._there[_place(node)].append(node)
            self._around[_line(node)].append(node)
        self._elements: dict[Value, Sequence[Node | None]] = {}
        by_name = {parameter.name: parameter for parameter in plan.parameters}
        self._found: dict[Value, Value | None] = {p: by_name.get(p.name) for p in graph.parameters}
        self._operators = {node.op.name for node in plan.nodes}
        self._sent = {value for node in graph.nodes if isinstance(node.op, Collective) for value in node.inputs}
        self.of: list[int] = []
        self.members: dict[int, list[int]] = {}
        self.results: dict[int, list[int]] = {}
        for index, node in enumerate(graph.nodes):
            self.of.append(self._number(self._find(index, node)))
        self._note_results(graph)

    def _number(self, node: Value | None) -> int:
        return self.numbers.get(node, -1) if isinstance(node, Node) else -1

    def _note_results(self, graph: Graph) -> None:
        """Record the elements of tuples that the plan does not have, by the nodes that extract them."""
        elements: dict[Value, dict[int, int]] = defaultdict(dict)
        for node, at in zip(graph.nodes, self.of, strict=True):
            if isinstance(node.op, TupleGetItem):
                elements[node.inputs[0]][node.op.index] = at
        for index, node in enumerate(graph.nodes):
            count = len(element_types(node.type))
            there = self.plan.nodes[self.of[index]] if self.of[index] >= 0 else None
            if count > 1 and index not in self.results and (there is None or len(element_types(there.type)) != count):
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
            found = self._element(node, node.op.index) or self._in_place(node, node.type)
        else:
            alike = self._alike.get(_key(node), {})
            found = self._take((one for one in alike if _fits(node.type, one)), operands)
            if found is None and node.op.name.startswith(FUSED):
                return self._take(self._joined(node, operands), operands)
            if found is not None:
                alike.pop(found)
            elif isinstance(node.type, TupleType):
                # The last of several steps in which a rank computes one node with the same scope and line.
                slices = [one for one in self._around.get(_line(node), ()) if _are_slices(node.type, one)]
                found = slices[0] if len(slices) == 1 else None
            elif isinstance(node.op, StridedSlice | Concat) or (
                node.op.name not in self._operators and node not in self._sent  # an operator that only ranks have
            ):
                found = self._in_place(node, node.type)
            else:
                # The operator, surrounded by others and therefore without its name, as a convolution of others' rows.
                same = (one for one in self._around[_line(node)] if one.op.name == node.op.name)
                found = self._take((one for one in same if _is_slice(node.type, one)), operands)
        self._found[node] = found
        return found

    def _element(self, node: Node, index: int) -> Node | None:
        """Return the plan's node that extracts the same element of a tuple; None if there is none."""
        source = node.inputs[0]
        if source in self._elements:
            return self._elements[source][index]
        original = self._found.get(source)
        if not isinstance(original, Node) or len(element_types(original.type)) != len(element_types(source.type)):
            return None
        readers = [one for one in self._read([original]) if isinstance(one.op, TupleGetItem) and one.op.index == index]
        return readers[0] if readers else None

    def _joined(self, node: Node, operands: Sequence[Value | None]) -> list[Node]:
        """Return the possible originals of the first operator in a node that merges it with the operators after it.

        The node has the result of the last operator, which is not looked for.
        """
        ending = node.op.name.removeprefix(FUSED)
        readers = [r for value in operands if value is not None for r, _ in self.readers.get(value, ())]
        return [reader for reader in dict.fromkeys(readers) if reader.op.name.endswith(ending)]

    def _in_place(self, node: Node, type: Type, operator: str = "") -> Node | None:
        """Return a node at the same place that is the same tensor on the rank; None if such nodes have several layouts.

        This is for tensors made by operators that only ranks have: elements of merged operators, and results of
        redistribution. operator: the node's, if it is known.
        """
        found = [one for one in self._there.get(_place(node), ()) if _is_slice(type, one)]
        if operator:
            found = [one for one in found if one.op.name == operator]
        made = [one for one in found if not isinstance(one.op, Collective)] or found
        return made[-1] if len({(str(one.type), str(one.layout)) for one in made}) == 1 else None

    def _take(self, alike: Iterable[Node], operands: Sequence[Value | None]) -> Node | None:
        """Return, and mark as taken, the first of the equal nodes that reads most of the operands; None if none is
        free."""
        free = list(islice((node for node in alike if node not in self._taken), COMPARED))
        if not free:
            return None
        known = {operand for operand in operands if operand is not None}
        best = max(free, key=lambda node: len(known & {*node.inputs})) if len(free) > 1 else free[0]
        self._taken.add(best)
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

    def _read(self, values: Sequence[Value]) -> list[Node]:
        return [reader for value in values for reader, _ in self.readers.get(value, ())]

    def _fused(self, index: int, node: Node, op: FusedElementwise) -> Node | None:
        lines: list[Node | None] = []
        types = step_types(op, [type for value in node.inputs if isinstance(type := value.type, TensorType)])
        for line, type in zip(steps_of(op), types, strict=True):
            operands = [
                self._found.get(node.inputs[number]) if kind == "x" else lines[number]
                for kind, number in line.operands
            ]
            known = [operand for operand in operands if operand is not None]
            readers = dict.fromkeys(reader for operand in known[:1] for reader, _ in self.readers.get(operand, ()))
            alike = [reader for reader in readers if (reader.op.name, reader.phase) == (line.op.name, node.phase)]
            fitting = [reader for reader in alike if {*known} <= {*reader.inputs}]
            lines.append(self._take(fitting, operands) or self._in_place(node, type, line.op.name))
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
        self.members[index] = self.results[index] = [self._number(member) for member in found]
        if all(isinstance(member, Node) and isinstance(member.type, TensorType) for member in found):
            self._elements[node] = found
        return None


def _key(node: Node) -> Any:
    return node.op.name.removeprefix(FUSED), *_place(node)


def _place(node: Node) -> tuple[Any, ...]:
    return node.scope, node.phase, node.instance, node.name, node.frames


def _line(node: Node) -> tuple[Any, ...]:
    return node.scope, node.phase, node.frames


def _are_slices(type: Type, original: Node) -> bool:
    """Return whether the elements of a tuple are a rank's slices of the elements of another."""
    own, types, layouts = element_types(type), element_types(original.type), element_layouts(original.layout)
    if not len(own) == len(types) == len(layouts):
        return False
    slices = [there.with_shape(layout.local_shape(there.shape)) for there, layout in zip(types, layouts, strict=True)]
    return list(own) == slices


def _fits(type: Type, original: Node) -> bool:
    """Return whether a rank's node of that type may be made from a node: the type is that of its slice or of its whole
    tensor, or the slice is unknown."""
    layout = original.layout
    told = isinstance(original.type, TensorType) and isinstance(layout, Layout) and layout.divides(original.shape)
    return not told or type == original.type or _is_slice(type, original)


def _is_slice(type: Type, original: Node) -> bool:
    """Return whether a type is that of a rank's slice of a tensor."""
    if not isinstance(original.type, TensorType) or not isinstance(original.layout, Layout):
        return False
    own = original.type.with_shape(original.layout.local_shape(original.shape))
    return type == own and original.layout.divides(original.shape)
