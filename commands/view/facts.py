"""The content of the page as one value of JSON."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.timeline import missing_rates
from mspc.commands.report.notes import missing_rate_notes
from mspc.commands.view.alternatives import next_ways
from mspc.commands.view.dump import Dump
from mspc.commands.view.graph_columns import add_regions, collective_facts, graph_columns
from mspc.commands.view.origins import Origins
from mspc.commands.view.page_tables import NodeTables
from mspc.commands.view.proof import read_profile, read_proof
from mspc.commands.view.stages import is_planned, machine_facts, memory_facts, rounded, schedule, stage_facts
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node

FORMAT = 1


def page_facts(dump: Dump, machine: Machine, profile: Path | None = None, proof: Path | None = None) -> dict[str, Any]:
    """Return the content of the page for a dump.

    `graphs` are the programs of `programs`, or those of a single file, then the graph of all ranks at index `plan` (-1
    if there is none). A graph has the columns of `graph_columns` and, if they are known, `collectives`, `schedule`,
    `memory`, `origin`, `members` and `origins`: the nodes of the plan from which a node was made, as in `Origins`.
    The graphs that their nodes run follow, in the form of `add_regions`.

    Raises:
        MspcError: the profile or the proof cannot be read, or is of another compile.
    """
    tables = NodeTables()
    graphs = [_graph(graph, tables, machine, "rank") for graph in dump.programs]
    module = dump.module
    modules = [] if module is None else module.graphs if module.dialect else [module.main]
    roots = [*dump.programs, *modules]
    graphs += [_graph(graph, tables, machine, "file") for graph in modules]
    plan = -1
    ways: dict[int, Any] = {}
    if dump.plan is not None:
        for facts, graph in zip(graphs, dump.programs, strict=True):
            origins = Origins(graph, dump.plan)
            facts |= {"origin": origins.of, "members": origins.members, "origins": origins.results}
        ways = _ways(dump, tables, machine)
        plan = len(graphs)
        roots.append(dump.plan)
        graphs.append(_graph(dump.plan, tables, machine, "plan"))
    if module is None or not module.dialect:
        add_regions(graphs, roots, plan, tables, machine)
    native = [] if module is None or module.dialect else modules
    entry = module.entry if module is not None else ""
    if profile is not None and module is not None:
        raise MspcError("--profile is for the folder of a compile, not for one graph")
    measured = {} if profile is None else read_profile(profile, dump)
    return {
        "format": FORMAT,
        "title": dump.title,
        "ranks": dump.ranks,
        "compile_id": dump.compile_id,
        "mode": dump.mode,
        "dialect": module.dialect if module is not None else "",
        "notes": [*dump.notes, *missing_rate_notes(missing_rates(dump.programs or native, machine), machine)],
        "machine": machine_facts(machine),
        "programs": dump.kinds,
        "graphs": graphs,
        "main": next((i for i, graph in enumerate(modules) if graph.name == entry), 0),
        "plan": plan,
        "stages": stage_facts(dump.programs, dump.stages, machine, tables),
        "ways": ways,
        "measured": measured,
        "proof": None if proof is None else read_proof(proof, dump),
        **tables.as_dict(),
    }


def _graph(graph: Graph, tables: NodeTables, machine: Machine, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": kind, **graph_columns(graph, tables)}
    found["collectives"] = collective_facts(graph, machine)
    if kind == "rank" or (kind == "file" and is_planned(graph)):
        found["schedule"] = schedule(graph, machine)
        found["memory"] = memory_facts(graph)
    return found


def _ways(dump: Dump, tables: NodeTables, machine: Machine) -> dict[int, Any]:
    """Return, by a node of the plan, the present and the next best layouts of its operands: [layouts, seconds more]."""
    if dump.configured is None or dump.decided is None or dump.plan is None:
        return {}
    found = next_ways(dump.configured, dump.decided, machine)
    places = _same_nodes(dump.decided, dump.plan)
    return {
        places[n]: [
            [tables.layouts(way.operands), None if math.isinf(way.seconds) else rounded(way.seconds)] for way in ways
        ]
        for n, ways in found.items()
        if n in places
    }


def _same_nodes(first: Graph, then: Graph) -> dict[int, int]:
    """Return the positions of a graph's nodes in the same graph after passes that only add nodes to it."""
    waiting: dict[Any, list[int]] = {}
    for index, node in reversed(list(enumerate(then.nodes))):
        waiting.setdefault(_key(node), []).append(index)
    found: dict[int, int] = {}
    for index, node in enumerate(first.nodes):
        alike = waiting.get(_key(node))
        if alike:
            found[index] = alike.pop()
    return found


def _key(node: Node) -> Any:
    return node.op.name, node.scope, node.phase, node.instance, node.name, node.frames, str(node.type)
