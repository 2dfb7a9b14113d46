"""This module checks the borders of a file's graphs: whose the parameters are, and which node runs which graph.

`mspc.ir.text.parser` uses it for mspc's own texts; in MindSpore's dumps graphs read values of others, and are called by
names that are operands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.nearest import did_you_mean
from mspc.ir.text.limits import DEEPEST_REGIONS
from mspc.ir.text.reading import QUOTED, GraphTextReader
from mspc.ir.text.source_text import name_of

_NAME = rf"@({QUOTED}|[^\s,}}\"]+)"
_REGIONS = re.compile(rf"\{{regions: {_NAME}(?:, {_NAME})*\}}\Z")
_GRAPH_NAME = re.compile(_NAME)
_ABOVE = "it stands above the graph: `{}: <Tensor[...], (...)>`"


def read_regions(reading: GraphTextReader, graph: Graph, node: Node, text: str, at: int) -> None:
    """Note the graphs that a node of `graph` runs: `{regions: @while_1_condition, @while_1_body}`."""
    if not _REGIONS.match(text):
        reading.fail(f"unknown group {text}", at, ("graphs that a node runs stand as `{regions: @name, @name}`",))
    names = [(name_of(match.group(1)), at + match.start()) for match in _GRAPH_NAME.finditer(text)]
    reading.regions.append((graph, node, names))


def check_parameters(
    reading: GraphTextReader, graph: Graph, references: Sequence[str], lines: Mapping[str, Parameter], at: int
) -> None:
    """Raise MspcError where the head of a graph, at a character of the text, names others than the lines above it are
    of: that of the first graph names none."""
    if graph is reading.graphs[0]:
        notes = (f"the head of the first graph names none: `subgraph @{graph.name}() {{`",)
        reading.fail(f"the parameters of @{graph.name} are the lines above it", at, notes)
    for reference in references:
        if reference not in lines:
            notes = (_ABOVE.format(reference),)
            reading.fail(f"the parameter {reference} of @{graph.name} has no line of its own", at, notes)
    if list(lines) != list(references):
        told, written = (", ".join(names) or "nothing" for names in (references, lines))
        reading.fail(f"@{graph.name} takes {told}, but the lines above it are of {written}", at)
    for parameter in lines.values():
        if parameter.kind != "input":
            notes = (f"what it is given stands for it: `<Tensor[...], (...)>`, not a {parameter.kind}",)
            reading.fail(f"the parameter {parameter.name} of @{graph.name} is no input", at, notes)


def resolve_regions(reading: GraphTextReader, main: Graph) -> None:
    """Give every node the graphs that it names.

    Raises:
        MspcError: one is unknown, is run by itself or by nobody, or is the one that runs first.
    """
    if main is not reading.graphs[0]:
        notes = ("its parameters are those above all graphs",)
        reading.fail(f"@{main.name}, which runs first, does not stand first in the file", reading.heads[main], notes)
    if reading.lines:
        _no_taker(reading, next(iter(reading.lines.values())))
    graphs = {graph.name: graph for graph in reading.graphs}
    runs: dict[Graph, dict[Graph, int]] = {graph: {} for graph in reading.graphs}
    for graph, node, names in reading.regions:
        for name, at in names:
            if name not in graphs:
                notes = tuple(did_you_mean(name, graphs))
                reading.fail(f"{node.label} runs the unknown graph @{name}", at, notes)
            runs[graph].setdefault(graphs[name], at)
        node.regions = tuple(graphs[name] for name, _ in names)
    levels: dict[Graph, int] = {}
    for graph in (main, *reading.graphs):
        if graph not in levels:
            _count_levels(reading, graph, runs, [], levels)
    inside = _inside(main, runs)
    for graph in reading.graphs:
        if graph not in inside:
            notes = ("a node runs it with `{regions: @" + graph.name + "}`",)
            reading.fail(f"no node runs the graph @{graph.name}", reading.heads[graph], notes)


def _count_levels(
    reading: GraphTextReader,
    graph: Graph,
    runs: dict[Graph, dict[Graph, int]],
    around: list[Graph],
    levels: dict[Graph, int],
) -> int:
    """How deep graphs nest in one, noted in `levels`. around: those that run it, the outermost first.

    Raises:
        MspcError: a graph runs itself, or they nest too deep.
    """
    around.append(graph)
    deepest = 0
    for inner, at in runs[graph].items():
        if inner in around:
            chain = " -> ".join(f"@{each.name}" for each in [*around[around.index(inner) :], inner])
            reading.fail(f"the graph @{inner.name} runs itself without end: {chain}", at)
        known = levels.get(inner)
        if len(around) + (known or 0) > DEEPEST_REGIONS:
            reading.fail(f"graphs nest more than {DEEPEST_REGIONS} deep", at)
        deepest = max(deepest, 1 + (_count_levels(reading, inner, runs, around, levels) if known is None else known))
    around.pop()
    levels[graph] = deepest
    return deepest


def _inside(main: Graph, runs: dict[Graph, dict[Graph, int]]) -> set[Graph]:
    """The graph and all that it runs."""
    found = {main}
    waiting = [main]
    while waiting:
        new = runs[waiting.pop()].keys() - found
        found |= new
        waiting += new
    return found


def _no_taker(reading: GraphTextReader, parameter: Parameter) -> None:
    reading.fail(f"no graph takes the parameter {parameter.name}", len(reading.text))
