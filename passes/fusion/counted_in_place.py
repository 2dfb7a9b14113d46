"""Counters are added to where they lie, so that many of them are one launch as other updates are.

Input:  `%1 = Add(count, 1)`, `%9 = Assign(count, %1)`. Output: `%9 = AssignAdd(count, 1)`
"""

from __future__ import annotations

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ops.math.arithmetic import Add
from mspc.ops.optim.optimizer import Assign, AssignAdd


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
    """The constant of a sum with a variable, in its type."""
    if not isinstance(total.op, Add) or not isinstance(variable, Parameter):
        return None
    for one, other in (total.inputs, total.inputs[::-1]):
        if one is variable and isinstance(other, Constant) and other.type == variable.type:
            return other
    return None
