"""Puts operators that work element by element, and read each other, into one that passes over memory once.

Input:  `%5 = Add(%4, %b)`, `%6 = GeLU(%5)`, where the gradient reads %5 later
Output: `%5 = FusedElementwise(%4, %b) {body: ("Add(x0, x1)", "GeLU(t0)"), returns: (0, 1)}` and two `TupleGetItem`s

The members of a group have one shape; reductions over all, leading or trailing dimensions close it. Nodes keep their
order but for those of a group, which meet at the place of one of them: none moves before what it reads, behind what
reads it, or over an update of a parameter that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import cast

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.bases import Binary
from mspc.ops.fused.body import BodyLine, closes, fusible
from mspc.ops.fused.elementwise import FusedElementwise
from mspc.ops.math.comparison import Select
from mspc.ops.op import Op
from mspc.ops.tensor.broadcast import BroadcastTo, Reduce
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.rewriter import Rewriter, element, gathered, parts_of

MOST_OPERANDS = 16
MOST_LINES = 48
FARTHEST = 64
"""Nodes over which a member of a group may move: what moves farther keeps memory alive for long."""


@dataclass(frozen=True)
class FuseElementwise(Pass):
    """Fuse elementwise operators and the reductions behind them."""

    def run(self, graph: Graph) -> bool:
        changed = remove_dead(graph)  # nothing dead is fused
        order = _Order(graph)
        for number, node in enumerate(graph.nodes):
            order.place(number, node)
        groups = [slot for slot in order.slots if len(slot.members) > 1]
        if not groups:
            return changed
        _emit(graph, groups, order.updates)
        remove_dead(graph)  # broadcasts that only groups have read
        return True


@dataclass(eq=False)
class _Slot:
    """The place of a node that can be in a group, or of the members of a group in their old order.

    position: number of the node, or of the member, at that place. shape: what the members share. forward: whether
    they belong to the forward phase; groups do not mix the phases, as that would hold values from one to the other.
    inputs: what it reads of others. closing: members that are reductions. readers: slots that read a result;
    first_reader: the first node in no slot that does.
    """

    position: int
    members: list[tuple[int, Node]]
    shape: tuple[int, ...]
    forward: bool
    inputs: dict[Value, None]
    closing: set[Value]
    readers: set[_Slot] = field(default_factory=set["_Slot"])
    first_reader: int = 1 << 60


class _Order:
    """The new order as it grows by one node after the other; positions are the nodes' old numbers."""

    def __init__(self, graph: Graph) -> None:
        self.slots: list[_Slot] = []
        self.of: dict[Value, _Slot] = {}
        self.numbers: dict[Value, int] = {}
        self.updates = Updates(graph)

    def place(self, number: int, node: Node) -> None:
        """Add a node at the end, or to a group."""
        shape = _member_shape(node)
        copies = shape is not None and cast(Op, node.op).is_view and node.inputs[0] not in self.of
        if shape is None or copies:  # a copy of what no member makes would be for nothing
            self.numbers[node] = number
            for value in node.inputs:
                slot = self.of.get(value)
                if slot is not None and number < slot.first_reader:
                    slot.first_reader = number
            return
        closing: set[Value] = {node} if closes(node.op) else set()
        forward = node.phase == "forward"
        slot = _Slot(number, [(number, node)], shape, forward, dict.fromkeys(node.inputs), closing)
        self.of[node] = slot
        self.slots.append(slot)
        self._join(slot)
        slot = self.of[node]
        for value in node.inputs:
            source = self.of.get(value)
            if source is not None and source is not slot:
                source.readers.add(slot)

    def _join(self, new: _Slot) -> None:
        """Put a new node together with the groups that it reads, at the place of the last of these or at the end."""
        sources: dict[_Slot, None] = {}
        last = -1
        for value in new.inputs:
            slot = self.of.get(value)
            if slot is not None:
                sources[slot] = None
            last = max(last, slot.position if slot is not None else self.numbers.get(value, -1))
        groups = [
            slot for slot in sources
            if slot.shape == new.shape and slot.forward == new.forward and new.position - slot.position <= FARTHEST
        ]  # fmt: skip
        if not groups:
            return
        target = next((slot for slot in groups if slot.position == last), None)
        if target is not None and not self.updates.between(new.inputs, last, new.position):
            movable = self._movable([*groups, new], last)
            if target in movable and new in movable:
                self._merge(movable, target)
                return
        movable = self._movable([*groups, new], new.position)
        if len(movable) > 1 and new in movable:
            self._merge(movable, new)

    def _movable(self, slots: list[_Slot], place: int) -> list[_Slot]:
        """Those of the slots that can be one group at this position; the new one, the last, has no place yet."""
        new = slots[-1]
        found = [s for s in slots if s is new or not self.updates.between(s.inputs, s.position, place)]
        while found:
            bad = next((s for s in found if _stuck(s, found, place)), None)
            if bad is None and not _fit(found):
                bad = min(found, key=lambda s: s.position)
            if bad is None:
                break
            found.remove(bad)
        return found

    def _merge(self, slots: list[_Slot], target: _Slot) -> None:
        for slot in slots:
            if slot is target:
                continue
            target.members += slot.members
            target.inputs |= slot.inputs
            target.closing |= slot.closing
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


def _stuck(slot: _Slot, group: list[_Slot], place: int) -> bool:
    """Whether the slot cannot go there: a reader outside would come first, or the group would read its reduction."""
    if slot.first_reader <= place or any(r not in group and r.position <= place for r in slot.readers):
        return True
    return bool(slot.closing) and any(not slot.closing.isdisjoint(other.inputs) for other in group)


def _fit(slots: Sequence[_Slot]) -> bool:
    """Whether the slots are not too many operators and operands for one group."""
    if sum(len(slot.members) for slot in slots) > MOST_LINES:
        return False
    made = {node for slot in slots for _, node in slot.members}
    return len({value for slot in slots for value in slot.inputs} - made) <= MOST_OPERANDS


def _member_shape(node: Node) -> tuple[int, ...] | None:
    """The shape of the groups in which the node may be; None: it may be in none."""
    if not isinstance(node.type, TensorType) or _is_complex(node):
        return None
    if fusible(node.op):
        return node.type.shape
    if not closes(node.op) or not isinstance(node.inputs[0].type, TensorType):
        return None
    shape = node.inputs[0].type.shape
    axes = sorted(cast(Reduce, node.op).axes(len(shape))) or list(range(len(shape)))
    ends = axes == list(range(len(axes))) or axes == list(range(len(shape) - len(axes), len(shape)))
    return shape if ends else None


def _is_complex(node: Node) -> bool:
    """Whether it reads or makes complex numbers, for which fused kernels have no type."""
    return any(t.dtype.is_complex for v in (node, *node.inputs) for t in element_types(v.type))


def _emit(graph: Graph, groups: list[_Slot], updates: Updates) -> None:
    """The graph in the new order, every group as one node."""
    rewriter = Rewriter(graph)
    of = {node: slot for slot in groups for _, node in slot.members}
    returned = set(rewriter.results)
    for node in graph.nodes:
        own = of.get(node)
        for value in node.inputs:
            slot = of.get(value)  # type: ignore[call-overload]  # a Value that is no Node is in no group
            if slot is not None and slot is not own:
                returned.add(value)
    for slot in groups:
        members = [member for _, member in slot.members]
        results = [node for node in members if node in returned]
        fused, *parts = nodes = _fused(members, results, updates)
        rewriter.gone.update(members)
        rewriter.put(graph.nodes[slot.position], nodes)
        for node, part in zip(results, parts or [fused], strict=True):
            rewriter.replace(node, part)
    rewriter.apply()


def _fused(members: Sequence[Node], results: Sequence[Node], updates: Updates) -> list[Node]:
    """The node of a group and, where it has several results, a node for each."""
    lines: dict[Value, int] = {}
    operands: dict[Value, int] = {}
    steps: list[BodyLine] = []
    for node in members:
        inputs = _sources(node, updates)
        read = [("t", lines[v]) if v in lines else ("x", operands.setdefault(v, len(operands))) for v in inputs]
        lines[node] = len(steps)
        steps.append(BodyLine(cast(Op, node.op), tuple(read)))
    op = FusedElementwise.of(steps, [lines[node] for node in results])
    types = tuple(node.tensor_type for node in results)
    type: Type = types[0] if len(types) == 1 else TupleType(types)
    labels: list[str] = []
    for node in members:  # what was taken apart is named once
        labels += [label for label in parts_of(node) if "fused" not in node.attrs or label not in labels]
    fused = gathered(op, operands, type, members, labels)
    if len(results) == 1:
        fused.name = results[0].name
        return [fused]
    parts = [element(fused, i, node) for i, node in enumerate(results)]
    for part, node in zip(parts, results, strict=True):
        part.name = node.name
    return [fused, *parts]


def _sources(node: Node, updates: Updates) -> list[Value]:
    """The operands of a member; the operand of a broadcast where the operator broadcasts by itself."""
    if not isinstance(node.op, Binary | Select):
        return node.inputs
    plain = [
        v.inputs[0] if isinstance(v, Node) and isinstance(v.op, BroadcastTo) and not updates.changes(v.inputs[0]) else v
        for v in node.inputs
    ]
    return plain if any(v.shape == node.shape for v in plain) else node.inputs
