"""Puts the updates of many parameters by one optimizer into one operator.

Input:  `%70 = ApplyMomentum(w, moments.w, rate, %61, momentum)`, the same of b and so on
Output: `%70 = GroupedUpdate(w, moments.w, rate, %61, momentum, b, ...) {update: "ApplyMomentum(...)", count: 2}`

A group takes the place of the last of its members. A gradient that a `Cast` alone widens is read before the cast.
Updates with states on the host have groups of their own. Copies of parameters in halves that the updates can keep
up to date get the attribute `kept`, see `analysis.shadow_weights`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import field
from typing import cast

from mspc.analysis.aliasing import Updates, mark_shadow_weights
from mspc.ir.graph import OFFLOAD, Constant, Graph, Node, Parameter, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, TensorType, TupleType, Type
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import fusible, line_of
from mspc.ops.fused.elementwise import FusedElementwise, step_types, steps_of
from mspc.ops.fused.updates import FusedUpdate, GroupedUpdate, gradient_index, has_one_type
from mspc.ops.math.arithmetic import Add, Sub
from mspc.ops.math.elementwise import Identity
from mspc.ops.op import Op
from mspc.ops.optim.optimizer import Assign, AssignAdd, AssignSub, Update
from mspc.ops.tensor.moving import Split
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.base import Pass
from mspc.passes.fusion.rewriter import Rewriter, element, gathered, merged_attributes, node_like, parts_of

# Finds updates of parameters that are written as operators on elements, and makes one operator of each.
#
# Input:  `%1 = FusedElementwise(m, g)`, `%2 = Assign(m, %1)`, `%3 = FusedElementwise(w, %2, rate)`, `%4 = Assign(w,
# %3)` Output: `%4 = FusedUpdate(w, m, g, rate) {body: (...), writes: (3, 1)}`, which reads and writes memory once


MAX_LINES = 48
MAX_OPERANDS = 16


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
        """Return True if the last member can do the work of all: its operands are unchanged, and no earlier result is
        needed."""
        own = {self.numbers[member] for member in members}
        last = max(own)
        written: dict[Value, int] = {}
        for member in members:
            if not _assigns(member):
                continue
            parameter, number = member.inputs[0], self.numbers[member]
            if parameter in written or any(
                self.numbers[reader] < last for reader in self.rewriter.readers(member) if reader not in members
            ):  # fmt: skip
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


class _Body:
    """The lines of several nodes as one operator.

    scalars: one-element values, in shape (). places: of values, as operand or as line. results: the places of the
    results of fused members. written: the lines that nodes assign.
    """

    def __init__(self, rewriter: Rewriter, members: Sequence[Node], scalars: dict[Value, Value]) -> None:
        self.rewriter, self.members, self.scalars = rewriter, members, scalars
        # Of operand 0 the update writes copies in halves: those of weights are wanted.
        self.assigns = sorted(filter(_assigns, members), key=lambda node: not cast(Parameter, node.inputs[0]).trainable)
        self.inputs: list[Value] = [node.inputs[0] for node in self.assigns]
        self.places: dict[Value, tuple[str, int]] = {value: ("x", i) for i, value in enumerate(self.inputs)}
        self.results: dict[Value, Sequence[tuple[str, int]]] = {}
        self.lines: dict[str, int] = {}
        self.written: dict[Node, int] = {}

    def emit(self) -> None:
        """Make the operator, unless it would be too large or of several types."""
        for member in self.members:
            self._add(member)
        shape = self.inputs[0].shape
        numbers = tuple(i for i, value in enumerate(self.inputs) if value.shape != shape)
        if len(self.lines) > MAX_LINES or len(self.inputs) > MAX_OPERANDS:
            return
        if not has_one_type([value.tensor_type.dtype for value in self.inputs], numbers):
            return
        writes = tuple(self.written[node] for node in self.assigns)
        op = FusedUpdate(tuple(self.lines), writes, numbers)
        types = tuple(node.tensor_type for node in self.assigns)
        type: Type = types[0] if len(types) == 1 else TupleType(types)
        nodes: list[Node] = []
        inputs = [self._number(value, nodes) if i in numbers else value for i, value in enumerate(self.inputs)]
        made = (node for node in self.members if not isinstance(node.op, TupleGetItem))
        labels = dict.fromkeys(part for node in made for part in parts_of(node))
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
        """Return a line, the same for equal ones."""
        return "t", self.lines.setdefault(line_of(op, operands), len(self.lines))

    def _number(self, value: Value, nodes: list[Node]) -> Value:
        if value.shape and value not in self.scalars:
            nodes.append(node_like(self.members[-1], Reshape(()), [value], value.tensor_type.with_shape(())))
            self.scalars[value] = nodes[-1]
        return self.scalars.get(value, value)


def _assigns(node: Node) -> bool:
    if not isinstance(node.op, Assign | AssignAdd | AssignSub) or not isinstance(node.inputs[0], Parameter):
        return False
    return node.inputs[0].type == node.inputs[1].type and node.inputs[0].tensor_type.size > 1


def _shape_of(node: Node) -> tuple[int, ...] | None:
    """Return the shape of the parameter that a node may help to update, or None."""
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


# Counters are added to where they lie, so that many of them are one launch as other updates are.
#
# Input:  `%1 = Add(count, 1)`, `%9 = Assign(count, %1)`. Output: `%9 = AssignAdd(count, 1)`


def count_in_place(graph: Graph, updates: Updates) -> bool:
    """Put AssignAdd in the place of assigned sums with a constant that nobody else reads; whether there was one."""
    assigned = [(number, node) for number, node in enumerate(graph.nodes) if isinstance(node.op, Assign)]
    if not assigned:
        return False
    users, results = graph.users(), set(graph.results)
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    gone: set[Value] = set()
    for number, node in assigned:
        variable, total = node.inputs
        if not isinstance(total, Node) or total in results or len(users[total]) != 1:
            continue
        addend = _added_to(variable, total)
        if addend is None or updates.between([variable], numbers[total], number - 1):
            continue
        node.op, node.inputs = AssignAdd(), [variable, addend]
        gone.add(total)
    graph.nodes = [node for node in graph.nodes if node not in gone]
    return bool(gone)


def _added_to(variable: Value, total: Node) -> Constant | None:
    if not isinstance(total.op, Add) or not isinstance(variable, Parameter):
        return None
    for one, other in (total.inputs, total.inputs[::-1]):
        if one is variable and isinstance(other, Constant) and other.type == variable.type:
            return other
    return None


MAX_MEMBERS = 64
HELD = 64 << 20
"""Bytes of gradients, made between the members of a group, that may wait for its last member."""
FETCHED = 8 << 20
"""Bytes of states that live on the host, and are on the device together while a group of several is updated."""

LARGE_SUM = 4 << 20
"""Bytes of a gradient that travelled alone from which on its update is one by itself: it takes longer than a launch."""
_PARTS = TupleGetItem, Cast, Split, StridedSlice, FusedElementwise
"""Operators that take a gradient from a sum, if they have one operand."""


class FuseUpdates(Pass):
    def run(self, graph: Graph) -> bool:
        updates = Updates(graph)
        if updates.first == len(graph.nodes):
            return False
        counted = count_in_place(graph, updates)
        updates = Updates(graph) if counted else updates
        written = Rewriter(graph)
        join_written_updates(written, updates)
        joined = written.apply()
        updates = Updates(graph) if joined else updates
        rewriter = Rewriter(graph)
        for found in _groups(rewriter, updates):
            if len(found.members) > 1:
                _fuse(rewriter, found)
        changed = rewriter.apply() or joined or counted
        return mark_shadow_weights(graph) or changed


@dataclass(eq=False)
class _UpdateGroup:
    """Updates that become one. start: number of the first. casts: those of gradients, by the member that reads them.
    held: bytes of gradients that wait. fetched: those of states that live on the host. open: whether another update may
    join."""

    start: int
    members: list[Node] = field(default_factory=list[Node])
    casts: dict[Node, Node] = field(default_factory=dict[Node, Node])
    held: int = 0
    fetched: int = 0
    open: bool = True

    def takes(self, held: int, fetched: int) -> bool:
        """Return whether another update may join, for which so many bytes more wait and are fetched."""
        within = self.held + held <= HELD and self.fetched + fetched <= FETCHED
        return self.open and within and len(self.members) < MAX_MEMBERS


def _groups(rewriter: Rewriter, updates: Updates) -> list[_UpdateGroup]:
    """Return the groups, including single members. A node that a member may not pass closes its group."""
    graph = rewriter.graph
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    current: dict[Hashable, _UpdateGroup] = {}
    found: list[_UpdateGroup] = []
    read: dict[Value, set[_UpdateGroup]] = {}
    written: dict[Value, set[_UpdateGroup]] = {}
    for number in range(updates.first, len(graph.nodes)):
        node = graph.nodes[number]
        if isinstance(node.op, TupleGetItem) and node.inputs[0] in written:
            written[node] = written[node.inputs[0]]  # an element of a member's result, read by nobody yet
            continue
        writes = updates.written(node)
        reads = {value for value in node.inputs if isinstance(value, Node)}
        reads = reads.union(*(updates.parameters(value) for value in node.inputs))
        for value in reads:
            _close(written.get(value, ()))
        for value in writes:
            _close(read.get(value, ()))
        if not _may_be_grouped(node, rewriter):
            continue
        cast = _widening(node, rewriter, updates)
        key = _key(node, cast)
        group = current.get(key)
        start = group.start if group is not None else number
        held = sum(v.type.nbytes for v in node.inputs if isinstance(v, Node) and numbers[v] > start)
        fetched = sum(value.type.nbytes for value in _on_host(node))
        if group is None or not group.takes(held, fetched):
            group = current[key] = _UpdateGroup(number)
            found.append(group)
        else:
            group.held += held
        group.fetched += fetched
        group.members.append(node)
        if cast is not None:
            group.casts[node] = cast
        for value in reads | writes:
            read.setdefault(value, set()).add(group)
        for value in (*writes, node):
            written.setdefault(value, set()).add(group)
    return found


def _close(groups: Iterable[_UpdateGroup]) -> None:
    for group in groups:
        group.open = False


def _may_be_grouped(node: Node, rewriter: Rewriter) -> bool:
    """Return True for an update of parameters with a result that is, if a tuple, only taken apart."""
    if not isinstance(node.op, Update):
        return False
    if not all(isinstance(node.inputs[index], Parameter) for index in node.op.mutates):
        return False
    return isinstance(node.type, TensorType) or (
        node not in rewriter.results and all(isinstance(user.op, TupleGetItem) for user in rewriter.readers(node))
    )


def _key(node: Node, cast: Node | None) -> Hashable:
    """Return a key equal for updates that one operator can do: operator, scalars, element types, and start."""
    op = node.op
    assert isinstance(op, Update)
    scalars = tuple(node.inputs[index] for index in op.scalars)
    narrow = cast.inputs[0].tensor_type.dtype if cast is not None else None
    dtypes = tuple(value.tensor_type.dtype for value in node.inputs)
    return op, scalars, dtypes, narrow, _bucket(node), bool(_on_host(node))


def _on_host(node: Node) -> list[Parameter]:
    return [value for value in node.inputs if isinstance(value, Parameter) and OFFLOAD in value.attrs]


def _bucket(node: Node) -> Node | None:
    """Return the bucket of the update's gradient, or its sum if that is large: updates of one bucket need not wait for
    the next.

    Small sums over ranks, as a norm's, come early.
    """
    index = gradient_index(node.op)  # type: ignore[arg-type]  # an Update, as it may join
    value = node.inputs[index] if index is not None else None
    while isinstance(value, Node) and isinstance(value.op, _PARTS) and len(value.inputs) == 1:
        value = value.inputs[0]
    if not isinstance(value, Node) or not isinstance(value.op, AllReduce) or "mirror_user_id" not in value.attrs:
        return None
    return value if len(value.inputs) > 1 or value.type.nbytes >= LARGE_SUM else None


def _widening(node: Node, rewriter: Rewriter, updates: Updates) -> Node | None:
    """Return the Cast from 16 bits that only makes the gradient of an update, if the update can do it."""
    index = gradient_index(node.op)  # type: ignore[arg-type]  # an Update, as it may join
    cast = node.inputs[index] if index is not None else None
    if not isinstance(cast, Node) or not isinstance(cast.op, Cast) or cast.op.dst_type != FLOAT32:
        return None
    if cast.inputs[0].tensor_type.dtype not in (FLOAT16, BFLOAT16) or node.inputs[0].tensor_type.dtype != FLOAT32:
        return None
    if rewriter.only_reader(cast) is None or updates.changes(cast.inputs[0]):
        return None
    return cast


def _fuse(rewriter: Rewriter, found: _UpdateGroup) -> None:
    """Replace the group's last member by one operator and the elements of its result."""
    members = found.members
    op = members[0].op
    assert isinstance(op, Update)
    inputs: list[Value] = []
    for member in members:
        cast = found.casts.get(member)
        inputs += [cast.inputs[0] if cast is not None and value is cast else value for value in member.inputs]
    types = tuple(t for member in members for t in element_types(member.type))
    labels = [f"{m.label} of {m.inputs[0].name}" for m in members]
    grouped = gathered(GroupedUpdate.of(op, len(members)), inputs, TupleType(types), members, labels)
    casts = [found.casts[member] for member in members if member in found.casts]
    grouped.attrs |= {f"cast_{key}": value for key, value in merged_attributes(casts).items()}
    nodes = [grouped]
    for index, member in enumerate(members):
        for place, read in enumerate(_parts(member, rewriter)):
            if read:
                nodes.append(element(grouped, index * op.outputs + place, member))
            for value in read:
                rewriter.replace(value, nodes[-1])
    rewriter.gone.update((*members, *casts))
    rewriter.put(members[-1], nodes)


def _parts(member: Node, rewriter: Rewriter) -> list[list[Value]]:
    """Return for every result of a member the values that replace it."""
    if isinstance(member.type, TensorType):
        return [[member] if member in rewriter.results or member in rewriter.users else []]
    found: list[list[Value]] = [[] for _ in element_types(member.type)]
    for user in rewriter.readers(member):
        assert isinstance(user.op, TupleGetItem)
        found[user.op.index].append(user)
    return found
