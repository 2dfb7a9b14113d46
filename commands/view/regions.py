"""The page holds the graphs that nodes run behind those that run first, and says which node runs which how often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.analysis.cost.machine import Machine
from mspc.commands.view.collectives import collective_facts
from mspc.commands.view.graph_facts import graph_columns
from mspc.commands.view.origins import Origins
from mspc.commands.view.tables import NodeTables
from mspc.ir.graph import Graph
from mspc.ops.control.regions import times_of


def add_regions(
    graphs: list[dict[str, Any]], roots: Sequence[Graph], plan: int, tables: NodeTables, machine: Machine
) -> None:
    """Append the graphs that those at the same places in `roots` run, each once, and note in all which they run.

    A graph has in `regions`, by node, the numbers of the graphs that the node runs. One that is run has further the
    `root`, the number of the graph at whose begin that is; `runs`, how often a step runs it in words; and `planned`,
    the number of its like in the graph of all ranks, whose number is `plan`: -1 where there is none.
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
