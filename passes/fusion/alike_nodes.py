"""Finds nodes that one operator can do together, in the place of the last of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import field

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass

MOST_MEMBERS = 64
HELD = 64 << 20
"""Bytes of operands, made between the members of a group, that may wait for its last member."""


@dataclass(eq=False)
class _Group:
    """Nodes that become one. start: number of the first. held: bytes of operands that wait. open: whether another may
    join."""

    start: int
    members: list[Node] = field(default_factory=list[Node])
    held: int = 0
    open: bool = True


def groups_of_alike(
    graph: Graph, key_of: Callable[[Node], Hashable], followers: Mapping[Node, Node]
) -> list[list[Node]]:  # fmt: skip
    """The groups of several nodes. A group is closed by who reads a member, and by what changes its operands.

    Args:
        key_of: equal for nodes that are alike; None for those that stay. followers: a member's only reader that becomes
            a part of it.
    """
    updates = Updates(graph)
    numbers: dict[Value, int] = {node: number for number, node in enumerate(graph.nodes)}
    current: dict[Hashable, _Group] = {}
    group_of: dict[Value, _Group] = {}
    found: list[_Group] = []
    for number, node in enumerate(graph.nodes):
        for value in node.inputs:
            group = group_of.get(value)
            if group is None:
                continue
            if isinstance(value, Node) and followers.get(value) is node:
                group_of[node] = group
            else:
                group.open = False
        key = key_of(node)
        if key is None:
            continue
        group = current.get(key)
        if group is None or not _takes(group, node, number, updates, numbers):
            group = current[key] = _Group(number)
            found.append(group)
        group.held += _waiting(group, node, numbers)
        group.members.append(node)
        group_of[node] = group
    return [group.members for group in found if len(group.members) > 1]


def _takes(group: _Group, node: Node, number: int, updates: Updates, numbers: Mapping[Value, int]) -> bool:
    """Whether a node may join: what the members read is still the same there, and not too much of it waits."""
    if not group.open or len(group.members) == MOST_MEMBERS or group.held + _waiting(group, node, numbers) > HELD:
        return False
    return not updates.between([value for member in group.members for value in member.inputs], group.start, number)


def _waiting(group: _Group, node: Node, numbers: Mapping[Value, int]) -> int:
    """Bytes of the node's operands that are made behind the group's first member."""
    return sum(value.type.nbytes for value in node.inputs if numbers.get(value, -1) > group.start)
