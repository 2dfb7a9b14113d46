"""Puts operators that work element by element, and read each other, into one that passes over memory once.

Input:  `%5 = Add(%4, %b)`, `%6 = GeLU(%5)`, and a gradient that reads %5 later
Output: `%5 = FusedElementwise(%4, %b) {body: ("Add(x0, x1)", "GeLU(t0)"), returns: (0, 1)}` and two `TupleGetItem`s

The members of a group have as many elements, which views between them give other shapes; reductions over all, leading
or trailing dimensions close it (in `fuse_rows` over any adjacent ones). A view of a member's result is a node
after the group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import cast

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Constant, Graph, Node, Value, element_types
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.bases import Binary, Elementwise
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import along_rows, by_element, closes, form_of, fusible, reshapes, row_axes
from mspc.ops.fused.kernel import cuts, operand_dims, row_of
from mspc.ops.math.arithmetic import Select
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import BroadcastTo, Reshape
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.fusion_groups import GroupSlot, LineTable, Member, NodeLines, NodeOrder, needed
from mspc.passes.fusion.rewriter import Rewriter, element, gathered, node_like, parts_of


class FuseElementwise(Pass):
    def run(self, graph: Graph) -> bool:
        changed = remove_dead(graph)  # nothing dead is fused
        return fuse_groups(graph, rows=False) or changed


def fuse_groups(graph: Graph, rows: bool) -> bool:
    """Put the members of all groups into one node each; whether there are any. rows: whether members may read
    reductions of rows."""
    order = NodeOrder(graph, row_member if rows else _plain_member, lambda node: cast(Op, node.op).is_view, rows)
    for number, node in enumerate(graph.nodes):
        order.place(number, node)
    groups = [slot for slot in order.slots if sum(not reshapes(node.op) for _, node in slot.members) > 1]
    if not groups:
        return False
    _Emission(graph, _with_views_in_place(groups, order), order.members).run()
    remove_dead(graph)  # broadcasts that only groups have read
    return True


def _with_views_in_place(groups: Sequence[GroupSlot], order: NodeOrder) -> list[GroupSlot]:
    """Return the groups, and single nodes with views that a group reads before the view's old position, or views of a
    group's results."""
    found = dict.fromkeys(groups)
    numbers = {node: number for slot in order.slots for number, node in slot.members}
    waiting = list(groups)
    while waiting:
        group = waiting.pop()
        moved = [slot for value in group.inputs if (slot := order.of.get(value)) is not None
                 and numbers[cast(Node, value)] > group.position]  # fmt: skip
        moved += [slot for slot in group.readers if any(
            number < group.position and any(order.of.get(value) is group for value in node.inputs)
            for number, node in slot.members
        )]  # fmt: skip
        for slot in moved:
            if slot not in found:
                found[slot] = None
                waiting.append(slot)
    return [slot for slot in order.slots if slot in found]


def _plain_member(node: Node, updates: Updates) -> Member | None:
    """Return a node as a member of a group that runs block by block, or None."""
    if isinstance(node.op, Op) and by_element(node.op) and not isinstance(node.op, Elementwise):
        types = [value.type for value in node.inputs]
        if not all(isinstance(type, TensorType) for type in types):
            return None
        if not fusible(form_of(node.op, cast("list[TensorType]", types))[0]):
            return None
    member = None if along_rows(node.op) else row_member(node, updates)
    if member is None or not member.reduces or member.row:
        return member
    axes = row_axes(cast(Op, node.op), [node.inputs[0].tensor_type]) or ()
    return member if sorted(axes) in (list(range(len(axes))), list(range(len(member.work)))[-len(axes) :]) else None


def row_member(node: Node, updates: Updates) -> Member | None:
    """Return a node as a member of a group with rows, or None."""
    if isinstance(node.op, TupleGetItem) or not isinstance(node.type, TensorType) or not isinstance(node.op, Op):
        return None
    if any(t.dtype.is_complex for v in (node, *node.inputs) for t in element_types(v.type)):
        return None  # fused kernels have no type for them
    if by_element(node.op):
        sources = plain_sources(node, updates)
        _, shapes = form_of(node.op, [value.tensor_type for value in sources])
        work = node.type.shape
        places = frozenset(
            place for shape in shapes if shape != work for place in cuts(work, operand_dims(work, shape))
        )
        return Member(work, list(zip(sources, shapes, strict=True)), places)
    if reshapes(node.op):
        return Member(node.type.shape, [(node.inputs[0], node.type.shape)], frozenset())
    if along_rows(node.op):
        work = node.type.shape
        axes = row_axes(node.op, [value.tensor_type for value in node.inputs]) or ()
        row = row_of(work, axes)
        places = frozenset(cuts(work, [d in axes for d in range(len(work))]))
        return Member(work, [(value, work) for value in node.inputs], places, row) if row else None
    if not closes(node.op) or not isinstance(node.inputs[0].type, TensorType):
        return None
    work = node.inputs[0].type.shape
    axes = row_axes(node.op, [node.inputs[0].type]) or ()
    taken = [d in axes for d, n in enumerate(work) if n != 1]
    if sum(1 for taken, _ in groupby(taken) if taken) > 1:
        return None
    places = frozenset(cuts(work, [d in axes for d in range(len(work))]))
    return Member(work, [(node.inputs[0], work)], places, row_of(work, axes), reduces=True)


class _Emission:
    """The graph in the new order: every group as one node, followed by views of its results."""

    def __init__(self, graph: Graph, groups: Sequence[GroupSlot], members: Mapping[Value, Member]) -> None:
        self.graph, self.groups, self.members = graph, groups, members
        self.rewriter = Rewriter(graph)
        self.slots = {node: slot for slot in groups for _, node in slot.members}

    def run(self) -> None:
        returned = set(self.rewriter.results)
        for node in self.graph.nodes:
            own = self.slots.get(node)
            for value in node.inputs:
                slot = self.slots.get(value)  # type: ignore[call-overload]  # a Value that is no Node is in no group
                if slot is not None and slot is not own:
                    returned.add(value)
        for slot in self.groups:
            self._group(slot, returned)
        self.rewriter.apply()

    def _group(self, slot: GroupSlot, returned: set[Value]) -> None:
        members = [member for _, member in slot.members]
        seen = [node for node in members if node in returned]
        roots = [node for node in members if any(node is self._root(other, slot) for other in seen)]
        nodes, made = self._fused(members, roots)
        self.rewriter.gone.update(members)
        for node in roots:
            self.rewriter.replace(node, made[node])
        for node in seen:
            root = self._root(node, slot)
            if root is not node:
                # In the shape of the node, whatever views came between.
                view = Reshape(node.shape)
                nodes.append(node_like(node, view, [self.rewriter.now(root)], node.type, takes=True))
                self.rewriter.replace(node, nodes[-1])
        self.rewriter.put(self.graph.nodes[slot.position], nodes)

    def _root(self, node: Node, slot: GroupSlot) -> Node:
        """Return the member that a member is a view of, or itself."""
        while reshapes(node.op) and self.slots.get(source := cast(Node, node.inputs[0])) is slot:
            node = source
        return node

    def _fused(self, members: Sequence[Node], results: Sequence[Node]) -> tuple[list[Node], dict[Node, Node]]:
        """Return the node of a group with one node for each of several results, and the result of every value. Members
        that compute the same share a line."""
        sources = {node: [value for value, _ in self.members[node].seen] for node in members}
        lines: dict[Value, tuple[str, int]] = {}
        table = LineTable()
        kept: list[Node] = []
        for node in needed(results, sources):
            lines[node] = table.add(cast(Op, node.op), [lines.get(v, v) for v in sources[node]])
            kept += [node] * (len(table.lines) - len(kept))
        if len(kept) == 1:
            (only,) = kept
            alone = node_like(only, cast(Op, only.op), sources[only], only.type, takes=True)
            return [alone], dict.fromkeys(results, alone)
        first = {lines[node]: node for node in reversed(results)}
        results_of = {line: first[line] for line in dict.fromkeys(lines[node] for node in results)}
        kernel = NodeLines(table.lines, tuple(number for _, number in results_of))
        types = tuple(node.tensor_type for node in results_of.values())
        type: Type = types[0] if len(types) == 1 else TupleType(types)
        labels: list[str] = []
        for node in kept:  # what was taken apart is named once
            labels += [label for label in parts_of(node) if "fused" not in node.attrs or label not in labels]
        fused = gathered(kernel.fused(), kernel.operands, type, kept, labels)
        if len(results_of) == 1:
            fused.name = results[0].name
            return [fused], dict.fromkeys(results, fused)
        parts = {line: element(fused, i, node) for i, (line, node) in enumerate(results_of.items())}
        for line, part in parts.items():
            part.name = results_of[line].name
        return [fused, *parts.values()], {node: parts[lines[node]] for node in results}


def plain_sources(node: Node, updates: Updates) -> list[Value]:
    """Return a member's operands, without broadcasts if the operator broadcasts, and a number for a tensor of equal
    elements."""
    if not isinstance(node.op, Binary | Select):
        return node.inputs
    plain = [_plain(value, updates) for value in node.inputs]
    return plain if any(v.shape == node.shape for v in plain) else node.inputs


def _plain(value: Value, updates: Updates) -> Value:
    """Return the value that a broadcast value is made from."""
    if not isinstance(value, Node) or not isinstance(value.type, TensorType) or not value.shape:
        return value
    if isinstance(value.op, BroadcastTo):
        return value if updates.changes(value.inputs[0]) else value.inputs[0]
    source: Value = value
    while isinstance(source, Node) and source.op.moves and len(source.inputs) == 1:
        source = source.inputs[0]
    made = source.op if isinstance(source, Node) and not source.inputs else None
    number = made.uniform() if isinstance(made, Op) else None
    return value if number is None else Constant(number, value.type.dtype)
