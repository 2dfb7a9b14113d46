"""Reading of a folder or a file as graphs. All errors in it are reported before anything is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from mspc.commands.facts.equal_ranks import (
    FIELDS,
    OPERANDS,
    OWN,
    EquivalentRanks,
    check_in_file,
    dump_text,
    graphs_of_kinds,
    program_text,
)
from mspc.compiler.in_memory import stages_again
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.regular import read_begin
from mspc.ir.graph import PADDING, STAGE, Graph
from mspc.ir.graph import STAGES as PIPELINE
from mspc.ir.late_dataclass import dataclass
from mspc.ir.opaque import Module
from mspc.ir.text.parser import parse
from mspc.ir.text.source_text import name_of
from mspc.ops.op import REGISTRY
from mspc.runtime.program import PROGRAM, Program, load_program

CONFIGURED, DECIDED = ("recompute_cells", "shard_by_plan", "check_strategies"), "propagate_sharding"
"""Passes before the decision on layouts, of which the latest dumped one is used, and the pass that decides."""
PLANS = ("fuse_gradients", "lower_redistribution", "reduce_gradients", DECIDED)
"""Passes for which the dumps contain the graph of all ranks with its layouts, the latest first."""
STAGES = frozenset({*CONFIGURED, *PLANS})
MAX_NODES = 17_000
"""Most nodes of all programs of stages in a page, so that the page stays below 5 MB."""
_AFTER = re.compile(r"# after: (\w+),")


@dataclass
class Dump:
    """Content of a page. title: the folder or file as it was named. ranks: of the compile, 0 if unknown.

    kinds: of ranks, in the form of the page. ranks_of: the ranks of each. programs: a graph for each. stages: the
    program of the first ranks of each stage, by its number, even if `programs` lacks it because the page would be too
    large. plan: the graph of all ranks, with its layouts. configured, decided: the same before and after the pass that
    decides on layouts. module: of a single file.
    """

    title: str
    ranks: int = 0
    compile_id: str = ""
    mode: str = ""
    kinds: Sequence[Mapping[str, object]] = ()
    ranks_of: Sequence[Sequence[int]] = ()
    programs: list[Graph] = field(default_factory=list[Graph])
    stages: dict[int, Graph] = field(default_factory=dict[int, Graph])
    plan: Graph | None = None
    configured: Graph | None = None
    decided: Graph | None = None
    module: Module | None = None
    notes: list[str] = field(default_factory=list[str])


def read_dump(path: Path) -> Dump:
    """Read the folder of a compile, or one .ir file, MindSpore's too. Raise MspcError if there is no such path, it is
    no dump, it is truncated, or its files are of several compiles."""
    if path.is_dir():
        return _CompileFolder(path).dump()
    module = parse(dump_text(path), REGISTRY, str(path))
    graph = module.main
    ranks = graph.attrs.get("ranks", 0)
    return Dump(
        _title(path), ranks if isinstance(ranks, int) else 0, str(graph.attrs.get("compile_id", "")),
        str(graph.attrs.get("mode", "")), module=module,
    )  # fmt: skip


def _title(path: Path) -> str:
    """Return the name of a file or folder without its parent folders."""
    return path.name or path.resolve().name


def _shown(found: Dump) -> list[int]:
    """Return the numbers of the programs in a page: all, or for stages as many as fit into MAX_NODES. The first
    program of every stage has priority over others, and those of the first and the last stage over those between."""
    if len(found.stages) < 2:
        return list(range(len(found.programs)))
    first = {id(graph): stage for stage, graph in found.stages.items()}
    ends = (min(found.stages), max(found.stages))

    def rank(number: int) -> tuple[bool, bool, int]:
        stage = first.get(id(found.programs[number]))
        return stage is None, stage not in ends, number

    left, shown = MAX_NODES, list[int]()
    for number in sorted(range(len(found.programs)), key=rank):
        left -= sum(len(graph.nodes) for graph in found.programs[number].graphs())
        if shown and left < 0:
            break
        shown.append(number)
    return sorted(shown)


def several(count: int, what: str) -> str:
    """Return a count with a noun: `1 stage`, `2 stages`."""
    return f"{count} {what}{'s' * (count != 1)}"


def _said_of(graph: Graph) -> dict[str, object]:
    """Return the facts that all graphs of a compile share: the number of ranks that run it, and the mode. Before it is
    cut, the graph of several stages has the number of ranks of one stage."""
    ranks, stages = graph.attrs.get("ranks"), graph.attrs.get(PIPELINE, 1)
    is_whole = isinstance(ranks, int) and isinstance(stages, int) and STAGE not in graph.attrs
    return {"ranks": ranks * stages if is_whole else ranks, "mode": graph.attrs.get("mode")}


class _CompileFolder:
    """The folder of one compile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.program: Program = load_program(path)
        if not self.program.execute:
            raise MspcError(f"{path / PROGRAM} names no graph of any rank")

    def dump(self) -> Dump:
        program = self.program
        found = Dump(_title(self.path), program.ranks, program.compile_id, program.mode)
        kinds, found.programs, edited = graphs_of_kinds(program, numbers_count=False)
        for graph in found.programs:
            found.stages.setdefault(int(graph.attrs.get(STAGE, 0)), graph)
        held = sum(len(kind.ranks) for kind in kinds)
        shown, every = _shown(found), len(kinds)
        if len(shown) < every:
            kinds, found.programs = [kinds[i] for i in shown], [found.programs[i] for i in shown]
            found.notes.append(
                f"the page would be large with {several(every, 'program')} of {several(len(found.stages), 'stage')}: "
                f"in full it shows {several(len(shown), 'program')}; mspc compile --rank R writes others"
            )
        found.ranks_of = [kind.ranks for kind in kinds]
        found.kinds = kind_facts(program, kinds)
        found.notes += edited
        self._read_stages(found)
        if held < program.ranks:
            found.notes.append(f"the folder holds {held} of {program.ranks} ranks' programs")
        return found

    def _read_stages(self, found: Dump) -> None:
        """Read the graphs of all ranks from the dumps of the first rank, or make them again from the network in the
        program if there are none."""
        if not self.program.network:
            found.notes.append("the ranks' networks are their own, so there is no graph of all ranks and no layouts")
            return
        graphs = self._dumped((self.path / self.program.execute[found.ranks_of[0][0]]).parent, found.programs[0])
        plan = next((name for name in PLANS if name in graphs), None)
        if plan is None:
            program, path = self.program, str(self.path / PROGRAM)
            graphs = stages_again(program.network, path, program.compile_id, STAGES)
            plan = next((name for name in PLANS if name in graphs), None)
        if plan is None:
            found.notes.append("no layouts of results: mspc compile --save-graphs writes the graphs that have them")
            return
        found.plan = graphs[plan]
        configured = next((name for name in CONFIGURED if name in graphs), None)
        if configured and DECIDED in graphs:
            found.configured, found.decided = graphs[configured], graphs[DECIDED]

    def _dumped(self, folder: Path, program: Graph) -> dict[str, Graph]:
        """Return, by pass, the graphs of all ranks in a rank's dumps: the latest of `PLANS`, and the graphs before and
        after the decision."""
        texts: dict[str, Path] = {}
        for path in sorted(folder.glob("*.ir")):
            said = _AFTER.match(read_begin(path)) if path.is_file() else None
            if said is not None:
                texts[said[1]] = path
        wanted = {next((name for name in PLANS if name in texts), ""), *CONFIGURED, DECIDED}
        return {name: self._stage(path, program) for name, path in texts.items() if name in wanted}

    def _stage(self, path: Path, program: Graph) -> Graph:
        """Return the graph of all ranks in a file. Raise MspcError if it and the rank's program are not of one
        compile."""
        graph = parse(dump_text(path), REGISTRY, str(path)).main
        shown = path.relative_to(self.path)
        own, others = _said_of(graph), _said_of(program)
        for key, value in own.items():
            if value != others[key]:
                raise MspcError(
                    f"{self.path} holds dumps of different compiles: {shown} has {key} {value}, the programs have "
                    f"{others[key]}"
                )
        there = {parameter.name: parameter.type for parameter in graph.parameters}
        for parameter in program.parameters:
            known = (parameter.type, parameter.global_type)  # data parallel graphs have a rank's rows from the first
            if there.get(parameter.name, parameter.type) not in known and PADDING not in parameter.attrs:
                raise MspcError(
                    f"{self.path} holds dumps of different compiles: {parameter.name} is {there[parameter.name]} in "
                    f"{shown}, and {parameter.global_type or parameter.type} in the programs"
                )
        check_in_file(graph, path)
        return graph


_GRAPH = re.compile(r"subgraph @(.+)\([^()]*\) \{\Z")
_NODE = re.compile(r"^  %(\d+)")
_NEXT_FIELD = re.compile(r", (?=\w+: )")
LISTED = 64
"""Most ranks for which a page contains the numbers of their own."""


_Place = tuple[str, int]
"""A graph's name in the text, and the number of a node in it."""


def own_numbers(program: Program, kind: EquivalentRanks) -> dict[str, dict[int, dict[int, str]]]:
    """Return, by the name of a graph, node and rank, the text of the fields, operands and constants that differ between
    ranks of a kind. Raise MspcError as `program_text` does."""
    own: dict[_Place, dict[int, Mapping[str, str]]] = {}
    ranks = [rank for rank in kind.ranks if rank in program.execute][:LISTED]
    plain = OWN.sub("", kind.text)
    for rank in ranks[1:]:
        text = program_text(program, rank)
        if OWN.sub("", text) != plain:
            _note(own, kind.text, ranks[0], text, rank)
    found: dict[str, dict[int, dict[int, str]]] = {}
    for (graph, node), noted in sorted(own.items()):
        rows = {rank: noted.get(rank, noted[ranks[0]]) for rank in ranks}
        names = dict.fromkeys(name for row in rows.values() for name in row)
        differing = [name for name in names if len({row.get(name) for row in rows.values()}) > 1]
        if differing:
            found.setdefault(graph, {})[node] = {
                rank: ", ".join(f"{name}: {row[name]}" for name in differing if name in row)
                for rank, row in rows.items()
            }
    return found


def _note(own: dict[_Place, dict[int, Mapping[str, str]]], first_text: str, first: int, text: str, rank: int) -> None:
    """Record the nodes for which a rank's line differs from that of the kind's first rank by more than groups."""
    graph = ""
    for ours, theirs in zip(first_text.splitlines(), text.splitlines(), strict=False):
        head = _GRAPH.match(ours)
        graph = name_of(head[1]) if head else graph
        node = _NODE.match(ours)
        if node is None or ours == theirs:
            continue
        there, here = _numbers(ours), _numbers(theirs)
        if there != here:
            own.setdefault((graph, int(node[1])), {first: there})[rank] = here


def _numbers(line: str) -> dict[str, str]:
    """Return the fields, operands and constants of a node's line, by name."""
    plain = OWN.sub("", line)
    found: dict[str, str] = {}
    for fields, value in FIELDS.findall(plain):
        if not fields:
            found["value"] = value
        for item in _NEXT_FIELD.split(fields) if fields else ():
            name, _, text = item.partition(": ")
            found[name] = text.rstrip(", ")
    operands = OPERANDS.search(plain)
    return found | ({"operands": operands[2]} if operands else {})


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


def kind_facts(program: Program, kinds: Sequence[EquivalentRanks]) -> list[Mapping[str, object]]:
    """Return the kinds in the form of the page; kind k has the program of graph k. `own` holds the values of
    `own_numbers` of its nodes, by the name of their graph."""
    return [
        {"graph": i, "ranks": ranges(kind.ranks), "count": len(kind.ranks), "own": own_numbers(program, kind)}
        for i, kind in enumerate(kinds)
    ]
