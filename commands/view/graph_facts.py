"""The page holds a graph as a column for every fact of its nodes, so that a fact costs a number a node."""

from __future__ import annotations

from typing import Any

from mspc.commands.facts.phases import phase_of
from mspc.commands.view.tables import NodeTables
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, element_layouts
from mspc.ir.opaque import Literal
from mspc.ir.text.facts import PHASES
from mspc.ir.text.printer import strategy_text
from mspc.ir.text.values import constant_text, key_text, value_text
from mspc.ops.fused.elementwise import FusedElementwise
from mspc.ops.fused.grouped_update import GroupedUpdate

SMALL = 64
"""Elements of a constant that the page holds."""
SAID_APART = ("reason", "fused", "stream")
"""Further facts of nodes that have columns of their own."""
HIDDEN = ("body", "rank_list", "group")
"""Fields of operators that the page shows in another way."""


def graph_columns(graph: Graph, tables: NodeTables) -> dict[str, Any]:
    """The columns of a graph.

    An operand is the number of its node; parameter p is -1 - p; constant k is the number of nodes + k. `phases` names
    the phases by number. `body` has the lines of nodes that are several operators, `gradient_of` the node and operand
    whose gradient a node is.
    """
    writer = _GraphColumns(graph, tables)
    return {"name": graph.name, "attrs": _texts(graph.attrs), "parameters": writer.parameters(), **writer.nodes()}


class _GraphColumns:
    """One graph on its way into columns."""

    def __init__(self, graph: Graph, tables: NodeTables) -> None:
        self.graph, self.tables = graph, tables
        self.places: dict[Value, int] = {node: i for i, node in enumerate(graph.nodes)}
        self.places |= {parameter: -1 - i for i, parameter in enumerate(graph.parameters)}
        self.constants: list[int] = []
        self._known: dict[str, int] = {}
        self.phase_names = list(PHASES)

    def parameters(self) -> dict[str, list[Any]]:
        string, type_of = self.tables.string, self.tables.type
        found: dict[str, list[Any]] = {key: [] for key in ("name", "kind", "trainable", "type", "whole", "layout")}
        for parameter in self.graph.parameters:
            found["name"].append(string(parameter.name))
            found["kind"].append(string(parameter.kind))
            found["trainable"].append(int(parameter.trainable))
            found["type"].append(type_of(parameter.type))
            global_type = parameter.global_type if parameter.global_type is not None else parameter.type
            found["whole"].append(type_of(global_type))
            found["layout"].append(self.tables.layouts(element_layouts(parameter.layout)))
        return found

    def nodes(self) -> dict[str, Any]:
        names = ("op", "value", "instance", "scope", "phase", "inputs", "type", "layout", "stack", "fields", "facts",
                 "reason", "stream")  # fmt: skip
        columns: dict[str, list[Any]] = {name: [] for name in names}
        body: dict[int, list[int]] = {}
        gradient_of: dict[int, list[int]] = {}
        for index, node in enumerate(self.graph.nodes):
            for name, value in zip(names, self._row(node), strict=True):
                columns[name].append(value)
            lines = _lines_of(node)
            if lines:
                body[index] = [self.tables.string(line) for line in lines]
            if node.forward is not None and node.forward in self.places:
                gradient_of[index] = [self.places[node.forward], node.forward_input]
        results = [self._operand(value) for value in self.graph.results]
        return {
            "phases": self.phase_names, "nodes": columns, "body": body, "gradient_of": gradient_of,
            "results": results, "constants": self.constants,
        }  # fmt: skip

    def _row(self, node: Node) -> tuple[Any, ...]:
        string = self.tables.string
        phase = phase_of(node)
        if phase not in self.phase_names:
            self.phase_names.append(phase)
        return (
            string(node.op.name), string(node.name), string(node.instance), string(node.scope),
            self.phase_names.index(phase), [self._operand(value) for value in node.inputs],
            self.tables.type(node.type), self.tables.layouts(element_layouts(node.layout)),
            self.tables.stack(node.frames), string(_fields(node)),
            string(", ".join(_texts({k: v for k, v in node.attrs.items() if k not in SAID_APART}))),
            string(str(node.attrs.get("reason", ""))), string(str(node.attrs.get("stream", ""))),
        )  # fmt: skip

    def _operand(self, value: Value) -> int:
        place = self.places.get(value)
        return len(self.graph.nodes) + self._constant(value) if place is None else place

    def _constant(self, value: Value) -> int:
        text = _constant_text(value)
        if text not in self._known:
            self._known[text] = len(self.constants)
            self.constants.append(self.tables.string(text))
        return self._known[text]


def _constant_text(value: Value) -> str:
    if isinstance(value, Constant):
        if value.value.size <= SMALL:
            return constant_text(value)
        return f"Tensor(shape={list(value.shape)}, dtype={value.tensor_type.dtype}, {value.value.size} elements)"
    if isinstance(value, Literal):
        return value_text(value.value)
    return value.name if isinstance(value, Parameter | Node) and value.name else str(value.type)


def _fields(node: Node) -> str:
    """The operator's own attributes and the strategies that were given, as in the text."""
    found = _texts({key: value for key, value in node.op.attributes().items() if key not in HIDDEN})
    for side, strategy in (("in", node.in_strategy), ("out", node.out_strategy)):
        if strategy is not None:
            found.append(strategy_text(side, strategy))
    if node.strategy is not None:
        found.append(f"strategy: {value_text(node.strategy)}")
    return ", ".join(found)


def _texts(attributes: Any) -> list[str]:
    return [f"{key_text(key)}: {value_text(value)}" for key, value in attributes.items()]


def _lines_of(node: Node) -> list[str]:
    """What a node consists of where it is several operators, a line for each; else nothing."""
    said = node.attrs.get("fused", ())
    members = [str(member) for member in said] if isinstance(said, tuple) else []
    if isinstance(node.op, FusedElementwise):
        lines = [f"t{i} = {line}" for i, line in enumerate(node.op.body)]
        if len(members) != len(lines):
            return lines
        return [f"{line}    # {member}" for line, member in zip(lines, members, strict=True)]
    if isinstance(node.op, GroupedUpdate):
        return [f"{node.op.update}    # {m}" for m in members] or [node.op.update] * node.op.count
    return members
