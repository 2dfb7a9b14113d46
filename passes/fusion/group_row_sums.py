"""Puts sums of rows by integers, as the gradients of lookups are, into one operator where they are alike.

Input:  `%8 = GatherGrad(%5, %1) {size: 40}`, `%9 = GatherGrad(%6, %2) {size: 60}`
Output: `%8 = GroupedRowSums(%5, %1, %6, %2) {sums: ("GatherGrad(size=40, ...)", "GatherGrad(size=60, ...)")}` and what
takes its result apart

On a GPU each is some small kernels, and those of a group are the kernels of one. Alike are sums of as many rows, of as
many elements, in the same types; the tables may differ in size. A group takes the place of its last member.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import field

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Graph, Node, Value, operand_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, TupleType
from mspc.ops.fused.grouped_row_sums import GroupedRowSums
from mspc.ops.op import Op
from mspc.ops.tensor.embedding import RowSums
from mspc.passes.base import Pass
from mspc.passes.fusion.kernel_lines import looked_at
from mspc.passes.fusion.rewriter import Rewriter, parts_of, successor

MOST_MEMBERS = 64
HELD = 64 << 20
"""Bytes of operands, made between the members of a group, that may wait for its last member."""


@dataclass(frozen=True)
class GroupRowSums(Pass):
    """Group sums of rows."""

    def run(self, graph: Graph) -> bool:
        if sum(isinstance(node.op, RowSums) for node in graph.nodes) < 2:
            return False
        rewriter = Rewriter(graph)
        for group in _groups(graph):
            if len(group.members) > 1:
                _join(rewriter, group.members)
        return rewriter.apply()


@dataclass(eq=False)
class _Group:
    """Sums that become one. start: number of the first. held: bytes of operands that wait. open: whether another may
    join."""

    start: int
    members: list[Node] = field(default_factory=list[Node])
    held: int = 0
    open: bool = True


def _groups(graph: Graph) -> list[_Group]:
    """The groups, of one member too. A group is closed by who reads a member, and by what changes its operands."""
    updates = Updates(graph)
    numbers: dict[Value, int] = {node: number for number, node in enumerate(graph.nodes)}
    current: dict[Hashable, _Group] = {}
    group_of: dict[Value, _Group] = {}
    found: list[_Group] = []
    for number, node in enumerate(graph.nodes):
        for value in node.inputs:
            if value in group_of:
                group_of[value].open = False
        if not isinstance(node.op, RowSums):
            continue
        key = _key(node, node.op)
        group = current.get(key)
        if group is None or not _takes(group, node, number, updates, numbers):
            group = current[key] = _Group(number)
            found.append(group)
        group.held += _waiting(group, node, numbers)
        group.members.append(node)
        group_of[node] = group
    return found


def _takes(group: _Group, node: Node, number: int, updates: Updates, numbers: Mapping[Value, int]) -> bool:
    """Whether a node may join: what the members read is still the same there, and not too much of it waits."""
    if not group.open or len(group.members) == MOST_MEMBERS or group.held + _waiting(group, node, numbers) > HELD:
        return False
    return not updates.between([value for member in group.members for value in member.inputs], group.start, number)


def _waiting(group: _Group, node: Node, numbers: Mapping[Value, int]) -> int:
    """Bytes of the node's operands that are made behind the group's first member."""
    return sum(value.type.nbytes for value in node.inputs if numbers.get(value, -1) > group.start)


def _key(node: Node, op: RowSums) -> Hashable:
    """Equal for sums that one set of kernels can do."""
    rows, ids = operand_types(node)
    lookup = op.lookup(rows.shape, ids.shape)
    return rows.dtype, ids.dtype, lookup.batch, lookup.middle, lookup.inner, lookup.count, node.phase


def _join(rewriter: Rewriter, members: list[Node]) -> None:
    ops = [looked for m in members if isinstance(m.op, Op) and isinstance(looked := looked_at(m.op), RowSums)]
    types = [member.type for member in members if isinstance(member.type, TensorType)]
    last = members[-1]
    inputs = [value for member in members for value in member.inputs]
    grouped = Node(GroupedRowSums.of(ops), inputs, TupleType(tuple(types)), scope=last.scope, frames=last.frames,
                   phase=last.phase)  # fmt: skip
    grouped.attrs = {"fused": tuple(part for member in members for part in parts_of(member))}
    elements = [successor(grouped, index, member) for index, member in enumerate(members)]
    for member, element in zip(members, elements, strict=True):
        rewriter.replace(member, element)
    rewriter.gone.update(members)
    rewriter.put(last, [grouped, *elements])
