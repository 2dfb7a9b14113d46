"""`mspc compile` compiles a script into files and a table; nothing is run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from mspc.commands.captured import ValuesOfRanks
from mspc.commands.facts.compiled import Report, make_report
from mspc.commands.options import NOTHING_SAID, ImportOptions, is_capture, is_imported, is_stablehlo, target_name
from mspc.commands.report.tables import print_report, print_summary, write_report
from mspc.commands.report.verbosity import NORMAL, Loudness, ProgressLine
from mspc.compiler.driver import Compiled, decided_by_script
from mspc.engine.capture import CapturedCall, NamedTarget, build, capture, parse_target
from mspc.engine.strategy_files import StrategyFiles, sharded_by_file
from mspc.ir.diagnostics import MspcError, told_at
from mspc.ir.files.tensors import StoredTensor, write_tensors
from mspc.ir.late_dataclass import dataclass
from mspc.ir.provenance import provenance_texts
from mspc.mindspore_api.setting_kind import say_once
from mspc.mindspore_api.state import Session
from mspc.output.dumps import MODULE, FirstValue, OutputFolder, StageFiles, first_values, is_execute, numbered, program
from mspc.output.programs import ObservedSession, Programs, compile_for
from mspc.runtime.program import PROGRAM, WEIGHTS, Settings

DEFAULT_FOLDER = Path("saved_graph")


@dataclass(frozen=True)
class CompileOptions:
    """The flags of `mspc compile`.

    ranks: None to read the number from mpirun or the script. level: 0 to 2, the amount of files. only_ranks: () for
    all. kinds_only: write only the first of the ranks with programs that are equal except for ranks, groups and
    offsets, if there are more ranks than `few`. few: most ranks that are written if their networks differ; 0 for all.
    inputs: types of a named network's inputs. json: file for the table as JSON ("-": stdout), or None. weights: write
    all first values, including those that a run can compute itself. strategies: a file with the strategies of
    operators. schedule: file for the timeline of stages, or None. trace: folder for traces of the predicted step, or
    None. machine: name or file of the machine for the times of both. loudness: amount of output beside the requested
    results. all_rows: print the tables, not a summary. imported: options of a network from another framework.
    out_torch: file for its plan as code for DTensor, or None. out_jax: file for the plan of a step of JAX as
    PartitionSpecs, or None. emit: a form in which the programs of all ranks are written, too: "stablehlo", or "".
    """

    ranks: int | None = None
    level: int = 0
    out: Path | None = None
    only_ranks: tuple[int, ...] = ()
    kinds_only: bool = False
    few: int = 0
    inputs: tuple[str, ...] = ()
    json: Path | None = None
    script_arguments: tuple[str, ...] = ()
    weights: bool = False
    strategies: Path | None = None
    schedule: Path | None = None
    trace: Path | None = None
    machine: str = ""
    loudness: Loudness = NORMAL
    all_rows: bool = False
    imported: ImportOptions = NOTHING_SAID
    out_torch: Path | None = None
    out_jax: Path | None = None
    emit: str = ""


def compile_target(target: str, options: CompileOptions) -> None:
    """Compile a script, or the network that `target` names, write the folder and print the table. Raise MspcError for
    errors in the command, the script or the network."""
    if Session.from_environment().rank > 0:
        return  # started by mpirun: its first rank compiles for all
    _check_files(options)
    found = find_call(target, options)
    captured, ranks, context = found.captured, found.ranks, found.captured.context
    for rank in options.only_ranks:
        if not 0 <= rank < ranks:
            raise _no_rank(rank, ranks, options.ranks is None)
    wanted: Sequence[int] = sorted(set(options.only_ranks)) if options.only_ranks else range(ranks)
    level = max(options.level, context.save_graphs)
    folder = options.out or Path(context.save_graphs_path or DEFAULT_FOLDER)
    _check_apart(options, folder)
    loudness = options.loudness
    opened = _output_folder(captured, options, folder)
    with ProgressLine(not loudness.quiet and not loudness.verbose) as progress, opened as output:
        progress.show(f"compiling {captured.script} for {ranks} rank{'s' if ranks > 1 else ''}")
        first = compile_for(captured, ranks, level, compared=found.asked, on_pass=loudness.on_pass())
        settings = Settings(context.matmul_allow_tf32, context.deterministic, first.compiled.config.device)
        values = first_values(first.compiled.traced, first.compiled.graph)
        own = _values_of_ranks(found.target, ranks, values, first.compiled)
        programs = Programs(first, wanted, found.asked(), level, found.rerun, apart=own is not None)
        if programs.differ and options.few:
            wanted = wanted[: options.few]
        kinds_only = options.kinds_only and not programs.differ and len(wanted) > max(1, options.few)
        timed = is_capture(found.target)
        make_table = _write(output, programs, settings, values, wanted, level, kinds_only, progress, timed, own)
        stored = [v for v in values if options.weights or v.description is None]
        tensors = [StoredTensor(v.name, v.type, v.make, v.part) for v in stored] if own is None else own.tensors
        output.write_by(WEIGHTS, lambda file: write_tensors(file, tensors))
        _write_module(output, options.emit, programs, ranks)
        output.commit()
        StrategyFiles().write(first.compiled, context, trains=True)
    if not loudness.quiet:
        for name, text in context.changing_nothing("compile", first.compiled.config.device):
            say_once(name, text)
        for text in first.compiled.traced.warnings:
            print(f"warning: {text}", file=sys.stderr)
    is_module = not timed and (is_imported(found.target) or options.imported.torch)
    is_module = is_module and not is_stablehlo(found.target)
    notes = _write_others(options, programs, wanted, captured, is_module)
    if options.json is None and loudness.quiet:
        return  # nobody reads the table
    report = make_table()
    report.notes += notes
    report.notes += [
        f"{place}: not compiled, since it is a later launch: {place.text.strip()}" for place in captured.later
    ]
    if ignored := first.compiled.traced.ignored_strategies:
        report.notes.append(f"{ignored} strategies set with shard() do not count in mode {report.mode}")
    if report.without_kernels:
        rows = "; ".join(row.sentence for row in report.without_kernels)
        report.notes.append(f"no kernel of mspc's for GPUs, so they run through CuPy, in more launches: {rows}")
    if programs.differ and not timed:
        report.notes.append("the network depends on get_rank(), so the script was run once for every rank")
    elif programs.runs > 1 and not timed:
        report.notes.append(found.why_again(programs.runs))
    if options.json is not None:
        write_report(options.json, "compile", asdict(report))
    if options.json != Path("-") and not loudness.quiet:
        (print_report if options.all_rows else print_summary)(report, folder)


def _write_module(output: OutputFolder, form: str, programs: Programs, ranks: int) -> None:
    """Write the programs of all ranks in a form, if one is asked for: "stablehlo"."""
    if not form:
        return
    from mspc.output.stablehlo.programs import module_text  # late: few compiles ask for it
    from mspc.verify.scale.rank_kinds import kinds_of, merged  # late, as above

    kinds = kinds_of(programs.first.compiled.rank_graphs, range(0 if programs.differ else ranks))
    if programs.differ:
        kinds = merged([k for r in range(ranks) for k in kinds_of(programs.of_rank(r).compiled.rank_graphs, [r])])
    output.write(MODULE, module_text(kinds, ranks, "ranks").encode())


def _values_of_ranks(
    target: NamedTarget | Path, ranks: int, values: Sequence[FirstValue], compiled: Compiled
) -> ValuesOfRanks | None:
    """Return the first values of all ranks of a capture that has values of parameters; None for other programs."""
    known = {value.name for value in values if value.description is None} & compiled.traced.parameters.keys()
    return ValuesOfRanks(target, ranks) if is_capture(target) and ranks > 1 and known else None


def _check_files(options: CompileOptions) -> None:
    """Raise MspcError if a file outside the folder cannot be written or an option has no effect."""
    if options.emit not in ("", "stablehlo"):
        raise MspcError(f"--emit writes stablehlo, not {options.emit}")
    if options.emit and options.only_ranks:
        raise MspcError("--emit writes the program of all ranks; leave out --rank", code="E0106")
    for option, path in (("--out-torch", options.out_torch), ("--out-jax", options.out_jax)):
        if path is not None and path.suffix != ".py":
            raise MspcError(f"{option} writes Python, and {path} is called otherwise", code="E0109")
    if options.schedule is not None or options.trace is not None:
        from mspc.commands.report.plan_summary import check_schedule_file  # late: few compiles have stages

        check_schedule_file(options.schedule, options.machine)
    elif options.machine:
        raise MspcError(
            f"--machine {options.machine} says whose times --schedule and --trace have, which are not there",
            notes=["add --schedule FILE.txt or --trace DIR"], code="E0107",
        )


def _write_others(
    options: CompileOptions, programs: Programs, wanted: Sequence[int], captured: CapturedCall, is_module: bool
) -> list[str]:  # fmt: skip
    """Write the files outside the folder and return notes on their content. Raise MspcError if one cannot be written
    or the network has stages, which code for DTensor does not support. is_module: the network is one of PyTorch."""
    compiled, script = programs.first.compiled, captured.script
    notes: list[str] = []
    if options.schedule is not None:
        from mspc.commands.report.plan_summary import write_schedule_file  # late, as above

        notes = write_schedule_file(compiled, options.schedule, options.machine)
    if options.out_torch is not None:
        from mspc.ir.files.atomic_writing import write_atomically  # late, as above
        from mspc.readers.pytorch.plans.torch_code import plan_back, torch_code
        from mspc.readers.pytorch.plans.torch_placements import placement_plan, placements_code

        if compiled.config.pipeline_stages > 1:
            raise MspcError("--out-torch writes plans of layers, and this one has stages")
        if is_module:
            code = torch_code(plan_back(compiled.graph), str(script), compiled.compile_id)
        else:
            code = placements_code(placement_plan(compiled.graph), str(script), compiled.compile_id)
        write_atomically(options.out_torch, lambda file: file.write(code.encode()))
    if options.out_jax is not None:
        from mspc.commands.stablehlo import write_partition_specs  # late: few networks come from JAX

        write_partition_specs(compiled, captured.target, options.out_jax)
    if options.trace is not None:
        from mspc.output.execution_traces import write_traces  # late, as above
        from mspc.search.calibration.machine_file import machine_of  # late, as above

        write_traces(options.trace, lambda rank: programs.of_rank(rank).compiled, wanted, machine_of(options.machine))
    return notes


@contextlib.contextmanager
def _output_folder(captured: CapturedCall, options: CompileOptions, folder: Path) -> Generator[OutputFolder]:
    """Yield the folder for the output. If the script has set one that cannot be written, the error has its line."""
    place = None if options.out else captured.context.place_of("save_graphs_path")
    with contextlib.ExitStack() as stack:
        with told_at(place):
            output = stack.enter_context(OutputFolder(folder))
        yield output


def _check_apart(options: CompileOptions, folder: Path) -> None:
    """Raise MspcError if a file or a folder beside the compile's folder is in it: that one is replaced as a whole."""
    place = Path(os.path.realpath(folder))
    for option, path in (("--json", options.json), ("--trace", options.trace)):
        other = Path(os.path.realpath(path or "-"))
        if path not in (None, Path("-")) and (place in (other, *other.parents) or other in place.parents):
            message = f"{option} {path} lies in or around {folder}, which is replaced as a whole"
            raise MspcError(message, notes=["give it another place"])


@dataclass(frozen=True)
class FoundCall:
    """A launch, the target and options that led to it, and its session. modules: names of those imported before it."""

    target: NamedTarget | Path
    options: CompileOptions
    session: ObservedSession
    captured: CapturedCall
    ranks: int
    modules: frozenset[str]

    def asked(self) -> bool:
        """Return whether the script, or `construct` as far as it was read, has queried its rank among several."""
        return self.session.rank_was_asked and self.ranks > 1

    def why_again(self, runs: int) -> str:
        """Return the message for a script that was run several times for a network that is independent of the rank."""
        place = self.session.seen[0]
        where = f"{place} asks which rank it is ({place.text.strip()})" if place else "it may ask which rank it is"
        return f"the script was run {runs} times, once for each of so many ranks, as {where}; their networks are equal"

    @contextlib.contextmanager
    def rerun(self, rank: int) -> Generator[CapturedCall]:
        """Yield the launch of another rank: the script runs again with its own modules and without output. The
        session of that rank is active in the context."""
        from mspc.engine.simulate import UserState

        first = self.session
        session = Session(rank, first.size, rank, first.local_size, launched=first.launched, speaks=False)
        user = UserState(session, shown=False, shared_modules=set(self.modules))
        user.enter()
        try:
            yield _launch(self.target, self.options, session)
        finally:
            user.leave()


def find_call(target: str, options: CompileOptions) -> FoundCall:
    """Return the first launch of a script, or the network that `target` names, with the number of ranks. Raise
    MspcError for errors in the command or the script."""
    parsed = parse_target(target)
    if is_capture(parsed):
        options = _with_ranks_of(parsed, options)
    session = _session(options, Session.from_environment(), min(options.only_ranks, default=0))
    modules = frozenset(sys.modules)
    captured = _launch(parsed, options, session)
    return FoundCall(parsed, options, session, captured, _ranks(options, session, captured), modules)


def _write(
    output: OutputFolder, programs: Programs, settings: Settings, values: Sequence[FirstValue], wanted: Sequence[int],
    level: int, kinds_only: bool, progress: ProgressLine, timed: bool, first: ValuesOfRanks | None,
) -> Callable[[], Report]:  # fmt: skip
    """Write the files of the requested ranks and return a function that makes the report of the first of them."""
    report: Callable[[], Report] | None = None
    execute: dict[int, str] = {}
    digests: dict[str, str] = {}
    kinds: dict[int, int] = {}
    provenance: dict[str, dict[str, str]] = {}
    written: set[int | None] = set()
    for done, rank in enumerate(wanted, 1):
        progress.show(f"writing rank {rank} ({done} of {len(wanted)})")
        built = programs.of_rank(rank)
        place = None
        if first is not None:
            place = partial(first.place, rank=rank, values=first_values(built.compiled.traced, built.compiled.graph))
        own = StageFiles(level, place)
        if kinds_only:
            kind = built.compiled.rank_graphs.kind(rank, own.wanted)
            if kind is not None and kind in written:
                kinds[rank] = kind
                continue
        graph = built.compiled.rank_graph(rank, own, own.wanted, alone=len(wanted) == 1 and first is None)
        built.compiled.ranks_done.clear()  # thousands of ranks would fill the memory
        report = report or partial(make_report, built.compiled, graph, rank, timed)
        for name, content in numbered(rank, [*built.shared, *own.files]):
            output.write(name, content)
            if is_execute(name):
                execute[rank] = name
                digests[name] = hashlib.sha256(content).hexdigest()
        kind = built.compiled.rank_graphs.kind_of.get(rank)
        if programs.differ or kind is None or kind not in written:
            provenance[execute[rank]] = provenance_texts(graph)
        written.add(kind)
        if not programs.differ and kind is not None:
            kinds[rank] = kind
    compiled = programs.first.compiled
    if first is not None:
        first.shard(compiled)
    compared = not programs.differ and not decided_by_script(compiled.graph, compiled.config.mode)
    network = programs.first.network if compared else ""
    output.write(PROGRAM, program(compiled, execute, digests, settings, values, network, kinds, provenance))
    assert report is not None
    return report


def _session(options: CompileOptions, outside: Session, rank: int) -> ObservedSession:
    """Return the session of the first requested rank; a size that only the script knows is set later."""
    size = options.ranks or (outside.size if outside.size > 1 else 0)
    if outside.size > 1 and outside.size != size:
        raise MspcError(f"mpirun started {outside.size} ranks, but --ranks is {size}", code="E0117")
    if size and rank >= size:
        raise _no_rank(rank, size)
    speaks = not options.loudness.quiet
    return ObservedSession(rank, size or 1, rank, size or 1, launched=bool(size), speaks=speaks)


def _launch(target: NamedTarget | Path, options: CompileOptions, session: Session) -> CapturedCall:
    """Return the first launch, sharded by `--strategies` if given. Raise MspcError if `--plan` is given, too."""
    if options.strategies is not None and options.imported.plan:
        raise MspcError("--plan and --strategies both say how the network is sharded; give one of them", code="E0106")
    found = _own_launch(target, options, session)
    if options.strategies is None:
        return found
    return replace(found, context=sharded_by_file(found.context, options.strategies))


def _with_ranks_of(folder: Path, options: CompileOptions) -> CompileOptions:
    """Return the options with the number of ranks of a capture; that of one device may be planned for any number. Raise
    MspcError if another one is asked for."""
    from mspc.commands.captured import ranks_in  # late: few commands read captures

    ranks = ranks_in(folder)
    if options.ranks not in (None, ranks) and ranks > 1:
        raise MspcError(f"{folder} was captured on {ranks} ranks, not on {options.ranks}", code="E0112")
    return replace(options, ranks=ranks if ranks > 1 else options.ranks or 1)


def _own_launch(target: NamedTarget | Path, options: CompileOptions, session: Session) -> CapturedCall:
    if is_capture(target):
        from mspc.commands.captured import capture_step  # late, as above

        return capture_step(target, session)
    if is_stablehlo(target) or options.imported.jax:
        from mspc.commands.stablehlo import capture_stablehlo  # late: few networks come from JAX

        return capture_stablehlo(target, options.imported, options.inputs, session)
    if is_imported(target) or options.imported.torch:
        from mspc.commands.imported import capture_imported  # late: few networks come from PyTorch

        return capture_imported(target, options.imported, options.inputs, session)
    if options.imported != NOTHING_SAID:
        raise MspcError(
            f"{options.imported.given} is for a network of PyTorch, and {target_name(target)} is none",
            notes=["mspc compile model.pt2, or 'model.py:make' with --torch"],
        )
    if isinstance(target, NamedTarget):
        if not options.inputs:
            raise MspcError(
                f"the network {target.name} needs its inputs",
                notes=["give one --input per argument: --input 'float32[16,32]'"],
            )
        return build(target, options.inputs, session)
    if options.inputs:
        raise MspcError(
            f"--input is for a named network, and {target} is a script",
            notes=[f"write '{target}:Net()' to name one"],
        )
    return capture(target, options.script_arguments, session)


def _ranks(options: CompileOptions, session: Session, captured: CapturedCall) -> int:
    if options.ranks is not None:
        return options.ranks
    wanted = captured.context.device_num
    if not session.launched:
        return wanted or 1
    if wanted and wanted != session.size:
        raise MspcError(
            f"mpirun started {session.size} ranks, but the script's device_num is {wanted}",
            captured.context.place_of("device_num"),
            [f"start it with mpirun -n {wanted}, or give --ranks {session.size} to overrule the script"],
            code="E0117",
        )
    return session.size


def _no_rank(rank: int, ranks: int, may_mean_ranks: bool = False) -> MspcError:
    """Return the error for a rank out of range. may_mean_ranks: the command line does not set the number of ranks."""
    example = f", as in --ranks {rank}" if rank > 1 else ""
    notes = [f"--ranks says how many ranks there are{example}; --rank names those that are written"]
    return MspcError(
        f"there is no rank {rank}; ranks are 0 to {ranks - 1}", notes=notes if may_mean_ranks else [], code="E0104"
    )
