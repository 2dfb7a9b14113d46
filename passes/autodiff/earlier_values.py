"""Saves the value that an operator read of a parameter which changes before the operator's gradient reads it again.

Input:  `%1 = Mul(%0, %para_p)`, `%2 = Assign(%para_p, ...)`, a gradient that passes through %1
Output: `%1 = Identity(%para_p)`, `%2 = Mul(%0, %1)`, ... : the value as it was, which every reader of %1 gets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence

from mspc.analysis.aliasing import updated_parameters
from mspc.ir.copies import copied_node
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.types import StackType
from mspc.ops.control.structural import Gradient
from mspc.ops.math.elementwise import Identity


def keep_earlier_values(graph: Graph) -> None:
    """Give every operator on the way of a gradient its own value of a parameter that is changed behind it and before
    the request."""
    updated = updated_parameters(graph)
    changes: dict[Value, list[int]] = {}
    wanted: dict[int, dict[Value, None]] = {}
    for number, node in enumerate(graph.nodes):
        if isinstance(node.op, Gradient) and changes:
            for early, read in _early_reads(graph.nodes[:number], node, changes).items():
                wanted.setdefault(early, {}).update(read)
        for parameter in updated.get(number, ()):
            changes.setdefault(parameter, []).append(number)
    if not wanted:
        return
    nodes: list[Node] = []
    copies: dict[tuple[Value, int], Node] = {}
    for number, node in enumerate(graph.nodes):
        for read in wanted.get(number, ()):
            kept: dict[Value, Value] = {}
            for parameter in _shown(read):
                version = parameter, bisect_right(changes.get(parameter, ()), number)
                if version not in copies:
                    copies[version] = _copy(parameter, node)
                    nodes.append(copies[version])
                kept[parameter] = copies[version]
            if isinstance(read, Node):  # a stack of parameters, which others overwrite through it
                kept[read] = copied_node(read, [kept[parameter] for parameter in read.inputs])
                nodes.append(kept[read])  # type: ignore[arg-type]  # the copy of a node
            node.inputs = [kept[read] if value is read else value for value in node.inputs]
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
                copies[value] = _copy(value, node)
                nodes.append(copies[value])
            node.inputs = [copies[value] if operand is value else operand for operand in node.inputs]
        nodes.append(node)
        for value in written:
            copies.pop(value, None)
    region.nodes = nodes


def _copy(value: Value, reader: Node) -> Node:
    return Node(Identity(), [value], value.type, "", "", reader.scope, reader.frames, reader.phase)


def _shown(value: Value) -> Sequence[Value]:
    """A parameter, or those that are the entries of a stack."""
    if isinstance(value, Parameter):
        return (value,)
    if not isinstance(value, Node) or not isinstance(value.type, StackType):
        return ()
    return value.inputs if all(isinstance(entry, Parameter) for entry in value.inputs) else ()


def _early_reads(nodes: list[Node], request: Node, changes: dict[Value, list[int]]) -> dict[int, dict[Value, None]]:
    """By position, the parameters, and stacks of parameters, that a node reads before they are changed, for nodes that
    the results come from."""
    found: dict[int, dict[Value, None]] = {}
    ancestors: set[Value] = set(request.inputs)
    for number in range(len(nodes) - 1, -1, -1):
        node = nodes[number]
        if node not in ancestors:
            continue
        ancestors.update(node.inputs)
        if node.op.mutates and not node.op.updates_aside and not node.regions:
            continue
        if _shown(node):
            continue  # who reads the stack reads them
        written = {node.inputs[operand] for operand in node.op.mutates}
        read = [value for value in node.inputs if value not in written]
        early = dict.fromkeys(v for v in read if any(changes.get(p, [-1])[-1] > number for p in _shown(v)))
        if early:
            found[number] = early
    return found
