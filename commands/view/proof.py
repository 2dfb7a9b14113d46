"""Results of `mspc verify --scale` for a compile, in the form of the page."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mspc.analysis.cost.timeline import missing_rates
from mspc.commands.comparison.all_differences import paired
from mspc.commands.facts.compiled import CompileFacts
from mspc.commands.facts.graph import GraphFacts
from mspc.commands.facts.memory import memory_blocks
from mspc.commands.facts.origins import origins_of
from mspc.commands.report.plan_summary import missing_rate_notes
from mspc.commands.report.tables import REPORT_VERSION
from mspc.commands.view.alternatives import next_ways
from mspc.commands.view.dump import kind_facts
from mspc.commands.view.graph_columns import add_regions, collective_facts, graph_columns
from mspc.commands.view.page_tables import NodeTables
from mspc.commands.view.stages import machine_facts, rounded, schedule, stage_facts
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.parsing import flag_in, list_in, number_in, parsed_json, reading, whole_in
from mspc.ir.files.regular import read_bytes
from mspc.ir.graph import Graph, Node
from mspc.ops.check_graph import check_graph
from mspc.ops.control.structural import label_of_result
from mspc.ops.op import Op

HOW = "mspc verify --scale TARGET --json FILE writes one"
COUNTS = ("ranks", "kinds", "steps", "seed")
Content = Mapping[str, Any]


def read_proof(path: Path, dump: CompileFacts) -> dict[str, Any]:
    """Return the content of the page for a report.

    `values` has a row for each value: [kind, name, ranks, the largest difference, the tolerance at that place, whether
    all were equal, the step, rank and element of the first that was not]; rows that differ come first. `node` is that
    of the first failure: [program, index], None if it is unknown. Raise MspcError if the file cannot be read or is no
    such report, or it is of another compile.
    """
    if dump.module is not None:
        raise MspcError("--proof is for the folder of a compile, not for one graph")
    with reading(path, "report of a proof", notes=[HOW]):
        content = parsed_json(read_bytes(path))
    if not isinstance(content, dict) or not {"equal", "seconds", *COUNTS} <= content.keys():
        raise MspcError(f"{path} is no report of mspc verify --scale", notes=[HOW])
    if content["ranks"] != dump.ranks:
        raise MspcError(f"{path} is of another compile: it is of {content['ranks']} ranks, this is of {dump.ranks}")
    own, here = str(content.get("compile_id", "")), dump.compile_id
    if own and here and own != here:
        raise MspcError(f"{path} is of another compile: it is of {own}, this is {here}")
    try:
        seconds = number_in(content["seconds"], "seconds")
        if not math.isfinite(seconds):
            raise ValueError(f"seconds is {seconds}")
        return {
            **{name: whole_in(content[name], name, 0) for name in COUNTS},
            "equal": flag_in(content["equal"], "equal"),
            "seconds": seconds,
            "said": [str(text) for text in content["said"]],
            "place": str(_failure(content).get("place", "")),
            "node": _node(_failure(content), dump),
            "sizes": [
                [[str(name) for name in row["tensors"]], _counts(row, "real"), _counts(row, "small")]
                for row in content["sizes"]
            ],
            "compared": len(content["values"]),
            "values": _values(content["values"]),
            "placed": 0 if content["memory"] is None else whole_in(content["memory"]["values"], "values", 0),
        }
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        what = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise MspcError(f"{path} is damaged: {what}", notes=[HOW], code="E0116") from None


def _failure(content: Content) -> Content:
    """Return the failure to report first: an operator with its place and ranks; empty if nothing is wrong."""
    waiting, memory = content["waiting"], content["memory"]
    misuses = [] if memory is None else memory["misuses"]
    found = content["odd"] or content["first"] or (waiting or [content["failed"]])[0] or (misuses or [{}])[0]
    if not isinstance(found, dict):
        raise TypeError(f"{found!r:.80} names no operator")
    return found


def _node(failure: Content, dump: CompileFacts) -> list[int] | None:
    """Return [program, index] of the failed node; None unless its rank's program has exactly one node that matches."""
    rank = failure["ranks"][0] if failure.get("ranks") else failure.get("rank")
    number = next((i for i, kind in enumerate(dump.kinds) if rank in kind.ranks), None)
    if number is None:
        return None
    wanted = failure.get("operator"), failure.get("place"), failure.get("scope")
    found = [
        i
        for i, node in enumerate(dump.programs[number].nodes)
        if (label_of_result(node), str(node.frames[0]) if node.frames else "", node.scope) == wanted
    ]
    return [number, found[0]] if len(found) == 1 else None


def _values(rows: list[Any]) -> list[list[Any]]:
    """Return one row for each value over all kinds of ranks and steps: the worst one by `_order`."""
    worst: dict[tuple[str, str], tuple[tuple[bool, int, float], Content]] = {}
    ranks: dict[tuple[str, str], dict[int, int]] = {}
    for row in rows:
        key = str(row["value"]), str(row["name"])
        order = _order(row)
        if key not in worst or order > worst[key][0]:
            worst[key] = order, row
        by_step = ranks.setdefault(key, {})
        by_step[row["step"]] = by_step.get(row["step"], 0) + whole_in(row["ranks"], "ranks", 0)
    made = [
        [
            *key, max(ranks[key].values()), _shown(row["difference"]), _shown(row["tolerance"]), row["same"],
            [] if row["same"] else [row["step"], whole_in(row["rank"], "rank", -1), _counts(row, "element")],
        ]
        for key, (_, row) in worst.items()
    ]  # fmt: skip
    return sorted(made, key=lambda row: row[5])


def _order(row: Content) -> tuple[bool, int, float]:
    """Return a sort key that is larger for wrong values, then for earlier steps of these, then for larger differences
    relative to their tolerance."""
    difference, tolerance = number_in(row["difference"], "difference"), number_in(row["tolerance"], "tolerance")
    wrong = not flag_in(row["same"], "same")
    return wrong, -whole_in(row["step"], "step", 0) * wrong, difference / tolerance if tolerance else difference


def _shown(number: float) -> float | None:
    """Return a number in the form of the page: three digits, None if it is not finite."""
    return float(f"{number:.3g}") if math.isfinite(number) else None


def _counts(row: Content, key: str) -> list[int]:
    return [whole_in(number, key, 0) for number in list_in(row[key], key)]


HOW_TO_PROFILE = "mspc run --profile FILE writes one"
LONGEST = 1e15
"""Longest time in microseconds."""
MEASURED = 16
"""Most ranks with measured times in the page, so that its size does not grow with the number of ranks."""


def read_profile(path: Path, dump: CompileFacts) -> dict[int, dict[str, Any]]:
    """Return, by rank, the number of timed `steps` and `nodes`: by node [begin, seconds], means over the steps. Raise
    MspcError if the file cannot be read or is no profile, or it is of another compile."""
    with reading(path, "profile", notes=[HOW_TO_PROFILE]):
        content = parsed_json(read_bytes(path))
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list):
        raise MspcError(f"{path} is no profile: it has no list of traceEvents", notes=[HOW_TO_PROFILE])
    graphs = {rank: kind.graph for kind in dump.kinds for rank in kind.ranks}
    spans: dict[int, dict[int, list[tuple[int, float, float]]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        args = event.get("args") if isinstance(event, dict) and event.get("ph") == "X" else {"region": True}
        if isinstance(args, dict) and args.get("region"):
            continue
        rank, node, step = _checked(path, event, graphs)
        spans[rank][node].append((step, float(event["ts"]) / 1e6, float(event["dur"]) / 1e6))
    if len(spans) > MEASURED:
        dump.notes.append(f"measured times are those of the first {MEASURED} of {len(spans)} ranks")
    return {rank: _means(spans[rank]) for rank in sorted(spans)[:MEASURED]}


def _checked(path: Path, event: dict[str, Any], graphs: dict[int, Graph]) -> tuple[int, int, int]:
    """Return (rank, node, step) of an event. Raise MspcError if the dump has no such node."""
    args = event.get("args")
    said = args if isinstance(args, dict) else {}
    rank, node, step = event.get("pid"), said.get("node"), said.get("step")
    times = [event.get(key) for key in ("ts", "dur")]
    counts = all(type(number) is int and number >= 0 for number in (rank, node, step))
    if not counts or not all(type(time) in (int, float) and 0 <= time < LONGEST for time in times):
        raise MspcError(f"{path} is no profile of mspc: an event {str(event.get('name'))!r} names no node")
    graph = graphs.get(rank)
    if graph is None:
        raise MspcError(f"{path} is of another compile: it has times of rank {rank}, which the dump lacks")
    if node >= len(graph.nodes):
        raise MspcError(f"{path} is of another compile: it has a node {node}, rank {rank} has {len(graph.nodes)}")
    there = graph.nodes[node]
    if (event.get("name"), said.get("result")) != (there.label, str(there.type)):
        raise MspcError(
            f"{path} is of another compile: node {node} of rank {rank} is {event.get('name')} there, "
            f"{there.label} {there.type} here"
        )
    return rank, node, step


def _means(rows: dict[int, list[tuple[int, float, float]]]) -> dict[str, Any]:
    """Return the means of one rank. Steps do not overlap in a trace, so each begins with its first node."""
    begins: dict[int, float] = {}
    for spans in rows.values():
        for step, begin, _ in spans:
            begins[step] = min(begin, begins.get(step, begin))
    nodes = {
        node: [
            rounded(sum(begin - begins[step] for step, begin, _ in spans) / len(spans)),
            rounded(sum(seconds for _, _, seconds in spans) / len(spans)),
        ]
        for node, spans in sorted(rows.items())
    }
    return {"steps": len(begins), "nodes": nodes}


# The content of the page as one value of JSON ---------------------------------------------------------


def page_facts(compiled: CompileFacts, profile: Path | None = None, proof: Path | None = None) -> dict[str, Any]:
    """Return the content of the page for the facts of `read_dump`.

    `graphs` are the programs of `programs`, or those of a single file, then the graph of all ranks at index `plan` (-1
    if there is none). A graph has the columns of `graph_columns` and, if they are known, `collectives`, `schedule`,
    `memory`, `origin`, `members` and `origins`: the nodes of the plan from which a node was made, as in `Origins`. The
    graphs that their nodes run follow, in the form of `add_regions`. Raise MspcError if the profile or the proof cannot
    be read, or is of another compile.
    """
    tables, module, whole = NodeTables(), compiled.module, compiled.global_graph
    kinds = [*compiled.kinds]
    if module is not None and module.dialect:
        kinds = [replace(kinds[0], graph=graph) for graph in module.graphs]
    graphs = [_graph(kind, tables, "rank" if module is None else "file") for kind in kinds]
    plan = -1
    ways: dict[int, Any] = {}
    if whole is not None:
        for facts, kind in zip(graphs, kinds, strict=True):
            facts |= origins_of(kind.graph, whole)
        ways = _ways(compiled, tables)
        plan = len(graphs)
        kinds.append(GraphFacts(whole, of_one_rank=False, machine=compiled.machine))
        graphs.append(_graph(kinds[-1], tables, "plan"))
    if not compiled.foreign:
        add_regions(graphs, kinds, plan, tables)
    if profile is not None and module is not None:
        raise MspcError("--profile is for the folder of a compile, not for one graph")
    measured = {} if profile is None else read_profile(profile, compiled)
    native = [] if compiled.foreign else compiled.programs
    rates = missing_rate_notes(missing_rates(native, compiled.machine), compiled.machine)
    return {
        "version": REPORT_VERSION,
        "title": Path(compiled.name).name or Path(compiled.name).resolve().name,
        "ranks": compiled.ranks or 0,
        "compile_id": compiled.compile_id,
        "mode": compiled.mode,
        "dialect": module.dialect if module is not None else "",
        "notes": [*compiled.notes, *rates],
        "machine": machine_facts(compiled.machine),
        "programs": kind_facts(compiled),
        "graphs": graphs,
        "main": 0 if module is None else next(i for i, kind in enumerate(kinds) if kind.graph is module.main),
        "plan": plan,
        "stages": stage_facts(compiled, tables),
        "ways": ways,
        "measured": measured,
        "proof": None if proof is None else read_proof(proof, compiled),
        **tables.as_dict(),
    }


def _graph(facts: GraphFacts, tables: NodeTables, kind: str) -> dict[str, Any]:
    graph = facts.graph
    found: dict[str, Any] = {"kind": kind, **graph_columns(graph, tables)}
    found["collectives"] = collective_facts(facts)
    if kind == "rank" or (kind == "file" and facts.of_one_rank and _is_consistent(graph)):
        found["schedule"] = schedule(facts)
        found["memory"] = memory_blocks(graph, facts.memory_plan)
    return found


def _is_consistent(graph: Graph) -> bool:
    """Return whether a graph of known operators can be planned."""
    if not all(isinstance(node.op, Op) for node in graph.nodes):
        return False
    try:
        check_graph(graph)
    except MspcError:
        return False
    return True


def _ways(dump: CompileFacts, tables: NodeTables) -> dict[int, Any]:
    """Return, by a node of the plan, the present and the next best layouts of its operands: [layouts, seconds more]."""
    if dump.configured is None or dump.decided is None or dump.global_graph is None:
        return {}
    found = next_ways(dump.configured, dump.decided, dump.machine)
    places = _same_nodes(dump.decided, dump.global_graph)
    return {
        places[n]: [
            [tables.layouts(way.operands), None if math.isinf(way.seconds) else rounded(way.seconds)] for way in ways
        ]
        for n, ways in found.items()
        if n in places
    }


def _same_nodes(first: Graph, then: Graph) -> dict[int, int]:
    """Return the positions of a graph's nodes in the same graph after passes that only add nodes to it."""
    places = {node: place for place, node in enumerate(then.nodes)}
    pairs = paired(first.nodes, then.nodes, [(_key, False)], _key)
    return {index: places[other] for index, (_, other) in enumerate(pairs[: len(first.nodes)]) if other is not None}


def _key(node: Node) -> Any:
    return node.op.name, node.scope, node.phase, node.instance, node.name, node.frames, str(node.type)
