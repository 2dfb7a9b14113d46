"""Groups of operators that can be one kernel: nodes of a graph in a new order, in which those of a group meet.

Nodes keep their order except those of a group, which meet at the position of one of them: none moves before its
operands, after its readers, or past an update of a parameter that it reads. The members of a group go through the same
elements in the same order, whatever shapes they have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import cast

from mspc.analysis.aliasing import Updates
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.iterative import reached
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ir.varying import OpKey, Varying
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import BodyLine, divides, fusible, moves_elements, reshapes
from mspc.ops.fused.elementwise import Expanded, FusedElementwise, expanded_lines, loaded_bytes, steps_of
from mspc.ops.fused.kernel import Shape, divided, is_row_value
from mspc.ops.op import Op

MAX_OPERANDS = 16
MAX_LINES = 48
FARTHEST = 64
"""Nodes over which a member of a group may move: what moves farther keeps memory alive for long."""
MIN_ROWS = 128
"""Rows that keep a GPU at work where each is a block's; fewer where there is little work."""
LITTLE = 1 << 16
"""Elements."""


@dataclass(frozen=True)
class Member:
    """A node as a member of a group.

    work: the shape of its loop. seen: its operands, in the shapes that are broadcast to this. cuts: of the space, see
    `space.cuts`. row: elements of a row if it combines those of the last dimensions. reduces: its result has one
    element for a row, or fewer.
    """

    work: Shape
    seen: Sequence[tuple[Value, Shape]]
    cuts: frozenset[int]
    row: int = 0
    reduces: bool = False


@dataclass(eq=False)
class GroupSlot:
    """The position of a node that can be in a group, or of the members of a group in their old order.

    position: number of the node, or of the member, at that place. size: elements of the group's loop. row: elements of
    a row if members read values of rows; 0 otherwise. forward: they belong to the forward phase; groups do not mix the
    phases, as that would hold values from one to the other. cuts: see `Member`. inputs: values from outside. totals:
    members that are reductions, by the rows that they reduce, 0 for none. by_row: members with a value for every row.
    readers: slots that read a result; first_reader: the first node in no slot that does.
    """

    position: int
    members: list[tuple[int, Node]]
    size: int
    row: int
    forward: bool
    cuts: frozenset[int]
    inputs: dict[Value, None]
    totals: dict[Value, int]
    by_row: set[Value] = field(default_factory=set[Value])
    readers: set[GroupSlot] = field(default_factory=set["GroupSlot"])
    first_reader: int = 1 << 60


@dataclass(frozen=True)
class _Space:
    """The space of a group that could be: see `GroupSlot`."""

    size: int
    row: int
    cuts: frozenset[int]
    by_row: set[Value]


class NodeOrder:
    """The new order as it grows node by node; positions are the nodes' old numbers.

    member_of: returns a node as a member of a group, given the updates of the graph; None if it is in none. shows:
    tells if a node is a view of its operand. rows: members may read reductions of rows.
    """

    def __init__(
        self, graph: Graph, member_of: Callable[[Node, Updates], Member | None], shows: Callable[[Node], bool],
        rows: bool,
    ) -> None:  # fmt: skip
        self.slots: list[GroupSlot] = []
        self.of: dict[Value, GroupSlot] = {}
        self.members: dict[Value, Member] = {}
        self.updates = Updates(graph)
        self._numbers: dict[Value, int] = {}
        self._whole: dict[Value, Node] = {}
        """A member that reads all elements, for values that no member makes."""
        self._member_of, self._shows, self._rows = member_of, shows, rows

    def place(self, number: int, node: Node) -> None:
        """Add a node at the end, or to a group."""
        member = self._member_of(node, self.updates)
        # A copy of what no member makes would be for nothing.
        if member is None or (self._shows(node) and node.inputs[0] not in self.of):
            self._numbers[node] = number
            for value in node.inputs:
                slot = self.of.get(value)
                if slot is not None and number < slot.first_reader:
                    slot.first_reader = number
            return
        self.members[node] = member
        row = 0 if member.reduces else member.row
        totals: dict[Value, int] = {node: member.row} if member.reduces else {}
        forward = node.phase == "forward"
        size = math.prod(member.work)
        inputs = dict.fromkeys(value for value, _ in member.seen)
        slot = GroupSlot(number, [(number, node)], size, row, forward, member.cuts, inputs, totals)
        self.of[node] = slot
        self.slots.append(slot)
        self._join(slot)
        slot = self.of[node]
        for value in inputs:
            source = self.of.get(value)
            if source is not None and source is not slot:
                source.readers.add(slot)
        self._whole.update(dict.fromkeys(self._read_whole(node), node))

    def _read_whole(self, node: Node) -> list[Value]:
        """Return the computed values from outside that a member reads in full, if their readers may be one kernel.
        (Conversions of parameters stay alone: `shadow_weights`.)"""
        member = self.members[node]
        if not self._rows:
            return []
        size = math.prod(member.work)
        read = [v for v, shape in member.seen if math.prod(shape) == size > 1]
        return [value for value in read if isinstance(value, Node) and value not in self.of]

    def _join(self, new: GroupSlot) -> None:
        """Join a new node with the groups that it reads, or that share an operand, at the position of the last of these
        or at the end."""
        sources: dict[GroupSlot, None] = {}
        last = -1
        for value in new.inputs:
            slot = self.of.get(value)
            if slot is not None:
                sources[slot] = None
            last = max(last, slot.position if slot is not None else self._numbers.get(value, -1))
        [(_, node)] = new.members
        sources.update((self.of[self._whole[v]], None) for v in self._read_whole(node) if v in self._whole)
        groups = [slot for slot in sources if slot.forward == new.forward and new.position - slot.position <= FARTHEST]
        if not groups:
            return
        target = max(groups, key=lambda slot: slot.position)
        place = target.position
        if place >= last and not self.updates.between(new.inputs, place, new.position):
            movable, space = self._movable([*groups, new], place)
            if space is not None and target in movable and new in movable:
                self._merge(movable, target, space)
                return
        movable, space = self._movable([*groups, new], new.position)
        if space is not None and len(movable) > 1 and new in movable:
            self._merge(movable, new, space)

    def _movable(self, slots: list[GroupSlot], place: int) -> tuple[list[GroupSlot], _Space | None]:
        """Return the slots that can be one group at this position, and its space; the new one, the last, has no
        position yet."""
        new = slots[-1]
        found = [s for s in slots if s is new or not self.updates.between(s.inputs, s.position, place)]
        while len(found) > 1:
            space = self._space(found)
            # A slot cannot move if a reader outside would come first.
            bad = next((s for s in found if s.first_reader <= place or any(
                reader not in found and reader.position <= place for reader in s.readers
            )), None)  # fmt: skip
            if bad is None and space is not None and _fit(found):
                return found, space
            if bad is None:
                read = {value for slot in found for value in slot.inputs}
                others = [s for s in found if s is not new and space is None and not read.isdisjoint(s.totals)]
                others = others or [s for s in found if s is not new and space is None and s.size != new.size]
                bad = min(others or found, key=lambda s: s.position)
            found.remove(bad)
        return found, None

    def _space(self, slots: Sequence[GroupSlot]) -> _Space | None:
        """Return the space that the members of the slots share, or None."""
        size = max(slot.size for slot in slots)
        totals = {value: row for slot in slots for value, row in slot.totals.items()}
        read = [totals[value] for slot in slots for value in slot.inputs if value in totals]
        rows = {*read, *(slot.row for slot in slots if slot.row)}
        if not rows:
            return self._level(size, slots)
        (row, *others) = rows
        if others or not row or not self._rows or not enough_rows(size, row):
            return None
        by_row = {value for slot in slots for value in slot.by_row}
        by_row |= {value for value, length in totals.items() if length == row}
        for slot in slots:
            if slot.size == size:
                continue
            if slot.size * row != size or slot.row or slot.totals:
                return None
            by_row |= {node for _, node in slot.members}
        if not all(self._reads_by_rows(slot, by_row, row) for slot in slots if slot.size == size):
            return None
        if any(length != row for length in totals.values()) and not self._apart(slots, by_row, row):
            return None
        cuts = frozenset({row, *(place * (size // slot.size) for slot in slots for place in slot.cuts)})
        return None if divided(size, cuts) is None else _Space(size, row, cuts, by_row)

    def _level(self, size: int, slots: Sequence[GroupSlot]) -> _Space | None:
        if any(slot.size != size for slot in slots):
            return None
        cuts = frozenset[int]().union(*(slot.cuts for slot in slots))
        if size and divided(size, cuts) is None:
            return None
        return _Space(size, 0, cuts, set())

    def _reads_by_rows(self, slot: GroupSlot, by_row: set[Value], row: int) -> bool:
        """Return True if members that loop over all elements read rows' values row by row."""
        if by_row.isdisjoint(slot.inputs):
            return True
        for _, node in slot.members:
            member = self.members[node]
            if node in by_row and not member.reduces:
                continue
            for value, shape in member.seen:
                if value in by_row and not is_row_value(member.work, shape, row):
                    return False
        return True

    def _apart(self, slots: Sequence[GroupSlot], by_row: set[Value], row: int) -> bool:
        """Return True if reductions along axes other than the rows' depend on no rows' values: they take a pass of
        their own."""
        behind = set(by_row)
        for _, node in sorted((member for slot in slots for member in slot.members), key=lambda pair: pair[0]):
            member = self.members[node]
            along = member.row > 0 and not member.reduces
            if not along and behind.isdisjoint(value for value, _ in member.seen):
                continue
            if member.reduces and member.row != row:
                return False
            behind.add(node)
        return True

    def _merge(self, slots: Iterable[GroupSlot], target: GroupSlot, space: _Space) -> None:
        for slot in slots:
            if slot is target:
                continue
            target.members += slot.members
            target.inputs |= slot.inputs
            target.totals |= slot.totals
            target.readers |= slot.readers
            target.first_reader = min(target.first_reader, slot.first_reader)
            for value in slot.inputs:
                source = self.of.get(value)
                if source is not None and slot in source.readers:
                    source.readers.discard(slot)
                    source.readers.add(target)
            for _, node in slot.members:
                self.of[node] = target
            slot.members = []
        target.readers.difference_update(slots)
        target.members.sort(key=lambda member: member[0])
        target.inputs = {value: None for value in target.inputs if self.of.get(value) is not target}
        target.size, target.row, target.cuts, target.by_row = space.size, space.row, space.cuts, space.by_row


def enough_rows(size: int, row: int) -> bool:
    """Return whether a kernel in which every row is a block's, or less, keeps a GPU at work."""
    return size // row >= MIN_ROWS or size <= LITTLE


def _fit(slots: Sequence[GroupSlot]) -> bool:
    if sum(len(slot.members) for slot in slots) > MAX_LINES:
        return False
    made = {node for slot in slots for _, node in slot.members}
    return len({value for slot in slots for value in slot.inputs} - made) <= MAX_OPERANDS


def needed(results: Iterable[Node], sources: Mapping[Node, Sequence[Value]]) -> list[Node]:
    """Return the nodes with sources that these are computed from, themselves among them, in the order of `sources`."""
    found = set(reached(results, lambda value: sources.get(value, ())))  # type: ignore[call-overload]  # of nodes alone
    return [node for node in sources if node in found]


# Nodes as the lines of kernels, and what a kernel moves.
#
# A kernel's lines are those of a fused operator, or the one that a single operator is. Lines read values of the graph
# and earlier lines; operands that are views are seen through, so that who makes a value is found behind its shapes.


Source = tuple[str, int] | Value
"""An operand of a line: ("t", another line) or a value of the graph."""
Line = tuple[Op, tuple[Source, ...]]


class LineTable:
    """Lines of several kernels, equal ones once."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._known: dict[tuple[OpKey, tuple[object, ...]], int] = {}

    def add(self, op: Op, sources: Iterable[Source]) -> tuple[str, int]:
        """Add a line, and return how others read it."""
        read = tuple(sources)
        key = OpKey(op), tuple(id(s) if isinstance(s, Value) else s for s in read)
        number = self._known.setdefault(key, len(self.lines))
        if number == len(self.lines):
            self.lines.append((op, read))
        return "t", number

    def add_all(self, kernel: NodeLines, shown: Mapping[Value, Source] | None = None) -> list[tuple[str, int]]:
        """Add a kernel's lines, and return how others read each. shown: sources in place of some of its operands."""
        found: list[tuple[str, int]] = []
        for op, sources in kernel.lines:
            read = ((shown or {}).get(s, s) if isinstance(s, Value) else found[s[1]] for s in sources)
            found.append(self.add(op, read))
        return found


@dataclass
class NodeLines:
    """The lines of a node, and which of them are its results."""

    lines: list[Line]
    returns: tuple[int, ...]

    @cached_property
    def operands(self) -> tuple[Value, ...]:
        """The values from outside, once each."""
        return tuple(dict.fromkeys(s for _, sources in self.lines for s in sources if isinstance(s, Value)))

    @property
    def moves(self) -> bool:
        """Whether a line moves elements."""
        return any(moves_elements(op) for op, _ in self.lines)

    def steps(self) -> tuple[BodyLine, ...]:
        """Return the lines as those of a fused operator, with the numbers of `operands`."""
        place = {value: number for number, value in enumerate(self.operands)}
        return tuple(
            BodyLine(op, tuple(("x", place[s]) if isinstance(s, Value) else s for s in sources))
            for op, sources in self.lines
        )

    def fused(self) -> FusedElementwise:
        """Return the fused operator of the lines."""
        return FusedElementwise.of(self.steps(), self.returns)

    @cached_property
    def expanded(self) -> Expanded | None:
        """The lines as a kernel of a GPU has them, or None if they cannot be one."""
        try:
            return expanded_lines(self.steps(), self.returns, tuple(v.tensor_type for v in self.operands))
        except MspcError:
            return None

    def part(self, returns: Sequence[int]) -> NodeLines:
        """Return the lines that these results are computed from."""
        needed = set(returns)
        for number in range(max(returns), -1, -1):
            if number in needed:
                needed.update(s[1] for s in self.lines[number][1] if not isinstance(s, Value))
        place = {old: new for new, old in enumerate(sorted(needed))}
        lines = [
            (op, tuple(s if isinstance(s, Value) else ("t", place[s[1]]) for s in sources))
            for op, sources in (self.lines[old] for old in place)
        ]
        return NodeLines(lines, tuple(place[line] for line in returns))

    def with_lines_for(self, seen: dict[Value, tuple[Op, ...]], made: NodeLines) -> NodeLines:
        """Return the kernel with the lines of `made` in place of the operands in `seen`, each of which shows its result
        by these views."""
        table = LineTable()
        places = table.add_all(made)
        shown: dict[Value, Source] = {}
        for value, views in seen.items():
            shown[value] = places[made.returns[0]]
            for view in views:
                shown[value] = table.add(view, (shown[value],))
        own = table.add_all(self, shown)
        return NodeLines(table.lines, tuple(own[line][1] for line in self.returns))

    def plainly_read(self) -> set[Value]:
        """Return the operands of which lines need the element at their own place."""
        assert self.expanded is not None
        read = {i for step in self.expanded.steps for kind, i in step.operands if kind == "x"}
        return {self.operands[i] for i in read if i < len(self.operands)}

    @cached_property
    def read_bytes(self) -> float:
        """Bytes that the kernel loads."""
        types = [value.tensor_type for value in self.operands]
        if not self.moves or self.expanded is None:
            return sum(type.nbytes for type in types)
        return sum(loaded_bytes(self.expanded, types, in_tiles=len(self.lines) == 1))

    def work(self) -> int:
        """Return the number of elements of all lines together."""
        expanded = self.expanded
        return len(expanded.steps) * math.prod(expanded.space.dims) if expanded is not None else 0


def kernel_of(node: Node) -> NodeLines | None:
    """Return the lines of a node that is a fused operator, a single line, or one part of a tensor that is divided; None
    for other nodes."""
    if isinstance(node.op, FusedElementwise):
        operands = node.inputs
        lines: list[Line] = [
            (step.op, tuple(operands[i] if kind == "x" else (kind, i) for kind, i in step.operands))
            for step in steps_of(node.op)
        ]
        return NodeLines(lines, node.op.returns)
    op, inputs = cast(Op, node.op), node.inputs
    if isinstance(op, TupleGetItem):
        whole = inputs[0]
        if not isinstance(whole, Node) or not isinstance(whole.op, Op) or not divides(whole.op):
            return None
        types = [value.type for value in whole.inputs if isinstance(value.type, TensorType)]
        part = looked_at(whole.op).single_result(op.index, *types) if len(types) == len(whole.inputs) else None
        if part is None:
            return None
        op, inputs = part, whole.inputs
    return NodeLines([(looked_at(op), tuple(inputs))], (0,)) if inputs and isinstance(node.type, TensorType) else None


def looked_at(op: Op) -> Op:
    """Return the operator with one rank's attributes instead of those that stand for several ranks."""
    values = {name: value.looked() for name, value in op.attributes().items() if type(value) is Varying}
    return replace(op, **values) if values else op


def is_movable(kernel: NodeLines) -> bool:
    """Return whether every line can be seen from other places: none combines elements."""
    return all(fusible(op) or moves_elements(op) or reshapes(op) for op, _ in kernel.lines)


def shown_through(value: Value) -> tuple[Value, tuple[Op, ...]]:
    """Return the value under a chain of views, and these views, first one first."""
    views: list[Op] = []
    while isinstance(value, Node) and reshapes(value.op):
        views.append(cast(Op, value.op))
        value = value.inputs[0]
    return value, tuple(reversed(views))


def types_fit(values: Sequence[Value]) -> bool:
    """Return whether all values are tensors of real numbers."""
    return all(isinstance(v.type, TensorType) and not v.type.dtype.is_complex for v in values)
