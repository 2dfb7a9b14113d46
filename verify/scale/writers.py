"""Finds which nodes of a program overwrite what is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mspc.ir.graph import Graph, Node, Value
from mspc.ops.control.regions import MakeStack
from mspc.ops.control.structural import Depend
from mspc.verify.scale.compared import Compared

Names = frozenset[str]


def written(graph: Graph) -> dict[Node, Names]:
    """The nodes of a program, and of those that it runs, that overwrite parameters, alone or in a stack, with their
    names."""
    found: dict[Node, Names] = {}
    _walk(graph, {parameter: Names((parameter.name,)) for parameter in graph.parameters}, found)
    return found


def _walk(graph: Graph, named: Mapping[Value, Names], found: dict[Node, Names]) -> None:
    known = {**named}
    for node in graph.nodes:
        names = [known.get(value, Names()) for value in node.inputs]
        if isinstance(node.op, MakeStack):
            known[node] = Names().union(*names)
        elif node.regions:
            _inside(node, names, found)
        elif node.op.mutates:
            own = Names().union(*(names[i] for i in node.op.mutates))
            if own:
                found[node] = found.get(node, Names()) | own


def _inside(node: Node, names: Sequence[Names], found: dict[Node, Names]) -> None:
    op: Any = node.op
    types = [value.type for value in node.inputs]
    for number, region in enumerate(node.regions):
        named: dict[Value, Names] = {}
        for own, places in zip(names, op.places(number, types), strict=True):
            for place in places:
                if own and place < len(region.parameters):
                    named[region.parameters[place]] = own
        _walk(region, named, found)


def makers(graph: Graph, rows: Sequence[Compared]) -> list[Node]:
    """The nodes of a program that compute the compared values."""
    results = [_without_order(graph.results[int(row.name)]) for row in rows if row.what == "result"]
    names = {row.name for row in rows if row.what == "parameter"}
    found = [node for node, own in written(graph).items() if not names.isdisjoint(own)] if names else []
    return [*(value for value in results if isinstance(value, Node)), *found]


def _without_order(value: Value) -> Value:
    """The value that a result has, if it only waits for others."""
    while isinstance(value, Node) and isinstance(value.op, Depend):
        value = value.inputs[0]
    return value


def writer_of_others(graph: Graph, one: Graph, update: Node) -> Node | None:
    """The node of a program that writes other parameters that an update of one device writes."""
    names = written(one)[update]
    return next((node for node, own in written(graph).items() if not names.isdisjoint(own)), None)
