"""Graphs in the form of the page: one column for every fact of the nodes, so that a fact costs one number per node."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from mspc.analysis.cost.machine import COLLECTIVES, Machine
from mspc.analysis.cost.nodes import seconds, sent_bytes
from mspc.commands.facts.graph import GraphFacts, listed_ranks, phase_of
from mspc.commands.view.page_tables import NodeTables
from mspc.commands.view.stages import message_facts, rounded
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, element_layouts, element_types
from mspc.ir.layout import Layout
from mspc.ir.opaque import Literal
from mspc.ir.text.facts import PHASES
from mspc.ir.text.printer import constant_text, key_text, strategy_text, value_text
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.collective.base import Collective
from mspc.ops.control.regions import times_of
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise, step_types, steps_of
from mspc.ops.fused.updates import GroupedUpdate
from mspc.ops.tensor.moving import Concat
from mspc.ops.tensor.slicing import StridedSlice

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
        if value in self.places:
            return self.places[value]
        text = _constant_text(value)
        if text not in self._known:
            self._known[text] = len(self.constants)
            self.constants.append(self.tables.string(text))
        return len(self.graph.nodes) + self._known[text]


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


def add_regions(
    graphs: list[dict[str, Any]], roots: Sequence[Graph], plan: int, tables: NodeTables, machine: Machine
) -> None:
    """Append the graphs that the nodes of `roots` run, each once, and record for all graphs which ones they run.

    `graphs` has the facts of `roots`, in the same order. The `regions` of a graph are, by node, the numbers of the
    graphs that the node runs. A graph run by a node also has `root`, the number of the root that contains it; `runs`,
    how often a step runs it, in words; and `planned`, the number of its counterpart in the graph of all ranks, which
    has the number `plan`: -1 if there is none.
    """
    numbers: dict[Graph, int] = dict(zip(roots, range(len(roots)), strict=True))
    planned: dict[str, int] = {}
    for root in sorted(roots, key=lambda graph: numbers[graph] != plan):  # the graph of all ranks first
        times = times_of(root)
        for graph in root.graphs()[1:]:
            numbers[graph] = len(graphs)
            like = planned.get(graph.name, -1)
            facts = {
                "kind": graphs[numbers[root]]["kind"], **graph_columns(graph, tables), "root": numbers[root],
                "runs": tables.string(times[graph].text), "planned": like,
                "collectives": collective_facts(graph, machine, root.attrs.get("rank", 0), times[graph].count),
            }  # fmt: skip
            if numbers[root] == plan:
                planned[graph.name] = len(graphs)
            elif like >= 0:
                origins = Origins(graph, next(one for one, number in numbers.items() if number == like))
                facts |= {"origin": origins.of, "members": origins.members, "origins": origins.results}
            graphs.append(facts)
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
    if len(members) <= 1:
        return ()
    step = members[1] - members[0]
    size = 2
    while size < len(members) and members[size] - members[size - 1] == step:
        size += 1
    if step <= 0 or len(members) % size:
        return None
    heads = members[::size]
    if any(members[i] != heads[i // size] + i % size * step for i in range(len(members))):
        return None
    outer = strides_of_members(heads)
    return None if outer is None else (*outer, (size, step))


def members_of(strides: Strides, rank: int) -> tuple[int, ...]:
    """Return the group of a rank from the strides of its axes."""
    base = rank - sum(rank // stride % size * stride for size, stride in strides)
    members = [base]
    for size, stride in strides:
        members = [m + i * stride for m in members for i in range(size)]
    return tuple(members)


def collective_facts(graph: Graph, machine: Machine, rank: int = -1, runs: int = 1) -> dict[int, dict[str, Any]]:
    """Return the facts of collectives by the number of their node.

    `group` are the strides of its axes, in the form of `members_of`; irregular groups have `members` instead. A rank's
    graph has the `bytes` that the rank sends, `seconds` and the `link`; a dump of MindSpore has the `bytes`. A message
    between stages has its `message`, in the form of `message_facts`. rank: that runs the graph, -1 to read it from the
    graph. runs: how often a step runs the graph; bytes and seconds are those of the step.
    """
    rank = rank if rank >= 0 else graph.attrs.get("rank", 0)
    told = GraphFacts(graph, foreign=True, of_one_rank=False, machine=machine)
    found: dict[int, dict[str, Any]] = {}
    for index, node in enumerate(graph.nodes):
        if isinstance(node.op, Collective):
            found[index] = _facts(node, node.op, rank, machine, runs)
        elif node.op.name in COLLECTIVES:
            fact = told.collective(node)  # of MindSpore; the bytes of some operators are unknown
            listed = listed_ranks(node.op.attributes().get("rank_list")) if fact is None else fact.row.ranks
            known = {} if fact is None else {"size": told.ranks_of(node), "bytes": fact.row.bytes}
            found[index] = _group(listed, 0) | known
    return found


def _facts(node: Node, op: Collective, rank: int, machine: Machine, runs: int) -> dict[str, Any]:
    if op.over_mesh:
        strides = strides_of_axes(getattr(op, "mesh", ()), getattr(op, "axes", ()))
        return {"group": strides, "size": len(members_of(strides, 0))}
    members = op.members or (rank, *op.partners(rank))
    several = machine.ranks_per_host and machine.network is not None
    hosts = {member // machine.ranks_per_host for member in members} if several else {0}
    return _group(op.members, rank) | {
        "bytes": rounded(sent_bytes(node) * runs), "seconds": rounded(seconds(node, machine) * runs),
        "link": "between ranks of one host" if len(hosts) < 2 else f"between {len(hosts)} hosts",
        **message_facts(node, rank),
    }  # fmt: skip


def _group(members: Sequence[int], rank: int) -> dict[str, Any]:
    strides: Strides | None = strides_of_members(tuple(sorted(members))) if members else ()
    by_rule = strides is not None and rank in members and members_of(strides, rank) == tuple(sorted(members))
    return {"size": len(members), **({"group": strides} if by_rule else {"members": list(members)})}


# Origins of a rank's nodes ----------------------------------------------------------------------------
# The nodes of the graph of all ranks, with known layouts, from which they were made.
# Passes after slicing preserve scope, lines and instance of a node, change the order and merge nodes. A node is found
# by scope, lines and instance. If several nodes are equal, the one that shares most operands with the rank's node is
# used, then the first.


FUSED = "Fused"
"""Prefix of the names of operators that merge one operator with others."""
COMPARED = 32
"""Most equal nodes among which one is chosen."""


class Origins:
    """Origins of the nodes of `graph` in `plan`. of: the number of each node's original, -1 for none. members: for a
    node that merges several, the numbers of all of them. results: for a node with several results, the numbers of the
    nodes that produce them."""

    def __init__(self, graph: Graph, plan: Graph) -> None:
        self.plan = plan
        self.numbers = {node: i for i, node in enumerate(plan.nodes)}
        self.readers = plan.users()
        self._taken: set[Node] = set()
        self._alike: dict[Any, dict[Node, None]] = defaultdict(dict)
        self._there: dict[Any, list[Node]] = defaultdict(list)
        self._around: dict[Any, list[Node]] = defaultdict(list)
        for node in plan.nodes:
            self._alike[_key(node)][node] = None
            self._there[_place(node)].append(node)
            self._around[_line(node)].append(node)
        self._elements: dict[Value, Sequence[Node | None]] = {}
        by_name = {parameter.name: parameter for parameter in plan.parameters}
        self._found: dict[Value, Value | None] = {p: by_name.get(p.name) for p in graph.parameters}
        self._operators = {node.op.name for node in plan.nodes}
        self._sent = {value for node in graph.nodes if isinstance(node.op, Collective) for value in node.inputs}
        self.of: list[int] = []
        self.members: dict[int, list[int]] = {}
        self.results: dict[int, list[int]] = {}
        for index, node in enumerate(graph.nodes):
            self.of.append(self._number(self._find(index, node)))
        self._note_results(graph)

    def _number(self, node: Value | None) -> int:
        return self.numbers.get(node, -1) if isinstance(node, Node) else -1

    def _note_results(self, graph: Graph) -> None:
        """Record the elements of tuples that the plan does not have, by the nodes that extract them."""
        elements: dict[Value, dict[int, int]] = defaultdict(dict)
        for node, at in zip(graph.nodes, self.of, strict=True):
            if isinstance(node.op, TupleGetItem):
                elements[node.inputs[0]][node.op.index] = at
        for index, node in enumerate(graph.nodes):
            count = len(element_types(node.type))
            there = self.plan.nodes[self.of[index]] if self.of[index] >= 0 else None
            if count > 1 and index not in self.results and (there is None or len(element_types(there.type)) != count):
                self.results[index] = [elements[node].get(i, -1) for i in range(count)]

    def _find(self, index: int, node: Node) -> Node | None:
        if isinstance(node.op, FusedElementwise):
            return self._fused(index, node, node.op)
        if isinstance(node.op, GroupedUpdate):
            return self._grouped(index, node, node.op)
        operands = [self._found.get(value) for value in node.inputs]
        if "fused" in node.attrs:
            self.members[index] = self._chain(node, operands)
        if isinstance(node.op, TupleGetItem):
            found = self._element(node, node.op.index) or self._in_place(node, node.type)
        else:
            alike = self._alike.get(_key(node), {})
            found = self._take((one for one in alike if _fits(node.type, one)), operands)
            if found is None and node.op.name.startswith(FUSED):
                return self._take(self._joined(node, operands), operands)
            if found is not None:
                alike.pop(found)
            elif isinstance(node.type, TupleType):
                # The last of several steps in which a rank computes one node with the same scope and line.
                slices = [one for one in self._around.get(_line(node), ()) if _are_slices(node.type, one)]
                found = slices[0] if len(slices) == 1 else None
            elif isinstance(node.op, StridedSlice | Concat) or (
                node.op.name not in self._operators and node not in self._sent  # an operator that only ranks have
            ):
                found = self._in_place(node, node.type)
            else:
                # The operator, surrounded by others and therefore without its name, as a convolution of others' rows.
                same = (one for one in self._around[_line(node)] if one.op.name == node.op.name)
                found = self._take((one for one in same if _is_slice(node.type, one)), operands)
        self._found[node] = found
        return found

    def _element(self, node: Node, index: int) -> Node | None:
        """Return the plan's node that extracts the same element of a tuple; None if there is none."""
        source = node.inputs[0]
        if source in self._elements:
            return self._elements[source][index]
        original = self._found.get(source)
        if not isinstance(original, Node) or len(element_types(original.type)) != len(element_types(source.type)):
            return None
        readers = [one for one in self._read([original]) if isinstance(one.op, TupleGetItem) and one.op.index == index]
        return readers[0] if readers else None

    def _joined(self, node: Node, operands: Sequence[Value | None]) -> list[Node]:
        """Return the possible originals of the first operator in a node that merges it with the operators after it.

        The node has the result of the last operator, which is not looked for.
        """
        ending = node.op.name.removeprefix(FUSED)
        readers = [r for value in operands if value is not None for r, _ in self.readers.get(value, ())]
        return [reader for reader in dict.fromkeys(readers) if reader.op.name.endswith(ending)]

    def _in_place(self, node: Node, type: Type, operator: str = "") -> Node | None:
        """Return a node at the same place that is the same tensor on the rank; None if such nodes have several layouts.

        This is for tensors made by operators that only ranks have: elements of merged operators, and results of
        redistribution. operator: the node's, if it is known.
        """
        found = [one for one in self._there.get(_place(node), ()) if _is_slice(type, one)]
        if operator:
            found = [one for one in found if one.op.name == operator]
        made = [one for one in found if not isinstance(one.op, Collective)] or found
        return made[-1] if len({(str(one.type), str(one.layout)) for one in made}) == 1 else None

    def _take(self, alike: Iterable[Node], operands: Sequence[Value | None]) -> Node | None:
        """Return, and mark as taken, the first of the equal nodes that reads most of the operands; None if none is
        free."""
        free = list(islice((node for node in alike if node not in self._taken), COMPARED))
        if not free:
            return None
        known = {operand for operand in operands if operand is not None}
        best = max(free, key=lambda node: len(known & {*node.inputs})) if len(free) > 1 else free[0]
        self._taken.add(best)
        return best

    def _chain(self, node: Node, operands: Sequence[Value | None]) -> list[int]:
        """Return the numbers of a node's named members. Each reads an operand or an earlier member, possibly through a
        collective of it."""
        at_hand = [operand for operand in operands if operand is not None]
        found: list[int] = []
        for label in map(str, node.attrs["fused"]):
            readers = self._read(at_hand)
            readers += self._read([reader for reader in readers if isinstance(reader.op, Collective)])
            alike = [one for one in readers if one.label == label and one.phase == node.phase and one not in at_hand]
            best = max(alike, key=lambda one: len({*at_hand} & {*one.inputs}), default=None)
            found.append(self._number(best))
            at_hand += [] if best is None else [best]
        return found

    def _read(self, values: Sequence[Value]) -> list[Node]:
        return [reader for value in values for reader, _ in self.readers.get(value, ())]

    def _fused(self, index: int, node: Node, op: FusedElementwise) -> Node | None:
        lines: list[Node | None] = []
        types = step_types(op, [type for value in node.inputs if isinstance(type := value.type, TensorType)])
        for line, type in zip(steps_of(op), types, strict=True):
            operands = [
                self._found.get(node.inputs[number]) if kind == "x" else lines[number]
                for kind, number in line.operands
            ]
            known = [operand for operand in operands if operand is not None]
            readers = dict.fromkeys(reader for operand in known[:1] for reader, _ in self.readers.get(operand, ()))
            alike = [reader for reader in readers if (reader.op.name, reader.phase) == (line.op.name, node.phase)]
            fitting = [reader for reader in alike if {*known} <= {*reader.inputs}]
            lines.append(self._take(fitting, operands) or self._in_place(node, type, line.op.name))
        self.members[index] = [self._number(line) for line in lines]
        self._elements[node] = [lines[place] for place in op.returns]
        self.results[index] = [self._number(line) for line in self._elements[node]]
        last = self._elements[node][-1] if op.returns else None
        self._found[node] = last
        return last

    def _grouped(self, index: int, node: Node, op: GroupedUpdate) -> Node | None:
        found: list[Node | None] = []
        for operands in op.members(node.inputs):
            there = [self._found.get(value) for value in operands]
            readers = self.readers.get(there[0], ()) if there[0] is not None else ()
            alike = [reader for reader, place in readers if reader.op.name == op.member.name and place == 0]
            found.append(self._take(alike, there))
        self.members[index] = self.results[index] = [self._number(member) for member in found]
        if all(isinstance(member, Node) and isinstance(member.type, TensorType) for member in found):
            self._elements[node] = found
        return None


def _key(node: Node) -> Any:
    return node.op.name.removeprefix(FUSED), *_place(node)


def _place(node: Node) -> tuple[Any, ...]:
    return node.scope, node.phase, node.instance, node.name, node.frames


def _line(node: Node) -> tuple[Any, ...]:
    return node.scope, node.phase, node.frames


def _are_slices(type: Type, original: Node) -> bool:
    """Return whether the elements of a tuple are a rank's slices of the elements of another."""
    own, types, layouts = element_types(type), element_types(original.type), element_layouts(original.layout)
    if not len(own) == len(types) == len(layouts):
        return False
    slices = [there.with_shape(layout.local_shape(there.shape)) for there, layout in zip(types, layouts, strict=True)]
    return list(own) == slices


def _fits(type: Type, original: Node) -> bool:
    """Return whether a rank's node of that type may be made from a node: the type is that of its slice or of its whole
    tensor, or the slice is unknown."""
    layout = original.layout
    told = isinstance(original.type, TensorType) and isinstance(layout, Layout) and layout.divides(original.shape)
    return not told or type == original.type or _is_slice(type, original)


def _is_slice(type: Type, original: Node) -> bool:
    """Return whether a type is that of a rank's slice of a tensor."""
    if not isinstance(original.type, TensorType) or not isinstance(original.layout, Layout):
        return False
    own = original.type.with_shape(original.layout.local_shape(original.shape))
    return type == own and original.layout.divides(original.shape)
