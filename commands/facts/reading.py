"""Reading of facts from a target of the user: the folder of a compile, a text graph, a plan."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from mspc.analysis.cost.machine import H200, Machine
from mspc.analysis.cost.timeline import missing_rates
from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.facts.equal_ranks import dump_text, graphs_of_kinds
from mspc.commands.facts.graph import DIGITS, CompileFacts, GraphFacts, PipelineFacts, RankFacts, StageFacts, TensorFact
from mspc.commands.options import is_capture, is_imported
from mspc.commands.report.plan_summary import missing_rate_notes
from mspc.engine.capture import parse_target
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.graph import STAGE, STAGES, WORK, Graph
from mspc.ir.text.parser import parse
from mspc.ops.check_graph import check_graph
from mspc.ops.collective.point_to_point import SendToStage
from mspc.ops.op import REGISTRY
from mspc.plans.files.plan_file import SUFFIX, PlanFile, read_plan
from mspc.runtime.program import PROGRAM, WEIGHTS, PlanEntries, Program, load_program, opened_weights

GRAPH = ".ir"


def read_facts(path: Path, machine: Machine = H200) -> CompileFacts:
    """Return the facts of a compile's folder, of a graph (`.ir`, also of MindSpore) or of a plan (`.toml`). path: of
    the folder or file. machine: for which times are predicted. Raise MspcError if the path is none of them, or cannot
    be read."""
    if os.path.isdir(path):
        return folder_facts(path, machine)
    if path.suffix == SUFFIX:
        plan = read_plan(path)
        return CompileFacts(str(path), plan.ranks, "", entries_of(plan))
    if path.suffix != GRAPH:
        what = "is no folder of a compile, no graph (.ir) and no plan (.toml)"
        raise MspcError(f"{shown_path(path)} {what if os.path.exists(path) else 'does not exist'}", code="E0101")
    return _graph_facts(path, machine)


def folder_facts(folder: Path, machine: Machine = H200) -> CompileFacts:
    """Return the facts of a compile's folder. Programs of ranks of one kind are equal except for ranks, groups and
    offsets, so that one of them is read for all. Raise MspcError if it is no such folder, or damaged."""
    program = load_program(folder)
    if not program.execute:
        raise MspcError(f"{folder / PROGRAM} is damaged: it names no rank's graph", code="E0116")
    found, every, notes = graphs_of_kinds(program)
    kinds: list[RankFacts] = []
    tensors: dict[str, TensorFact] = {}
    graphs: dict[int, Graph] = {}
    stages: list[int] = []
    for kind, graph in zip(found, every, strict=True):
        read = GraphFacts(graph, False, True, machine)
        kinds.append(read.of_ranks(kind.ranks))
        stages.append(_number(graph.attrs, STAGE) or 0)
        graphs.setdefault(stages[-1], graph)
        tensors = {tensor.name: tensor for tensor in read.tensors()} | tensors
    notes += missing_rate_notes(missing_rates(every, machine), machine)
    pipeline = pipeline_facts(graphs, {stage: kinds[stages.index(stage)] for stage in graphs}, machine)
    if pipeline is not None:
        kinds = [replace(kind, idle=pipeline.stages[stage].idle) for kind, stage in zip(kinds, stages, strict=True)]
    last = GraphFacts(graphs[max(graphs)], False, True, machine)
    held = (*_with_first_values(tensors.values(), program), *_outputs(program, last))
    return CompileFacts(
        str(folder), program.ranks, program.mode, program.plan, held, tuple(kinds), pipeline=pipeline, notes=notes
    )


def entries_of(plan: PlanFile) -> PlanEntries:
    """Return the decisions in a plan file."""
    operators = {name: tuple(map(str, layouts)) for name, layouts in plan.operators.items()}
    stored = {name: str(layout) for name, layout in plan.parameters.items()}
    return PlanEntries(operators, stored, plan.gather_again, plan.recompute, offload=plan.on_host)


def _with_first_values(tensors: Iterable[TensorFact], program: Program) -> Iterator[TensorFact]:
    """Yield the tensors with the origin of their first values: the initializer, or a digest of values in the file."""
    described = {str(entry.get("name")): entry["initial"] for entry in program.parameters if "initial" in entry}
    path = program.folder / WEIGHTS
    file = opened_weights(path) if os.path.exists(path) else None
    names = frozenset[str]() if file is None else frozenset(file.names)
    for tensor in tensors:
        initial = described.get(tensor.name)
        text = "" if initial is None else json.dumps(initial, sort_keys=True)
        if file is not None and tensor.name in names:
            array = np.ascontiguousarray(file.read(tensor.name))
            text = f"values {hashlib.sha256(array.tobytes()).hexdigest()[:DIGITS]}"
        yield replace(tensor, initial=text)


def _outputs(program: Program, last: GraphFacts) -> Iterator[TensorFact]:
    """Yield the outputs. last: facts of the graph that computes them."""
    results = last.graph.results
    for place, entry in enumerate(program.outputs):
        shape = entry.get("shape")
        shown = str(tuple(cast("list[Any]", shape))) if isinstance(shape, list) else ""
        type = f"{entry.get('dtype', entry.get('type', ''))} {shown}".strip()
        source = last.source(results[place]) if place < len(results) else ""
        yield TensorFact(f"output {place}", "output", type, "", str(entry.get("layout", "")), source=source)


def _graph_facts(path: Path, machine: Machine) -> CompileFacts:
    module = parse(dump_text(path), REGISTRY, str(path))
    graph, attrs = module.main, module.attrs
    foreign = module.dialect == "mindspore"
    if not foreign:
        check_graph(graph)
    for other in module.graphs:
        if foreign and other is not graph:
            graph.nodes += other.nodes
    own = not foreign and "rank" in attrs
    read = GraphFacts(graph, foreign, own, machine)
    ranks = None if foreign else _number(attrs, "ranks")
    kind = read.of_ranks([_number(attrs, "rank") or 0])
    notes = missing_rate_notes(missing_rates([graph], machine), machine) if own else []
    return CompileFacts(
        str(path), ranks, str(attrs.get("mode", "")), None, read.tensors(), (kind,), foreign, notes=notes
    )


def _number(attrs: Mapping[str, Any], key: str) -> int | None:
    value = attrs.get(key)
    return value if isinstance(value, int) else None


def pipeline_facts(
    graphs: Mapping[int, Graph], ranks: Mapping[int, RankFacts], machine: Machine
) -> PipelineFacts | None:
    """Return the facts of a pipeline; None for one stage.

    graphs, ranks: by a stage's number, the program of the first kind of its ranks, and the facts of that kind.
    """
    count = max((int(graph.attrs.get(STAGES, 1)) for graph in graphs.values()), default=1)
    if count < 2:
        return None
    works = any(WORK in node.attrs for graph in graphs.values() for node in graph.nodes)
    borders: dict[tuple[int, int], tuple[int, int]] = {}
    for stage, graph in sorted(graphs.items()):
        for node in graph.nodes:
            if isinstance(node.op, SendToStage):
                messages, nbytes = borders.get((stage, node.op.stage), (0, 0))
                borders[stage, node.op.stage] = messages + 1, nbytes + node.type.nbytes
    if not works or len(graphs) < count:
        found = {stage: StageFacts(None, None, ranks[stage].operators) for stage in graphs}
        return PipelineFacts(count, "", 0, 0, None, found, borders)
    from mspc.output.stage_times import stage_times  # late: few programs have stages

    times = stage_times([graphs[stage] for stage in sorted(graphs)], machine)
    found = {stage: StageFacts(times.idle_share(stage), times.kept(stage), ranks[stage].operators) for stage in graphs}
    schedule = times.schedule
    return PipelineFacts(count, schedule.name, schedule.micro_batches, schedule.chunks, times.makespan, found, borders)


SCRIPT = ".py"
SCRIPTS_OWN = CompileOptions()
"""Options with which the script alone decides on its compile."""


def is_script(target: str) -> bool:
    """Return whether a target has to be compiled: a script, a network in one ("net.py:Net(32)"), one of PyTorch, or a
    folder of captured steps.

    An existing file or folder with the full name takes precedence: a folder is one whatever its name is. Raise
    MspcError as `parse_target` does.
    """
    if is_imported(Path(target)) or is_capture(Path(target)):
        return True
    if os.path.isdir(target):
        return False
    parsed = Path(target) if os.path.exists(target) else parse_target(target)
    return not isinstance(parsed, Path) or parsed.suffix == SCRIPT


def file_of(target: str) -> Path:
    """Return the folder or file of a target; for a network, the script that contains it."""
    parsed = Path(target) if os.path.exists(target) else parse_target(target)
    return parsed if isinstance(parsed, Path) else parsed.path


@contextmanager
def compiled_folder(target: str, options: CompileOptions) -> Generator[Path]:
    """Yield the folder of a script's compile, which is deleted after the `with`. Raise MspcError as `compile_target`
    does."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "graphs"
        compile_target(target, replace(options, out=folder, json=None, loudness=options.loudness.of_part()))
        yield folder


def target_facts(target: str, options: CompileOptions = SCRIPTS_OWN, machine: Machine = H200) -> CompileFacts:
    """Return the facts of a file or folder as `read_facts` does, or of a script or a network, compiled temporarily.
    Raise MspcError if it cannot be read or compiled."""
    if not is_script(target):
        return read_facts(Path(target), machine)
    with compiled_folder(target, replace(options, kinds_only=True)) as folder:
        return replace(folder_facts(folder, machine), name=target)


def check_used(targets: tuple[str, ...], options: CompileOptions) -> None:
    """Raise MspcError if options for the compile of scripts are given, and no target is a script."""
    given = [
        name
        for name, value in (
            ("--ranks", options.ranks), ("--input", options.inputs), ("--strategies", options.strategies),
            ("arguments of a script", options.script_arguments), (options.imported.given, options.imported.given),
        )
        if value
    ]  # fmt: skip
    if not given or any(map(is_script, targets)):
        return
    several = len(targets) > 1
    none = f"{' and '.join(targets)} {'are no scripts and take' if several else 'is no script and takes'}"
    raise MspcError(f"{none} no {' or '.join(given)}")
