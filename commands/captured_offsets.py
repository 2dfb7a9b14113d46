"""Makes the graphs of captured steps that differ in numbers, as offsets, from the graph of one of them.

Reading a step takes a while. So one is read, and of the others only the nodes with other arguments, as a small program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mspc.compiler.rank_graphs import copied
from mspc.ir.diagnostics import Location
from mspc.ir.graph import Constant, Graph, Node
from mspc.ops.collective.base import Collective
from mspc.readers.pytorch.captured_kinds import GROUPS
from mspc.readers.pytorch.exported_program import NodeResult, ProgramInput, ProgramOutput, names_in

if TYPE_CHECKING:
    from mspc.readers.pytorch.captured import CapturedStep

Read = Callable[["CapturedStep"], tuple[Graph, list[tuple[str, str]], Sequence[Any]]]
"""Returns (the graph of a step, its results, its first values)."""
_MARK = "node of other numbers"
"""The file of a line that marks the nodes of a graph by the number of the recorded one."""


def graphs_of(steps: Sequence[CapturedStep], read: Read) -> list[tuple[Graph, list[tuple[str, str]]]]:
    """Return (the graph, its results) of each step. read: reads a step."""
    families: dict[Any, list[int]] = {}
    for number, step in enumerate(steps):
        same = tuple((node.target, node.results, node.types, node.scope) for node in step.program.graph.nodes)
        families.setdefault((same, step.program.graph.inputs, step.program.graph.outputs), []).append(number)
    found: dict[int, tuple[Graph, list[tuple[str, str]]]] = {}
    for numbers in families.values():
        own = [steps[number] for number in numbers]
        made = _alike(own, read) if len(own) > 1 else None
        found |= zip(numbers, made or [read(step)[:2] for step in own], strict=True)
    return [found[number] for number in range(len(steps))]


def _alike(steps: Sequence[CapturedStep], read: Read) -> list[tuple[Graph, list[tuple[str, str]]]] | None:
    """Return the graphs of steps with the same nodes; None if they have to be read one by one."""
    base = steps[0]
    graphs = [step.program.graph.nodes for step in steps]
    changed = [at for at, nodes in enumerate(zip(*graphs, strict=True)) if len({_numbers(n) for n in nodes}) > 1]
    read_others = any(len({_tensors(nodes[at]) for nodes in graphs}) > 1 for at in changed)
    if read_others or not _have_results_alone(base, changed):
        return None
    groups = [_groups(base, step) for step in steps]
    whole, results, _ = read(_marked(base, changed))
    marks = _taken(whole)
    parts = [_taken(read(_part(step, changed))[0]) for step in steps] if changed else [marks] * len(steps)
    places = {node: at for at, node in enumerate(whole.nodes)}
    if any(_shape(part) != _shape(marks) for part in parts) or any(n not in places for m in marks.values() for n in m):
        return None
    found: list[tuple[Graph, list[tuple[str, str]]]] = []
    for step, part, named in zip(steps, parts, groups, strict=True):
        graph = copied(whole) if step is not base else whole
        for node in graph.nodes:
            op: Any = node.op
            if isinstance(op, Collective) and (name := named.get(getattr(op, "group", ""))) is not None:
                node.op = replace(op, group=name, rank_list=step.groups[name])
        for mark, nodes in marks.items():
            for node, own in zip(nodes, part[mark], strict=True):
                made = graph.nodes[places[node]]
                made.op = own.op
                pairs = zip(made.inputs, own.inputs, strict=True)
                made.inputs = [number if isinstance(number, Constant) else value for value, number in pairs]
        found.append((graph, results))
    return found


def _numbers(node: Any) -> Any:
    return tuple((name, repr(value)) for name, value in node.arguments if name not in GROUPS)


def _tensors(node: Any) -> tuple[str, ...]:
    return tuple(name for _, value in node.arguments for name in names_in(value))


def _groups(base: CapturedStep, step: CapturedStep) -> dict[str, str]:
    """Return the names of a step's groups by those of the same groups of another step."""
    pairs = zip(base.program.graph.nodes, step.program.graph.nodes, strict=True)
    return {
        str(mine): str(own) for node, other in pairs for (name, mine), (_, own) in
        zip(node.arguments, other.arguments, strict=True) if name in GROUPS and mine != own
    }  # fmt: skip


def _have_results_alone(step: CapturedStep, changed: Sequence[int]) -> bool:
    """Return whether some nodes make tensors and do nothing else: none is a message, or overwrites a tensor, or makes a
    view of one that is overwritten, which the places in the view are read for."""
    from mspc.readers.pytorch.kinds.aten_table import kind_of
    from mspc.readers.pytorch.written_values import written_names

    written = written_names(step.program.graph)
    for node in (step.program.graph.nodes[at] for at in changed):
        kind = kind_of(node.target)
        if kind is None or kind.writes or not node.results or not all(node.results):
            return False
        if kind.put is not None and not written.isdisjoint(node.results):
            return False
    return True


def _marked(step: CapturedStep, changed: Sequence[int]) -> CapturedStep:
    nodes = list(step.program.graph.nodes)
    for at in changed:
        nodes[at] = replace(nodes[at], frames=(Location(_MARK, at), *nodes[at].frames))
    return replace(step, program=replace(step.program, graph=replace(step.program.graph, nodes=tuple(nodes))))


def _part(step: CapturedStep, changed: Sequence[int]) -> CapturedStep:
    """Return the step of some nodes alone, which gives their results."""
    graph = _marked(step, changed).program.graph
    types = dict(graph.inputs)
    for node in graph.nodes:
        types |= zip(node.results, node.types, strict=True)
    nodes = [graph.nodes[at] for at in changed]
    made = [name for node in nodes for name in node.results]
    read = [name for node in nodes for _, value in node.arguments for name in names_in(value) if name not in made]
    inputs = tuple(ProgramInput("user", name, name, types[name]) for name in dict.fromkeys(read))
    outputs = tuple(ProgramOutput("gradient_to_parameter", NodeResult(name), name) for name in made)
    graph = replace(
        graph, nodes=tuple(nodes), inputs=tuple((each.name, each.type) for each in inputs),
        outputs=tuple(each.value for each in outputs),
    )  # fmt: skip
    return replace(step, program=replace(step.program, graph=graph, inputs=inputs, outputs=outputs))


def _taken(graph: Graph) -> dict[int, list[Node]]:
    """Return the marked nodes by their marks, which are removed."""
    found: dict[int, list[Node]] = {}
    for node in (node for each in graph.graphs() for node in each.nodes):
        if node.frames and node.frames[0].file == _MARK:
            found.setdefault(node.frames[0].line, []).append(node)
            node.frames = node.frames[1:]
    return found


def _shape(nodes: dict[int, list[Node]]) -> Any:
    """Return all of some nodes but the numbers of operators and constants."""
    return {
        mark: [(type(node.op), node.type, [(isinstance(v, Constant), v.type) for v in node.inputs]) for node in each]
        for mark, each in nodes.items()
    }
