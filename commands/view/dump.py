"""The programs in a page: the kinds of ranks that fit into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mspc.analysis.cost.machine import H200, Machine
from mspc.commands.facts.compiled import CompileFacts, stage_of
from mspc.commands.facts.equal_ranks import own_numbers
from mspc.commands.facts.graph import GraphFacts
from mspc.commands.facts.reading import file_facts, program_facts, with_global_graphs
from mspc.commands.report.tables import counted

MAX_NODES = 17_000
"""Most nodes of all programs of stages in a page, so that the page stays below 5 MB."""


def read_dump(path: Path, machine: Machine = H200) -> CompileFacts:
    """Read the folder of a compile with the graphs of all ranks, or one .ir file, MindSpore's too. The result has the
    kinds of ranks that fit into a page. Raise MspcError if there is no such path, it is no dump, it is truncated, or
    its files are of several compiles."""
    if not path.is_dir():
        return file_facts(path, machine)
    facts = program_facts(path, machine, numbers_count=False)
    kinds = _fitting(facts)
    notes = []
    if len(kinds) < len(facts.kinds):
        programs, stages = counted(len(facts.kinds), "program"), counted(len(facts.stages), "stage")
        notes.append(
            f"the page would be large with {programs} of {stages}: in full it shows {counted(len(kinds), 'program')}; "
            "mspc compile --rank R writes others"
        )
    held = sum(len(kind.ranks) for kind in facts.kinds)
    facts = with_global_graphs(replace(facts, kinds=kinds, notes=[*notes, *facts.notes]))
    if held < (facts.ranks or 0):
        facts.notes.append(f"the folder holds {held} of {facts.ranks} ranks' programs")
    return facts


def _fitting(facts: CompileFacts) -> tuple[GraphFacts, ...]:
    """Return the kinds in a page: all, or for stages as many as fit into MAX_NODES. The first of every stage has
    priority over others, and those of the first and the last stage over those between."""
    if len(facts.stages) < 2:
        return facts.kinds
    ends = (min(facts.stages), max(facts.stages))

    def priority(kind: GraphFacts) -> tuple[bool, bool]:
        stage = stage_of(kind.graph)
        return facts.stages[stage] is not kind, stage not in ends

    left, shown = MAX_NODES, list[GraphFacts]()
    for kind in sorted(facts.kinds, key=priority):
        left -= sum(len(graph.nodes) for graph in kind.graph.graphs())
        if shown and left < 0:
            break
        shown.append(kind)
    return tuple(sorted(shown, key=lambda kind: kind.ranks))


def ranges(ranks: Sequence[int]) -> list[list[int]]:
    """Return ranks as runs [first, last, step], so that thousands of ranks take little space."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and found[-1][0] == found[-1][1]:
            found[-1][1:] = [rank, rank - found[-1][0]]
        elif found and rank - found[-1][1] == found[-1][2]:
            found[-1][1] = rank
        else:
            found.append([rank, rank, 1])
    return found


def kind_facts(facts: CompileFacts) -> list[dict[str, object]]:
    """Return the kinds in the form of the page; kind k has the program of graph k. `own` holds the values of
    `own_numbers` of its nodes, by the name of their graph."""
    program = facts.program
    return [] if program is None else [
        {"graph": i, "ranks": ranges(kind.ranks), "count": len(kind.ranks),
         "own": own_numbers(program, kind.ranks, kind.text)}
        for i, kind in enumerate(facts.kinds)
    ]  # fmt: skip
