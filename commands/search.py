"""`mspc search` prints plans for a network side by side, and writes the plan of the search into a file. It
explains the sharding of an operator, and compares two plans."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from math import isinf
from pathlib import Path

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.timeline import together
from mspc.commands.comparison.all_differences import memory_differences
from mspc.commands.comparison.tables import memory_table
from mspc.commands.compile import CompileOptions, find_call
from mspc.commands.facts.reading import entries_of
from mspc.commands.options import numbers_of, size_of
from mspc.commands.report.plan_summary import doubts_text, memory_notes, missing_rate_notes, summary_lines
from mspc.commands.report.tables import TextTable, print_line, print_table, size_text, time_text, write_report
from mspc.commands.report.verbosity import ProgressLine
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError, listed
from mspc.ir.files.atomic_writing import check_writable
from mspc.ir.graph import Graph, Node
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.text.limits import MAX_RANKS, number_of
from mspc.plans.files.plan_file import SUFFIX, names_layers_together, read_plan, write_plan
from mspc.runtime.program import Program
from mspc.search.calibration.machine_file import machine_of
from mspc.search.plans.alternatives import WAYS, PlanRequest
from mspc.search.plans.explained import NAMED, explain
from mspc.search.plans.row import SEARCH, PlanResult, Plans, file_name
from mspc.search.plans.table import plan_of_file, plans_for
from mspc.search.stages.costing import StageRow
from mspc.search.stages.launch import StagePlans
from mspc.search.stages.network import AskedStages

AXES = 4
"""Most axes of a mesh."""

LONGEST = 1_000_000
"""Longest time limit of a search in seconds."""
CONFIGURED_MARK = "*"
"""Suffix of plans that preserve the script's strategies."""


@dataclass(frozen=True)
class SearchOptions:
    """The flags of `mspc search`.

    ranks: several numbers are tried one after the other. top: rows for each. free: ignore the script's strategies.
    machine: its name or a file, "" for H200s. memory: bytes of a rank, 0 for no limit. meshes: as "8x4", for which the
    search shards. seconds: limit of one search, 0 for none. explain: an operator to explain instead; compare: two plans
    to compare instead. out: file or folder for plans. stages: their numbers, () for all possible ones, None if not
    given; micro_batches: () for the script's number. summary: describe the best plan, and the best usual one, in common
    terms. device: for which programs are made, "CPU" or "GPU"; "" for that of a named machine, or else the script's.
    """

    compile: CompileOptions
    ranks: tuple[int, ...] = ()
    top: int = 5
    free: bool = False
    machine: str = ""
    memory: int = 0
    meshes: tuple[str, ...] = ()
    seconds: float = 0
    explain: str = ""
    compare: tuple[Path, Path] | None = None
    out: Path | None = None
    stages: tuple[int, ...] | None = None
    micro_batches: tuple[int, ...] = ()
    summary: bool = False
    device: str = ""


def ranks_of(text: str | None) -> tuple[int, ...]:
    """Return the numbers in `8,16,64`; () for None. Raise MspcError for any other text."""
    return numbers_of(text, f"--ranks is {text!r:.200}, not numbers of ranks as in 8 or 8,16,64")


def memory_of(text: str | None) -> int:
    """Return the bytes in `80GB`, `512MiB` or `1000`; 0 for None. Raise MspcError for any other text."""
    return 0 if text is None else size_of(text, "--memory")


def meshes_of(text: str | None) -> tuple[str, ...]:
    """Return the meshes in `8x8,16x4`, with axes from the slowest to the fastest varying rank; () for None. Raise
    MspcError for any other text."""
    parts = [] if text is None else text.split(",")
    found = [[number_of(size, MAX_RANKS) for size in part.split("x")] for part in parts]
    if not all(len(sizes) <= AXES and all(sizes) for sizes in found):
        raise MspcError(f"--mesh is {text!r:.200}, not meshes of at most {AXES} axes as in 8x4 or 8x8,16x4")
    return tuple(dict.fromkeys("x".join(map(str, sizes)) for sizes in found))


def cases_of(
    ranks: Sequence[int], meshes: Sequence[str], stages: Sequence[int] | None = None
) -> list[tuple[int | None, str]]:  # fmt: skip
    """Return (ranks, mesh) of all requested cases; ranks is None for the script's own number.

    stages: the requested numbers, () for all, None without stages. If stages are given, a mesh covers the ranks of one
    stage.
    """
    sizes = {mesh: math.prod(map(int, mesh.split("x"))) for mesh in meshes}
    if stages is not None and meshes:
        every = {mesh: ranks or [size * count for count in stages] or [None] for mesh, size in sizes.items()}
        return [(number, mesh) for mesh, numbers in every.items() for number in numbers]
    found: list[tuple[int | None, str]] = []
    for number in dict.fromkeys([*ranks, *sizes.values()]):
        found += [(number, mesh) for mesh in [m for m, size in sizes.items() if size == number] or [""]]
    return found or [(None, "")]


def search_target(target: str, options: SearchOptions) -> None:
    """Try plans for a script, or for the network that `target` names, and print the table. Raise MspcError for errors
    in the command, the script or the network."""
    options = _with_own_stages(target, options)
    cases = cases_of(options.ranks, options.meshes, options.stages)
    _check(options, len(cases))
    machine = machine_of(options.machine)
    loudness = options.compile.loudness
    if machine.doubts and not loudness.quiet:
        again = f"measure it anew while nothing else runs: `mspc calibrate --out {options.machine}`"
        print(doubts_text(f"the machine {options.machine}", machine.doubts, again), file=sys.stderr)
    found: list[Plans | StagePlans] = []
    device = machine.device
    with ProgressLine(not loudness.quiet) as progress:
        for ranks, mesh in cases:
            launched = find_call(target, replace(options.compile, ranks=ranks))

            asked = PlanRequest(
                launched.ranks, machine, options.device or (machine.device if options.machine else ""), options.free,
                options.memory, mesh, options.seconds,
            )  # fmt: skip
            device = asked.device or launched.captured.context.device_target
            if options.explain:
                captured = launched.captured
                if options.stages is not None:  # layouts are those of the ranks of one stage
                    from mspc.search.stages.launch import of_one_stage  # late: few networks have stages

                    captured, asked = of_one_stage(captured, asked, AskedStages(options.stages, mesh=asked.mesh))
                explain_node(captured, asked, options.explain, options.top, options.compile.json)
                return
            if options.compare is not None:
                compare_plans(launched.captured, asked, options.compare, options.compile.json)
                return

            def tell(way: str, where: str = mesh or f"{asked.ranks} ranks") -> None:
                progress.show(f"{way} on {where}")

            with launched.captured.errors_at_launch():
                found.append(_plans(launched.captured, asked, options, found, tell))
    _tell(found, machine, device, options)


def _with_own_stages(target: str, options: SearchOptions) -> SearchOptions:
    """Return the options with the script's number of stages if it has several and a mesh or an explanation concerns the
    ranks of one stage."""
    if options.stages is not None or not (options.meshes or options.explain):
        return options
    ranks = next(iter(options.ranks), None)
    own = find_call(target, replace(options.compile, ranks=ranks)).captured.context.pipeline_stages
    return replace(options, stages=(own,)) if own > 1 else options


def _plans(
    captured: CapturedCall, asked: PlanRequest, options: SearchOptions, known: Sequence[Plans | StagePlans],
    tell: Callable[[str], None],
) -> Plans | StagePlans:  # fmt: skip
    """Return the plans of a launch, in stages if they are requested or the script has several. known: plans of earlier
    cases. Raise MspcError if the search is impossible."""
    own = captured.context.pipeline_stages
    if options.stages is not None or options.micro_batches or own > 1:
        from mspc.search.stages.launch import search_in_stages  # late, as above

        stages = options.stages if options.stages is not None else (own,) if own > 1 else ()
        numbers = AskedStages(stages, options.micro_batches, options.top, asked.mesh)
        return search_in_stages(captured, asked, numbers, tell)
    same = next((p for p in known if isinstance(p, Plans) and p.plans[0].ranks == asked.ranks), None)
    left_out = () if same is None else (WAYS[:1], same.usual)
    return plans_for(captured, asked, tell, *left_out)


def _tell(found: Sequence[Plans | StagePlans], machine: Machine, device: str, options: SearchOptions) -> None:
    """Write the plans into files, and print them. device: for which programs are made."""
    rows = [(p, row) for p in found for row in p.plans[: options.top]]
    if options.out is not None and options.out.suffix == SUFFIX:
        write_plan(options.out, found[0].file_of(SEARCH))
    elif options.out is not None:
        options.out.mkdir(exist_ok=True)
        for plans, row in rows:
            write_plan(options.out / file_name(row), plans.file_of(row.name))
    if options.compile.json is not None:
        content = [{**row.content, "file": file_name(row)} for _, row in rows]
        write_report(options.compile.json, "search", {"machine": machine.name, "plans": content})
    if options.compile.json != Path("-"):
        target = f"of {device} programs, the fastest first, on {machine.name}"
        print_stage_plans([plans for plans in found if isinstance(plans, StagePlans)], target, options.top)
        _print([plans for plans in found if isinstance(plans, Plans)], target, options)
        if device != machine.device:
            print_line(f"note: programs are for {device}, and rates are of a {machine.device}: see --device, --machine")
        # Over all rows, because some of those that are shown may not have been compiled.
        every = (row for plans in found for row in plans.plans)
        rates = (row.missing_rates for row in every)
        for why in missing_rate_notes(together(rates), machine):
            print_line(f"note: {why}")
        for plans in found if options.summary else ():
            for line in summary_lines(plans.plans, machine):
                print_line(line)
        if options.out is not None and not options.out.suffix:
            print_line(f"the plans are in {options.out}; `mspc compile --strategies` takes one")
        elif options.out is not None:
            where = f"the plan of the search is in {options.out}"
            print_line(f"{where}; `mspc compile --strategies {options.out}` takes it")


def _check(options: SearchOptions, cases: int) -> None:
    """Raise MspcError if options are invalid or contradict each other."""
    if not 0 <= options.seconds <= LONGEST:
        raise MspcError(f"--time-limit is {options.seconds}, not a number of seconds up to {LONGEST}", code="E0105")
    if options.explain and options.compare is not None:
        raise MspcError(
            "--explain and --compare are questions of their own", notes=["ask one after the other"], code="E0106"
        )
    single = "--explain" if options.explain else "--compare" if options.compare is not None else ""
    if options.explain and options.micro_batches:
        raise MspcError(
            "--explain tells of the layouts of the script's own micro-batches", notes=["ask without --micro-batches"]
        )
    if options.meshes and options.micro_batches and options.stages is None:
        raise MspcError(
            "--mesh is of all ranks in one stage, and --micro-batches looks for stages of any number of ranks",
            notes=["say with --stages how many stages there are: a mesh is of the ranks of one of them then"],
        )  # fmt: skip
    if options.out is not None:
        if single:
            raise MspcError(f"--out has no meaning beside {single}, which looks for no plan")
        if options.out.suffix not in ("", SUFFIX):
            raise MspcError(
                f"--out {options.out}: a plan's name ends in {SUFFIX}, that of a folder in nothing", code="E0109"
            )
        if not options.out.suffix and options.out.exists() and not options.out.is_dir():
            raise MspcError(f"--out {options.out} is no folder")
        check_writable(options.out / f"plan{SUFFIX}" if options.out.is_dir() else options.out, "--out")
        single = "--out" if options.out.suffix else ""
    if single and cases > 1:
        raise MspcError(f"{single} is for one case", notes=["give one number with --ranks, or one mesh with --mesh"])


def _print(found: list[Plans], target: str, options: SearchOptions) -> None:
    if not found:
        return
    rows = [_row(plan) for plans in found for plan in plans.plans[: options.top]]
    ranks = "mesh" if options.meshes else "ranks"
    headings = (ranks, "plan", "step", "compute", "exposed", "bytes sent", "collectives", "memory", "gap")
    print_table(TextTable(f"plans {target}", headings, rows, (0, 2, 3, 4, 5, 6, 7, 8)))
    if any(plan.keeps_strategies for plans in found for plan in plans.plans[: options.top]):
        print_line(f"note: {CONFIGURED_MARK} keeps the script's own strategies, the others go without them")
    alike = max((plan.alike for plans in found for plan in plans.plans if plan.name == SEARCH), default=0)
    if alike:
        print_line(f"note: {alike} equal layers are one graph: they have equal layouts, in all plans and in the proof")
    for plans in found:
        for plan in plans.plans[: options.top]:
            for told in _notes(plan, bool(alike)):
                print_line(f"note: {plan.name} on {plan.ranks} ranks {told}")
        for why in plans.refused:
            print_line(f"note: {why}")


def _row(plan: PlanResult) -> tuple[str, ...]:
    return (
        (plan.name == SEARCH and plan.mesh) or str(plan.ranks),
        plan.name + f" {CONFIGURED_MARK}" * plan.keeps_strategies, time_text(plan.step),
        time_text(plan.compute), time_text(plan.exposed), size_text(int(plan.nbytes)),
        str(plan.collectives), size_text(plan.memory), "-" if plan.gap is None else f"{plan.gap:.1%}",
    )  # fmt: skip


def _notes(plan: PlanResult, all_alike: bool) -> list[str]:
    """Return notes with facts that a row does not show, as unequal traffic of ranks and memory-saving measures.
    all_alike: equal layers are one graph in all rows."""
    found: list[str] = []
    if plan.taken_from:
        found.append(f"takes the plan of {plan.taken_from}, which is faster than its own")
    if plan.same_as:
        found.append(f"changes nothing against {plan.same_as}" + f": {plan.reason}" * bool(plan.reason))
    if plan.made_to_fit:
        found.append(f"fits by {plan.made_to_fit}; without that it takes {size_text(plan.otherwise)}")
    if plan.alike and not all_alike:
        found.append(f"is of the program that runs its {plan.alike} equal layers as one graph")
    if plan.search_gap is not None:
        found.append(
            f"is within {plan.search_gap:.1%} of the minimum of the search's sum (bytes, collectives and memory "
            "traffic, one by one), which is not the step's time"
        )
    elif plan.name == SEARCH:
        found.append("has no gap to the minimum of the search's sum, because the search does not compare this plan")
    if plan.mean_nbytes < plan.nbytes - 0.5:
        sent, mean = size_text(int(plan.nbytes)), size_text(int(plan.mean_nbytes))
        found.append(f"sends {sent} from rank {plan.rank}, {mean} in the mean of all")
    found += memory_notes(plan.recompute, plan.cut_further, plan.gathered_again, plan.offload, plan.offload_states)
    return found


AUTO = "auto"
HEADINGS = (
    "ranks", "plan", "stages", "schedule", "micro-batches", "step", "idle", "bytes sent", "memory", "held less by",
    "units of each chunk",
)  # fmt: skip
FEW = 8
"""Most runs of equal numbers of units that are listed in a row."""


def stages_of(text: str | None) -> tuple[int, ...]:
    """Return the numbers in `1,2,4`; () for `auto` and for None. Raise MspcError for any other text."""
    mistake = f"--stages is {text!r:.200}, not numbers as in 4 or 2,4,8, or {AUTO}"
    return () if text == AUTO else numbers_of(text, mistake)


def micro_batches_of(text: str | None) -> tuple[int, ...]:
    """Return the numbers in `4,8`; () for None. Raise MspcError for any other text."""
    return numbers_of(text, f"--micro-batches is {text!r:.200}, not numbers as in 4 or 2,4,8")


def print_stage_plans(found: Sequence[StagePlans], target: str, top: int) -> None:
    """Print the rows of every number of ranks, and notes on them."""
    if not found:
        return
    rows = [_stage_row(row) for plans in found for row in plans.plans[:top]]
    numbers = (0, 2, 4, 5, 6, 7, 8)
    print_table(TextTable(f"plans in stages {target}", HEADINGS, rows, numbers, (10,)))
    for plans in found:
        mesh = next((row.mesh for row in plans.plans[:top] if row.mesh), "")
        if mesh:
            print_line(f"note: layouts are those that the search finds on a mesh of {mesh} in every stage")
        for row in plans.plans[:top]:
            measures = memory_notes(row.recompute, row.cut_further, 0, row.offload, row.offload_states)
            for told in filter(None, (row.note, *measures)):
                print_line(f"note: {row.name} on {row.ranks} ranks {told}")
        own = next((row for row in plans.plans if row.name == SEARCH), None)
        if own is not None and own.foreseen:
            of = f"of all borders between {plans.units} units, schedules and micro-batches"
            gap = plans.gap
            what = "is proved to be the quickest" if gap < 5e-4 else f"is within {gap:.1%} of the quickest"
            print_line(f"note: {SEARCH} on {own.ranks} ranks {what} {of}, by the times of single units")
        for why in dict.fromkeys(plans.refused):
            print_line(f"note: {why}")


def _stage_row(row: StageRow) -> tuple[str, ...]:
    held = ["slices"] * (row.cut_further > 0) + ["cells again"] * bool(row.recompute)
    held += ["states on host"] * row.offload_states + ["values on host"] * bool(row.offload)
    return (
        str(row.ranks), row.name, str(row.stages), row.schedule, str(row.micro_batches), time_text(row.step),
        f"{row.idle:.1%}" if row.stages > 1 else "-", size_text(int(row.nbytes)), size_text(row.memory),
        ", ".join(held) or "-", _cells(row.cells),
    )  # fmt: skip


def _cells(cells: Sequence[int]) -> str:
    """Return `4 x 8, 2 x 7` for four successive chunks of 8 units and two of 7; "-" if empty."""
    runs = [(len([*equal]), count) for count, equal in itertools.groupby(cells)]
    shown = [f"{times} x {count}" if times > 1 else str(count) for times, count in runs[:FEW]]
    return ", ".join([*shown, *["..."] * (len(runs) > FEW)]) or "-"


# `mspc search --explain NODE` explains the sharding of an operator, and `--compare A B` compares two plans ----


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
