"""`mspc search --explain NODE` explains the sharding of an operator, and `--compare A B` compares two plans."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from math import isinf
from pathlib import Path

from mspc.analysis.cost.timeline import together
from mspc.commands.comparison.all_differences import memory_differences
from mspc.commands.comparison.tables import memory_table
from mspc.commands.facts.reading import entries_of
from mspc.commands.report.notes import missing_rate_notes
from mspc.commands.report.tables import TextTable, print_line, print_table, size_text, time_text, write_report
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import listed
from mspc.ir.graph import Graph, Node
from mspc.ir.layout import Layout
from mspc.plans.files.plan_file import names_layers_together, read_plan
from mspc.runtime.program import Program
from mspc.search.plans.alternatives import PlanRequest
from mspc.search.plans.explained import NAMED, explain
from mspc.search.plans.row import PlanResult
from mspc.search.plans.table import plan_of_file


def explain_node(captured: CapturedCall, asked: PlanRequest, name: str, top: int, json: Path | None) -> None:
    """Print the reasons for an operator's sharding and the next `top` strategies. Raise MspcError as `explain` does."""
    found = explain(captured, asked, name)
    if json is not None:
        write_report(json, "search --explain", asdict(found))
    if json == Path("-"):
        return
    print_line(f"{found.operator}, {found.name}")
    if found.line:
        print_line(f"    {found.line}")
    device = asked.device or captured.context.device_target
    print_line(f"decided by {found.origin} (*), for {device} programs on {asked.machine.name}")
    shown = [a for a in found.alternatives if a.taken]
    shown += [a for a in found.alternatives if not a.taken][:top]
    print_line(f"{len(found.alternatives)} ways to shard it, cheapest first, each with the cheapest plan around it:")
    for way in sorted(shown, key=lambda a: a.seconds):
        more = "never" if isinf(way.seconds) else f"{time_text(way.seconds)} more" if way.seconds else "the least"
        held = f", {size_text(way.memory)} held" if asked.memory else ""
        print_line(f"{'*' if way.taken else ' '} {more:>15}  {'; '.join(way.layouts)}{held}")
        for spent in way.where:
            innermost = "/".join(spent.name.split("/")[-2:])
            print_line(f"{'':19}{spent.seconds * 1e6:+.1f} us {spent.what} {innermost}")
    for why in (*found.cannot, *found.memory, *missing_rate_notes(found.missing_rates, asked.machine)):
        print_line(f"note: {why}")
    if found.others:
        others = listed(found.others, NAMED)
        print_line(f"note: the first of {len(found.others) + 1} operators of that name; the others are {others}")
    taken = next((a for a in found.alternatives if a.taken), None)
    if taken is not None and taken.seconds > 0 and found.origin != "search":
        print_line(f"note: {found.origin} speaks against the ways that cost less")
    elif asked.memory and found.alternatives and found.alternatives[0].memory > asked.memory:
        print_line(f"note: the first is over {size_text(asked.memory)}; with --memory another may be taken")


def compare_plans(captured: CapturedCall, asked: PlanRequest, files: Sequence[Path], json: Path | None) -> None:
    """Print the differences of two plan files, and the cost of each. Raise MspcError if one cannot be read or used."""
    first, second = (read_plan(file) for file in files)
    if names_layers_together(files[0]) != names_layers_together(files[1]):
        first, second = first.for_operators(()), second.for_operators(())  # the layers of both individually
    names = list(dict.fromkeys([*first.operators, *second.operators]))
    differing = [name for name in names if first.operators.get(name) != second.operators.get(name)]
    memory = memory_differences(entries_of(first), entries_of(second))
    plans = [plan_of_file(captured, asked, file) for file in files]
    if json is not None:
        pairs = {name: [plan.operators.get(name) for plan in (first, second)] for name in differing}
        operators = {
            name: [None if layouts is None else [str(layout) for layout in layouts] for layouts in pair]
            for name, pair in pairs.items()
        }
        told = {"operators": operators, "memory": [asdict(d) for d in memory]}
        write_report(json, "search --compare", {**told, "plans": [plan.content for plan in plans]})
    if json == Path("-"):
        return
    rows = [(name, _shown(first.operators.get(name)), _shown(second.operators.get(name))) for name in differing]
    if rows:
        headings = ("operator", str(files[0]), str(files[1]))
        print_table(TextTable(f"operators that differ: {len(rows)} of {len(names)}", headings, rows, (), (2, 1)))
    else:
        print_line("the plans shard every operator alike")
    if memory:
        print_table(memory_table(memory, (str(files[0]), str(files[1]))))
    print_table(
        TextTable(f"what they come to on {asked.machine.name}", COMPARED, _sides(plans, files), (1, 2, 3, 4, 5, 6))
    )
    missing = together(plan.missing_rates for plan in plans)
    for why in missing_rate_notes(missing, asked.machine):
        print_line(f"note: {why}")


COMPARED = ("plan", "step", "compute", "exposed", "bytes sent", "collectives", "memory")


def _sides(plans: Sequence[PlanResult], files: Sequence[Path]) -> list[tuple[str, ...]]:
    rows = [
        (
            str(file), time_text(plan.step), time_text(plan.compute), time_text(plan.exposed),
            size_text(int(plan.nbytes)), str(plan.collectives), size_text(plan.memory),
        )
        for plan, file in zip(plans, files, strict=True)
    ]  # fmt: skip
    a, b = plans
    signed = [f"{'-' if y < x else '+'}{time_text(abs(y - x))}" for x, y in
              ((a.step, b.step), (a.compute, b.compute), (a.exposed, b.exposed))]  # fmt: skip
    memory = f"{'-' if b.memory < a.memory else '+'}{size_text(abs(b.memory - a.memory))}"
    more = int(b.nbytes - a.nbytes)
    sent, collectives = f"{'-' if more < 0 else '+'}{size_text(abs(more))}", f"{b.collectives - a.collectives:+d}"
    rows.append(("second - first", *signed, sent, collectives, memory))
    return rows


def _shown(layouts: Sequence[Layout] | None) -> str:
    return "left open" if layouts is None else "; ".join(map(str, layouts))


_LINE = re.compile(
    r'^(?:subgraph @(?P<graph>"[^"\n]*"|[^\s("]+)\(|\s*(?P<node>%\d+)(?:\([^\n=]*\))? = [A-Za-z_]\w*\()', re.M
)
"""The beginning of a graph or of a node."""


def place_in_dump(program: Program, rank: int, graph: Graph, node: Node) -> str:
    """Return `rank_0/19_execute_0000.ir:231, %14`, "" for a node that is not in the graph. graph: the graph in the
    rank's file, or one with the same nodes."""
    found = next((each for each in graph.graphs() if node in each.nodes), None)
    if found is None:
        return ""
    text, wanted = program.text(rank), found.nodes.index(node)
    inside, count = False, 0
    for match in _LINE.finditer(text):
        if match["graph"] is not None:
            inside, count = match["graph"].strip('"') == found.name, 0
        elif inside and count == wanted:
            line = text.count("\n", 0, match.start("node")) + 1
            return f"{Path(program.execute[rank])}:{line}, {match['node']}"
        else:
            count += 1
    return ""
