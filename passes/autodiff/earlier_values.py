"""Saves the value that an operator read of a parameter which changes before the operator's gradient reads it again.

Input:  `%1 = Mul(%0, %para_p)`, `%2 = Assign(%para_p, ...)`, a gradient that passes through %1
Output: `%1 = Identity(%para_p)`, `%2 = Mul(%0, %1)`, ... : the value as it was, which every reader of %1 gets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ops.control.structural import Gradient
from mspc.ops.math.elementwise import Identity


def keep_earlier_values(graph: Graph) -> None:
    """Give every operator on the way of a gradient its own value of a parameter that is changed behind it and before
    the request."""
    changes: dict[Value, list[int]] = {}
    wanted: dict[int, dict[Parameter, None]] = {}
    for number, node in enumerate(graph.nodes):
        if isinstance(node.op, Gradient) and changes:
            for early, parameters in _early_reads(graph.nodes[:number], node, changes).items():
                wanted.setdefault(early, {}).update(parameters)
        for operand in node.op.mutates:
            changes.setdefault(node.inputs[operand], []).append(number)
    if not wanted:
        return
    nodes: list[Node] = []
    copies: dict[tuple[Value, int], Node] = {}
    for number, node in enumerate(graph.nodes):
        for parameter in wanted.get(number, ()):
            version = parameter, bisect_right(changes[parameter], number)
            if version not in copies:
                copy = Node(Identity(), [parameter], parameter.type, "", "", node.scope, node.frames, node.phase)
                nodes.append(copy)
                copies[version] = copy
            node.inputs = [copies[version] if value is parameter else value for value in node.inputs]
        nodes.append(node)
    graph.nodes = nodes


def keep_overwritten(region: Graph, overwritten: Collection[Value], readers: Collection[Value]) -> None:
    """Give the nodes of a region that are among `readers` their own values of the parameters that the region
    overwrites: its gradient runs when all of it has run."""
    nodes: list[Node] = []
    copies: dict[Value, Node] = {}
    for node in region.nodes:
        written = {node.inputs[operand] for operand in node.op.mutates}
        for value in dict.fromkeys(node.inputs) if node in readers else ():
            if value not in overwritten or value in written:
                continue
            if value not in copies:
                copy = Node(Identity(), [value], value.type, "", "", node.scope, node.frames, node.phase)
                nodes.append(copy)
                copies[value] = copy
            node.inputs = [copies[value] if operand is value else operand for operand in node.inputs]
        nodes.append(node)
        for value in written:
            copies.pop(value, None)
    region.nodes = nodes


def _early_reads(nodes: list[Node], request: Node, changes: dict[Value, list[int]]) -> dict[int, dict[Parameter, None]]:
    """By position, the parameters that a node reads before they are changed, for nodes that the results come from."""
    found: dict[int, dict[Parameter, None]] = {}
    ancestors: set[Value] = set(request.inputs)
    for number in range(len(nodes) - 1, -1, -1):
        node = nodes[number]
        if node not in ancestors:
            continue
        ancestors.update(node.inputs)
        if node.op.mutates and not node.op.updates_aside and not node.regions:
            continue
        written = {node.inputs[operand] for operand in node.op.mutates}
        read = [v for v in node.inputs if isinstance(v, Parameter) and v not in written]
        early = dict.fromkeys(v for v in read if changes.get(v, [-1])[-1] > number)
        if early:
            found[number] = early
    return found
