"""Graphs in the form of the page: one column for every fact of the nodes, so that a fact costs one number per node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mspc.analysis.cost.machine import COLLECTIVES
from mspc.analysis.cost.nodes import seconds
from mspc.commands.facts.graph import GraphFacts, phase_of
from mspc.commands.facts.origins import origins_of
from mspc.commands.view.page_tables import NodeTables
from mspc.commands.view.stages import message_facts, rounded
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, element_layouts
from mspc.ir.opaque import Literal, OpaqueOp
from mspc.ir.text.facts import PHASES
from mspc.ir.text.printer import constant_text, key_text, strategy_text, value_text
from mspc.ops.collective.base import Collective
from mspc.ops.control.regions import ONCE, Times, times_of
from mspc.ops.fused.elementwise import FusedElementwise
from mspc.ops.fused.updates import GroupedUpdate

SMALL = 64
"""Most elements of a constant that the page contains."""
SAID_APART = ("reason", "fused", "stream")
"""Attributes of nodes that have columns of their own."""
HIDDEN = ("body", "rank_list", "group")
"""Fields of operators that the page shows in a different form."""


def graph_columns(graph: Graph, tables: NodeTables) -> dict[str, Any]:
    """Return the columns of a graph.

    An operand is the number of its node; parameter p is -1 - p; constant k is the number of nodes + k. `phases` names
    the phases by number. `body` has the lines of nodes that are several operators. `gradient_of` has the node and the
    operand for which a node computes the gradient.
    """
    writer = _GraphColumns(graph, tables)
    return {"name": graph.name, "attrs": _texts(graph.attrs), "parameters": writer.parameters(), **writer.nodes()}


class _GraphColumns:
    """Writer of the columns of one graph."""

    def __init__(self, graph: Graph, tables: NodeTables) -> None:
        self.graph, self.tables = graph, tables
        self.places: dict[Value, int] = {node: i for i, node in enumerate(graph.nodes)}
        self.places |= {parameter: -1 - i for i, parameter in enumerate(graph.parameters)}
        self.constants: list[int] = []
        self._known: dict[str, int] = {}
        self.phase_names = list(PHASES)

    def parameters(self) -> dict[str, list[Any]]:
        string, type_of = self.tables.string, self.tables.type
        rows = [
            (
                string(parameter.name), string(parameter.kind), int(parameter.trainable), type_of(parameter.type),
                type_of(parameter.type if parameter.global_type is None else parameter.global_type),
                self.tables.layouts(element_layouts(parameter.layout)),
            )
            for parameter in self.graph.parameters
        ]  # fmt: skip
        return _columns(("name", "kind", "trainable", "type", "whole", "layout"), rows)

    def nodes(self) -> dict[str, Any]:
        names = ("op", "value", "instance", "scope", "phase", "inputs", "type", "layout", "stack", "fields", "facts",
                 "reason", "stream", "provenance")  # fmt: skip
        rows: list[Sequence[Any]] = []
        body: dict[int, list[int]] = {}
        for index, node in enumerate(self.graph.nodes):
            rows.append(self._row(node))
            if lines := _lines_of(node):
                body[index] = [self.tables.string(line) for line in lines]
        return {
            "phases": self.phase_names,
            "nodes": _columns(names, rows),
            "body": body,
            "gradient_of": {
                index: [self.places[node.forward], node.forward_input]
                for index, node in enumerate(self.graph.nodes)
                if node.forward is not None and node.forward in self.places
            },
            "results": [self._operand(value) for value in self.graph.results],
            "constants": self.constants,
        }

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
            string(node.provenance),
        )  # fmt: skip

    def _operand(self, value: Value) -> int:
        if value in self.places:
            return self.places[value]
        text = _constant_text(value)
        if text not in self._known:
            self._known[text] = len(self.constants)
            self.constants.append(self.tables.string(text))
        return len(self.graph.nodes) + self._known[text]


def _columns(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _constant_text(value: Value) -> str:
    if isinstance(value, Constant):
        if value.value.size <= SMALL:
            return constant_text(value)
        return f"Tensor(shape={list(value.shape)}, dtype={value.tensor_type.dtype}, {value.value.size} elements)"
    if isinstance(value, Literal):
        return value_text(value.value)
    return value.name if isinstance(value, Parameter | Node) and value.name else str(value.type)


def _fields(node: Node) -> str:
    """Return the operator's own attributes and the strategies given by the user, in the form of the dump's text."""
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
    """Return one line for each operator of a node that consists of several; [] for other nodes."""
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


def add_regions(graphs: list[dict[str, Any]], roots: Sequence[GraphFacts], plan: int, tables: NodeTables) -> None:
    """Append the graphs that the nodes of `roots` run, each once, and record for all graphs which ones they run.

    `graphs` has the content of `roots`, in the same order. The `regions` of a graph are, by node, the numbers of the
    graphs that the node runs. A graph run by a node also has `root`, the number of the root that contains it; `runs`,
    how often a step runs it, in words; and `planned`, the number of its counterpart in the graph of all ranks, which
    has the number `plan`: -1 if there is none.
    """
    numbers = {root.graph: number for number, root in enumerate(roots)}
    planned: dict[str, Graph] = {}
    for number in sorted(range(len(roots)), key=lambda number: number != plan):  # the graph of all ranks first
        root = roots[number]
        times = times_of(root.graph)
        for graph in root.graph.graphs()[1:]:
            numbers[graph] = len(graphs)
            like = planned.get(graph.name)
            graphs.append({
                "kind": graphs[number]["kind"], **graph_columns(graph, tables), "root": number,
                "runs": tables.string(times[graph].text), "planned": -1 if like is None else numbers[like],
                "collectives": collective_facts(replace(root, graph=graph), times[graph]),
                **({} if like is None else origins_of(graph, like)),
            })  # fmt: skip
            if number == plan:
                planned[graph.name] = graph
    for graph, number in numbers.items():
        inside = {i: [numbers[region] for region in node.regions] for i, node in enumerate(graph.nodes) if node.regions}
        if inside:
            graphs[number]["regions"] = inside


Strides = tuple[tuple[int, int], ...]
"""(size, stride) of every axis of a group, the slowest first."""


def strides_of_axes(mesh: Sequence[int], axes: Sequence[int]) -> Strides:
    """Return the strides of a group along some axes of a mesh."""
    return tuple((mesh[a], math.prod(mesh[a + 1 :])) for a in axes)


def strides_of_members(members: Sequence[int]) -> Strides | None:
    """Return the strides of a group from its members; None if the members have no regular strides.

    The first run of equal steps is the innermost axis; the first members of the runs are again a group.
    """
    strides: Strides = ()
    heads = members
    while len(heads) > 1:
        step, size = heads[1] - heads[0], 2
        while size < len(heads) and heads[size] - heads[size - 1] == step:
            size += 1
        if step <= 0:
            return None
        strides, heads = ((size, step), *strides), heads[::size]
    return strides if not members or members_of(strides, members[0]) == tuple(members) else None


def members_of(strides: Strides, rank: int) -> tuple[int, ...]:
    """Return the group of a rank from the strides of its axes."""
    base = rank - sum(rank // stride % size * stride for size, stride in strides)
    members = [base]
    for size, stride in strides:
        members = [m + i * stride for m in members for i in range(size)]
    return tuple(members)


def collective_facts(facts: GraphFacts, times: Times = ONCE) -> dict[int, dict[str, Any]]:
    """Return the facts of collectives by the number of their node.

    `group` are the strides of its axes, in the form of `members_of`; irregular groups have `members` instead. A rank's
    graph has the `bytes` that the rank sends, `seconds` and the `link`; a dump of MindSpore has the `bytes`. A message
    between stages has its `message`, in the form of `message_facts`. times: how often a step runs the graph; bytes and
    seconds are those of the step.
    """
    found: dict[int, dict[str, Any]] = {}
    for index, node in enumerate(facts.graph.nodes):
        op, fact = node.op, facts.collective(node, times)
        if not isinstance(op, Collective):
            if fact is not None:
                found[index] = _group(fact.row.ranks, 0) | {"size": facts.ranks_of(node), "bytes": fact.row.bytes}
            elif op.name in COLLECTIVES:  # of MindSpore, with unknown bytes
                found[index] = _group(op.members if isinstance(op, OpaqueOp) else (), 0)
        elif op.over_mesh:
            strides = strides_of_axes(getattr(op, "mesh", ()), getattr(op, "axes", ()))
            found[index] = {"group": strides, "size": len(members_of(strides, 0))}
        elif fact is not None:
            found[index] = _group(op.members, facts.rank) | {
                "bytes": fact.row.bytes, "seconds": rounded(seconds(node, facts.machine) * times.count),
                "link": _link(op, facts), **message_facts(node, facts.rank),
            }  # fmt: skip
    return found


def _link(op: Collective, facts: GraphFacts) -> str:
    """Return the kind of connection over which a collective of a rank sends."""
    machine, members = facts.machine, op.members or (facts.rank, *op.partners(facts.rank))
    several = machine.ranks_per_host and machine.network is not None
    hosts = {member // machine.ranks_per_host for member in members} if several else {0}
    return "between ranks of one host" if len(hosts) < 2 else f"between {len(hosts)} hosts"


def _group(members: Sequence[int], rank: int) -> dict[str, Any]:
    ordered = sorted(members)
    strides = strides_of_members(ordered)
    by_rule = strides is not None and rank in members and members_of(strides, rank) == tuple(ordered)
    return {"size": len(members), **({"group": strides} if by_rule else {"members": list(members)})}
