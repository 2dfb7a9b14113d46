"""Writes nodes that run graphs for a `.mindir` file, in which graphs call each other.

A choice is a `Switch` of two graphs that are given what they read (`Partial`), and a call of what it gives. A loop is a
graph that chooses between another turn, whose last step calls it again, and a graph that gives what the loop carries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, Self

import numpy as np

from mspc.checkpoint.mindir import CALL
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.types import TensorType, Type
from mspc.ops.control.regions import COUNT, For, If, Loop, While

REGIONS = ("If", "While", "For", "Call")
"""Operators that are written so."""


class GraphWriter(Protocol):
    """What writes one graph of a file. functions_of: the names of graphs that are written as functions."""

    name: str
    inputs: Mapping[str, TensorType]
    names: dict[Value, str]
    functions: set[str]
    functions_of: dict[Graph, str]

    @property
    def called(self) -> Collection[str]:
        """The names of the graphs that are written, but for the first."""
        ...

    def inside(self, name: str, inputs: Mapping[str, TensorType]) -> Self:
        """What writes a graph of this name that this one calls; `finish` adds it."""
        ...

    def finish(self, output: str) -> None:
        """Add the graph of this writer, which gives `output`, to those that are called."""

    def add(self, nodes: Sequence[Node]) -> None:
        """Add these nodes."""

    def name_of(self, value: Value) -> str:
        """How nodes name a value."""
        ...

    def constant(self, value: Any) -> str:
        """The name of a constant."""
        ...

    def node(self, operator: str, inputs: Sequence[str], attributes: dict[str, Any], type: Type | None) -> str:
        """Add a node; its name."""
        ...


def write_regions(writer: GraphWriter, node: Node, operands: Sequence[str]) -> str:
    """Add a node that runs graphs, and these; the name of its result, a tuple.

    Raises:
        MspcError: it scans, or keeps what every turn computes.
    """
    op = node.op
    if isinstance(op, If):
        calls = [writer.node("Partial", [_function(writer, each), *operands[1:]], {}, None) for each in node.regions]
        return writer.node(CALL, [writer.node("Switch", [operands[0], *calls], {}, None)], {}, None)
    if isinstance(op, Loop):
        if op.scanned or op.stacked or (isinstance(op, While) and op.counted):
            raise node.error(f"export: {node.label} reads or keeps something of every turn, which is not written")
        return _write_loop(writer, node, op, operands)
    return writer.node(CALL, [_function(writer, node.regions[0]), *operands], {}, None)


def _function(writer: GraphWriter, region: Graph) -> str:
    """The name of a graph, which is written where it is not yet: it gives a tuple of the region's results."""
    if region not in writer.functions_of:
        own = _begun(writer, region, region.name)
        writer.functions_of[region] = own.name
        own.add(region.nodes)
        own.finish(_tuple(own, region.results))
    return writer.functions_of[region]


def _begun(writer: GraphWriter, region: Graph, name: str, more: dict[str, TensorType] | None = None) -> GraphWriter:
    """A writer of a graph with the parameters of a region, and of `more` ahead of them."""
    names = {parameter: f"{name}:{parameter.name}" for parameter in region.parameters}
    own = writer.inside(name, {**(more or {}), **{names[each]: each.tensor_type for each in region.parameters}})
    own.names |= names
    return own


def _tuple(writer: GraphWriter, values: Sequence[Value]) -> str:
    return writer.node("MakeTuple", [writer.name_of(value) for value in values], {}, None)


def _write_loop(writer: GraphWriter, node: Node, op: Loop, operands: Sequence[str]) -> str:
    """The call of a loop's head. Its inputs are those of the body, for a `For` behind the number of turns."""
    body = node.regions[-1]
    counts = isinstance(op, For)
    head = f"{body.name}_head"
    first = [*operands]
    if counts:
        turns = operands[0] if op.first else writer.constant(np.array(op.known_turns(()), np.int64))
        first = [turns, writer.constant(np.array(0, np.int64)), *operands[op.first :]]
    if head not in writer.called:
        _write_head(writer, node, op, head)
        _write_body(writer, node, op, head)
        _write_end(writer, body, op)
    return writer.node(CALL, [head, *first], {}, None)


def _write_head(writer: GraphWriter, node: Node, op: Loop, name: str) -> None:
    body = node.regions[-1]
    limit = f"{name}:turns"
    counts = isinstance(op, For)
    own = _begun(writer, body if counts else node.regions[0], name, {limit: COUNT} if counts else {})
    given = [*own.inputs]
    if isinstance(op, For):
        condition = own.node("Less", [given[1], limit], {}, None)
    else:
        own.add(node.regions[0].nodes)
        condition = own.name_of(node.regions[0].results[0])
    own.functions.add("Less")
    turn = own.node("Partial", [f"{body.name}_turn", *given], {}, None)
    begin = len(given) - len(body.parameters) + op.leading
    end = own.node("Partial", [f"{body.name}_end", *given[begin : begin + op.carried]], {}, None)
    own.finish(own.node(CALL, [own.node("Switch", [condition, turn, end], {}, None)], {}, None))


def _write_body(writer: GraphWriter, node: Node, op: Loop, head: str) -> None:
    """A turn, whose last step calls the head with what it carries on."""
    body = node.regions[-1]
    name = f"{body.name}_turn"
    limit = f"{name}:turns"
    own = _begun(writer, body, name, {limit: COUNT} if isinstance(op, For) else {})
    given = [*own.inputs]
    ahead: list[str] = []
    if isinstance(op, For):
        one = own.constant(np.array(1, np.int64))
        ahead = [limit, own.node("Add", [given[1], one], {}, None)]
        own.functions |= {"Add", "Sub"}
        if op.reverse:
            last = own.node("Sub", [limit, one], {}, None)
            own.names[body.parameters[0]] = own.node("Sub", [last, given[1]], {}, None)
    own.add(body.nodes)
    carried = [own.name_of(value) for value in body.results]
    own.finish(own.node(CALL, [head, *ahead, *carried, *given[len(ahead) + op.carried :]], {}, None))


def _write_end(writer: GraphWriter, body: Graph, op: Loop) -> None:
    """What the head calls behind the last turn: it gives what the loop carries."""
    name = f"{body.name}_end"
    carried = body.parameters[op.leading : op.leading + op.carried]
    own = writer.inside(name, {f"{name}:{each.name}": each.tensor_type for each in carried})
    own.finish(own.node("MakeTuple", [*own.inputs], {}, None))
