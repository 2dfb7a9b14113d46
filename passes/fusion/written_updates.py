"""Finds updates of parameters that are written as operators on elements, and makes one operator of each.

Input:  `%1 = FusedElementwise(m, g)`, `%2 = Assign(m, %1)`, `%3 = FusedElementwise(w, %2, rate)`, `%4 = Assign(w, %3)`
Output: `%4 = FusedUpdate(w, m, g, rate) {body: (...), writes: (3, 1)}`, which reads and writes memory once
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import cast

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Node, Parameter, Value
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import BodyLine, fusible, line_of
from mspc.ops.fused.elementwise import FusedElementwise, step_types, steps_of
from mspc.ops.fused.update import FusedUpdate, has_one_type
from mspc.ops.math.arithmetic import Add, Sub
from mspc.ops.math.elementwise import Identity
from mspc.ops.op import Op
from mspc.ops.optim.optimizer import Assign, AssignAdd, AssignSub
from mspc.ops.tensor.reshape import Reshape
from mspc.passes.fusion.rewriter import Rewriter, element, gathered, parts_of

MOST_LINES = 48
MOST_OPERANDS = 16


def join_written_updates(rewriter: Rewriter, updates: Updates) -> None:
    """Put one operator in the place of the last node of every update that can be one."""
    if not any(map(_assigns, rewriter.graph.nodes)):
        return
    joined = _UpdateNodes(rewriter, updates)
    scalars: dict[Value, Value] = {}
    for members in joined.components():
        if joined.can_be_one(members):
            _Body(rewriter, members, scalars).emit()


class _UpdateNodes:
    """The nodes that may be parts of updates: those that assign, and those on elements that only such nodes read."""

    def __init__(self, rewriter: Rewriter, updates: Updates) -> None:
        self.rewriter, self.updates = rewriter, updates
        nodes = rewriter.graph.nodes
        self.numbers: dict[Value, int] = {node: number for number, node in enumerate(nodes)}
        self.shapes: dict[Value, tuple[int, ...]] = {}
        self.touched: dict[Value, list[int]] = {}
        for node in reversed(nodes):
            shape = _shape_of(node)
            readers = rewriter.readers(node)
            inside = bool(readers) and all(self.shapes.get(reader) == shape for reader in readers)
            if shape is not None and (_assigns(node) or (inside and node not in rewriter.results)):
                self.shapes[node] = shape
        for number, node in enumerate(nodes):
            if isinstance(node.op, TupleGetItem) and node.inputs[0] not in self.shapes:
                self.shapes.pop(node, None)
            for parameter in {p for value in node.inputs for p in updates.parameters(value)}:
                self.touched.setdefault(parameter, []).append(number)

    def components(self) -> list[list[Node]]:
        """Nodes that read each other, in run order, by the last of them; those of an assignment alone are left out."""
        group: dict[Value, list[Node]] = {}
        for node in self.rewriter.graph.nodes:
            if node not in self.shapes:
                continue
            own = group[node] = [node]
            for value in node.inputs:
                other = group.get(value) if self.shapes.get(value) == self.shapes[node] else None
                if other is not None and other is not own:
                    for member in other:
                        group[member] = own
                    own[:0] = other
        found = {id(members): sorted(members, key=self.numbers.__getitem__) for members in group.values()}
        several = [members for members in found.values() if len(members) > 1]
        return sorted(several, key=lambda members: self.numbers[members[-1]])

    def can_be_one(self, members: Sequence[Node]) -> bool:
        """Whether the last of the members can do the work of all: what they read is the same there, and nobody wants
        what they write earlier."""
        own = {self.numbers[member] for member in members}
        last = max(own)
        written: dict[Value, int] = {}
        for member in members:
            if not _assigns(member):
                continue
            parameter, number = member.inputs[0], self.numbers[member]
            if parameter in written or any(self.numbers[reader] < last for reader in self._others(member, members)):
                return False
            written[parameter] = number
        for parameter, number in written.items():
            touched = self.touched[parameter]
            others = {*touched[bisect_right(touched, number) : bisect_left(touched, last)]}
            others.update(n for n in self.updates.numbers[parameter] if min(own) < n < last)
            if not own.issuperset(others):
                return False
        for member in members:
            number = self.numbers[member]
            outside = [value for value in member.inputs if self.numbers.get(value) not in own]
            if any(number > written.get(value, last) for value in outside):
                return False  # it reads the parameter itself, and wants the new value
            if self.updates.between([value for value in outside if value not in written], number, last):
                return False
        return True

    def _others(self, member: Node, members: Sequence[Node]) -> Iterator[Node]:
        return (reader for reader in self.rewriter.readers(member) if reader not in members)


class _Body:
    """The lines of several nodes as one operator.

    scalars: what has one element, in the shape (). places: where values are, as operand or as line. results: the places
    of the results of fused members. written: the lines that nodes assign.
    """

    def __init__(self, rewriter: Rewriter, members: Sequence[Node], scalars: dict[Value, Value]) -> None:
        self.rewriter, self.members, self.scalars = rewriter, members, scalars
        # Of operand 0 the update writes copies in halves: those of weights are wanted.
        self.assigns = sorted(filter(_assigns, members), key=lambda node: not cast(Parameter, node.inputs[0]).trainable)
        self.inputs: list[Value] = [node.inputs[0] for node in self.assigns]
        self.places: dict[Value, tuple[str, int]] = {value: ("x", i) for i, value in enumerate(self.inputs)}
        self.results: dict[Value, Sequence[tuple[str, int]]] = {}
        self.lines: dict[str, BodyLine] = {}
        self.written: dict[Node, int] = {}

    def emit(self) -> None:
        """Make the operator, unless it would be too large or of several types."""
        for member in self.members:
            self._add(member)
        shape = self.inputs[0].shape
        numbers = tuple(i for i, value in enumerate(self.inputs) if value.shape != shape)
        if len(self.lines) > MOST_LINES or len(self.inputs) > MOST_OPERANDS:
            return
        if not has_one_type([value.tensor_type.dtype for value in self.inputs], numbers):
            return
        writes = tuple(self.written[node] for node in self.assigns)
        op = FusedUpdate(tuple(self.lines), writes, numbers)
        types = tuple(node.tensor_type for node in self.assigns)
        type: Type = types[0] if len(types) == 1 else TupleType(types)
        nodes: list[Node] = []
        inputs = [self._number(value, nodes) if i in numbers else value for i, value in enumerate(self.inputs)]
        labels = dict.fromkeys(part for node in self.members if not _is_part(node) for part in parts_of(node))
        update = gathered(op, inputs, type, self.members, labels)
        nodes.append(update)
        for index, node in enumerate(self.assigns):
            nodes.append(update if len(types) == 1 else element(update, index, node))
            self.rewriter.replace(node, nodes[-1])
        self.rewriter.gone.update(self.members)
        self.rewriter.put(self.members[-1], dict.fromkeys(nodes))

    def _add(self, node: Node) -> None:
        op = node.op
        if isinstance(op, TupleGetItem):
            self.places[node] = self.results[node.inputs[0]][op.index]
            return
        operands = [self._place(value) for value in node.inputs]
        if _assigns(node):
            kind, line = operands[1]
            if isinstance(op, AssignAdd | AssignSub):
                kind, line = self._line(Add() if isinstance(op, AssignAdd) else Sub(), operands)
            elif kind == "x" or line in self.written.values():
                kind, line = self._line(Identity(), [(kind, line)])
            self.written[node], self.places[node] = line, (kind, line)
        elif isinstance(op, FusedElementwise):
            made: list[tuple[str, int]] = []
            for step in steps_of(op):
                read = [(operands if kind == "x" else made)[index] for kind, index in step.operands]
                made.append(self._line(step.op, read))
            found = [made[line] for line in op.returns]
            self.results[node] = found
            self.places[node] = found[0]
        else:
            self.places[node] = self._line(cast(Op, op), operands)

    def _place(self, value: Value) -> tuple[str, int]:
        if value not in self.places:
            self.places[value] = ("x", len(self.inputs))
            self.inputs.append(value)
        return self.places[value]

    def _line(self, op: Op, operands: Sequence[tuple[str, int]]) -> tuple[str, int]:
        """A line, once for equal ones."""
        text = line_of(op, operands)
        self.lines.setdefault(text, BodyLine(op, tuple(operands)))
        return "t", list(self.lines).index(text)

    def _number(self, value: Value, nodes: list[Node]) -> Value:
        """A scalar, whatever shape its one element has."""
        if value.shape and value not in self.scalars:
            last = self.members[-1]
            nodes.append(Node(Reshape(()), [value], value.tensor_type.with_shape(()), scope=last.scope,
                              frames=last.frames, phase=last.phase))  # fmt: skip
            self.scalars[value] = nodes[-1]
        return self.scalars.get(value, value)


def _assigns(node: Node) -> bool:
    """Whether a node writes a value to a parameter."""
    if not isinstance(node.op, Assign | AssignAdd | AssignSub) or not isinstance(node.inputs[0], Parameter):
        return False
    return node.inputs[0].type == node.inputs[1].type and node.inputs[0].tensor_type.size > 1


def _is_part(node: Node) -> bool:
    return isinstance(node.op, TupleGetItem)


def _shape_of(node: Node) -> tuple[int, ...] | None:
    """The shape of the parameter that a node may help to update, if it may."""
    op = node.op
    if _assigns(node):
        return node.inputs[0].shape
    if node.phase != "update":
        return None
    if isinstance(op, TupleGetItem):
        return _shape_of(node.inputs[0]) if isinstance(node.inputs[0], Node) else None
    if isinstance(op, FusedElementwise):
        types = step_types(op, [value.tensor_type for value in node.inputs])
        lines = [step.op for step in steps_of(op)]
    elif isinstance(node.type, TensorType):
        types, lines = [node.type], [op]
    else:
        return None
    shape = types[0].shape
    if types[0].size == 1 or not all(map(fusible, lines)) or any(type.shape != shape for type in types):
        return None
    whole = all(isinstance(v.type, TensorType) and (v.shape == shape or v.type.size == 1) for v in node.inputs)
    return shape if whole else None
