"""Reading of facts from a target of the user: the folder of a compile, a text graph, a plan."""

from __future__ import annotations

import hashlib
import json
import os
import re
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
from mspc.commands.facts.compiled import CompileFacts, stage_of
from mspc.commands.facts.equal_ranks import check_in_file, dump_text, kinds_of
from mspc.commands.facts.graph import DIGITS, GraphFacts, TensorFact
from mspc.commands.options import is_capture, is_imported
from mspc.commands.report.plan_summary import missing_rate_notes
from mspc.compiler.in_memory import stages_again
from mspc.engine.capture import parse_target
from mspc.ir.diagnostics import MspcError, listed
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.files.regular import read_begin
from mspc.ir.graph import PADDING, STAGE, STAGES, Graph
from mspc.ir.provenance import restore_provenance
from mspc.ir.text.parser import parse
from mspc.ops.check_graph import check_graph
from mspc.ops.op import REGISTRY
from mspc.plans.files.plan_file import SUFFIX, PlanFile, read_plan
from mspc.runtime.program import PROGRAM, WEIGHTS, PlanEntries, Program, load_program, opened_weights

GRAPH = ".ir"
NAMED = 8
"""Most edited files that a note lists."""


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
    facts = file_facts(path, machine)
    (kind,) = facts.kinds
    if facts.module is not None and facts.foreign:
        kind.graph.nodes += [node for graph in facts.module.graphs if graph is not kind.graph for node in graph.nodes]
    else:
        check_graph(kind.graph)
    notes = missing_rate_notes(missing_rates([kind.graph], machine), machine) if kind.of_one_rank else []
    return replace(facts, tensors=kind.tensors(), notes=notes)


def folder_facts(folder: Path, machine: Machine = H200) -> CompileFacts:
    """Return the facts of a compile's folder, with its tensors. Raise MspcError as `program_facts` does."""
    facts = program_facts(folder, machine)
    assert facts.program is not None
    notes = [*facts.notes, *missing_rate_notes(missing_rates([kind.graph for kind in facts.kinds], machine), machine)]
    tensors: dict[str, TensorFact] = {}
    for kind in facts.kinds:
        tensors = {tensor.name: tensor for tensor in kind.tensors()} | tensors
    last = facts.stages[max(facts.stages)]
    held = (*_with_first_values(tensors.values(), facts.program), *_outputs(facts.program, last))
    return replace(facts, tensors=held, notes=notes)


def program_facts(folder: Path, machine: Machine, numbers_count: bool = True) -> CompileFacts:
    """Return the facts of the programs in a compile's folder. Programs of ranks of one kind are equal except for ranks,
    groups and offsets, so that one of them is read for all. numbers_count: as in `kinds_of`. Raise MspcError if it is
    no such folder, or damaged."""
    program = load_program(folder)
    if not program.execute:
        raise MspcError(f"{folder / PROGRAM} is damaged: it names no rank's graph", code="E0116")
    found, edited = kinds_of(program, numbers_count)
    kinds: list[GraphFacts] = []
    for kind in found:
        graph, file = program.graph(kind.ranks[0], kind.text, frames=True), program.execute[kind.ranks[0]]
        if kind.edited:
            check_in_file(graph, program.folder / file)
        else:
            restore_provenance(graph, program.provenance.get(file, {}))
        ranks, on_gpu = tuple(kind.ranks), program.settings.device_target == "GPU"
        kinds.append(GraphFacts(graph, machine=machine, ranks=ranks, text=kind.text, on_gpu=on_gpu))
    notes = [f"edited since they were compiled: {listed(edited, NAMED)}"] if edited else []
    stages = {stage_of(kind.graph): kind for kind in reversed(kinds)}
    return CompileFacts(
        str(folder), program.ranks, program.mode, program.plan, kinds=tuple(kinds), notes=notes, stages=stages,
        program=program,
    )  # fmt: skip


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


def file_facts(path: Path, machine: Machine) -> CompileFacts:
    """Return the facts of a graph in a file. Raise MspcError if it cannot be read."""
    module = parse(dump_text(path), REGISTRY, str(path))
    attrs, foreign = module.attrs, module.dialect == "mindspore"
    kind = GraphFacts(module.main, foreign, not foreign and "rank" in attrs, machine, (_number(attrs, "rank") or 0,))
    ranks = None if foreign else _number(attrs, "ranks")
    return CompileFacts(
        str(path), ranks, str(attrs.get("mode", "")), None, kinds=(kind,), foreign=foreign, module=module
    )


def _number(attrs: Mapping[str, Any], key: str) -> int | None:
    value = attrs.get(key)
    return value if isinstance(value, int) else None


CONFIGURED, DECIDED = ("recompute_cells", "shard_by_plan", "check_strategies"), "propagate_sharding"
"""Passes before the decision on layouts, of which the latest dumped one is used, and the pass that decides."""
LAID_OUT = ("fuse_gradients", "lower_redistribution", "reduce_gradients", DECIDED)
"""Passes for which the dumps contain the graph of all ranks with its layouts, the latest first."""
_AFTER = re.compile(r"# after: (\w+),")


def with_global_graphs(facts: CompileFacts) -> CompileFacts:
    """Return the facts of a folder with its graphs of all ranks, or with a note that says why there are none. Raise
    MspcError if the dumps are not of the compile."""
    program, kind = facts.program, facts.kinds[0]
    assert program is not None
    if not program.network:
        note = "the ranks' networks are their own, so there is no graph of all ranks and no layouts"
        return replace(facts, notes=[*facts.notes, note])
    graphs = _dumped((program.folder / program.execute[kind.rank]).parent, program, kind.graph)
    if not any(name in graphs for name in LAID_OUT):
        path, wanted = str(program.folder / PROGRAM), frozenset({*CONFIGURED, *LAID_OUT})
        graphs = stages_again(program.network, path, program.compile_id, wanted)
        for node in (node for graph in graphs.values() for node in graph.all_nodes()):
            node.provenance = ""  # dumps do not have it either
    found, configured = (
        next((graphs[name] for name in names if name in graphs), None) for names in (LAID_OUT, CONFIGURED)
    )
    if found is None:
        note = "no layouts of results: mspc compile --save-graphs writes the graphs that have them"
        return replace(facts, notes=[*facts.notes, note])
    return replace(facts, global_graph=found, configured=configured, decided=graphs.get(DECIDED))


def _dumped(folder: Path, program: Program, own: Graph) -> dict[str, Graph]:
    """Return, by pass, the graphs of all ranks in a rank's dumps: the latest of `LAID_OUT`, and the graphs before and
    after the decision. own: the rank's program."""
    texts: dict[str, Path] = {}
    for path in sorted(folder.glob("*.ir")):
        found = _AFTER.match(read_begin(path)) if path.is_file() else None
        if found is not None:
            texts[found[1]] = path
    wanted = {next((name for name in LAID_OUT if name in texts), ""), *CONFIGURED, DECIDED}
    return {name: _graph(path, program, own) for name, path in texts.items() if name in wanted}


def _graph(path: Path, program: Program, own: Graph) -> Graph:
    """Return the graph of all ranks in a file. Raise MspcError if it and the rank's program are not of one compile."""
    graph = parse(dump_text(path), REGISTRY, str(path)).main
    shown = path.relative_to(program.folder)
    others = _shared(own)
    for key, value in _shared(graph).items():
        if value != others[key]:
            raise MspcError(
                f"{program.folder} holds dumps of different compiles: {shown} has {key} {value}, the programs have "
                f"{others[key]}"
            )
    there = {parameter.name: parameter.type for parameter in graph.parameters}
    for parameter in own.parameters:
        known = (parameter.type, parameter.global_type)  # data parallel graphs have a rank's rows from the first
        if there.get(parameter.name, parameter.type) not in known and PADDING not in parameter.attrs:
            raise MspcError(
                f"{program.folder} holds dumps of different compiles: {parameter.name} is {there[parameter.name]} in "
                f"{shown}, and {parameter.global_type or parameter.type} in the programs"
            )
    check_in_file(graph, path)
    return graph


def _shared(graph: Graph) -> dict[str, object]:
    """Return the facts that all graphs of a compile share: the number of ranks that run it, and the mode. Before it is
    cut, the graph of several stages has the number of ranks of one stage."""
    ranks, stages = graph.attrs.get("ranks"), graph.attrs.get(STAGES, 1)
    is_whole = isinstance(ranks, int) and isinstance(stages, int) and STAGE not in graph.attrs
    return {"ranks": ranks * stages if is_whole else ranks, "mode": graph.attrs.get("mode")}


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
