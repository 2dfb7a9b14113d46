"""`mspc compile`: from a script to files, a table, and nothing run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mspc.commands.capture import Launch, NamedTarget, build, capture, parse_target
from mspc.commands.output import OutputFolder
from mspc.commands.progress import Progress
from mspc.commands.report import Report, make_report
from mspc.commands.report_text import print_report
from mspc.commands.table import write_json
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, Stage, compile_launch
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, element_layouts
from mspc.ir.printer import print_graph
from mspc.ir.types import Type
from mspc.runtime.program import FORMAT, PROGRAM, WEIGHTS
from mspc.session.state import Session

DEFAULT_FOLDER = Path("saved_graph")
MAIN_STAGES = ("frontend", "step_parallel_begin", "slice_to_rank", "execute")
"""Passes whose graphs level 1 writes; level 0 writes the last alone, levels 2 and 3 write all."""
LAST = "execute"


@dataclass(frozen=True)
class CompileOptions:
    """The flags of `mspc compile`.

    ranks: None asks mpirun or the script. level: 0 to 3, what is written. only_ranks: () for all.
    inputs: types of a named network's inputs. json: where the table goes as JSON ("-": stdout), if anywhere.
    """

    ranks: int | None = None
    level: int = 0
    out: Path | None = None
    only_ranks: tuple[int, ...] = ()
    inputs: tuple[str, ...] = ()
    json: Path | None = None
    script_arguments: tuple[str, ...] = ()


def compile_target(target: str, options: CompileOptions) -> None:
    """Compile a script, or the network that `target` names, write the folder and print the table.

    Raises:
        MspcError: every mistake of the command, the script or the network.
    """
    session = _session(options)
    launch = _launch(parse_target(target), options, session)
    ranks = _ranks(options, session, launch)
    asked = _asked(options, ranks)
    level = max(options.level, launch.context.save_graphs)
    folder = options.out or Path(launch.context.save_graphs_path or DEFAULT_FOLDER)
    config = _config(launch, ranks)
    with Progress() as progress, OutputFolder(folder) as output:
        progress.show(f"compiling {launch.script} for {ranks} rank{'s' if ranks > 1 else ''}")
        shared: list[tuple[str, bytes]] = []

        def keep(stage: Stage) -> None:
            if _written(stage.name, level):
                shared.extend(_files(stage, level))

        compiled = compile_launch(launch.target, launch.args, config, keep, launch.whole)
        report: Report | None = None
        execute: dict[str, str] = {}
        digests: dict[str, str] = {}
        for done, rank in enumerate(asked):
            progress.show(f"writing rank {rank} ({done + 1} of {len(asked)})")
            own: list[tuple[str, bytes]] = []

            def keep_own(stage: Stage, own: list[tuple[str, bytes]] = own) -> None:
                if _written(stage.name, level):
                    own.extend(_files(stage, level))

            graph = compiled.rank_graph(rank, keep_own)
            if report is None:
                report = make_report(compiled, graph, rank)
            compiled.ranks_done.clear()  # thousands of ranks would fill the memory
            for name, content in _numbered(rank, [*shared, *own]):
                output.write(name, content)
                if f"_{LAST}_" in name and name.endswith(".ir"):
                    execute[str(rank)] = name
                    digests[name] = hashlib.sha256(content).hexdigest()
        output.write(WEIGHTS, _weights(compiled))
        output.write(PROGRAM, json.dumps(_program(compiled, execute, digests), indent=1) + "\n")
        output.commit()
    assert report is not None
    notes = [
        f"{place}: a later launch, which is not compiled: {place.text.strip()}" for place in launch.later
    ]
    if compiled.traced.ignored_strategies:
        notes.append(
            f"{compiled.traced.ignored_strategies} strategies of shard() are ignored in mode {config.mode}"
        )
    report.notes.extend(notes)
    if options.json is not None:
        write_json(report.as_dict(), options.json)
    if options.json != Path("-"):
        print_report(report, folder)


def _session(options: CompileOptions) -> Session:
    """The session of the first rank asked for; sizes that only the script knows come later."""
    first = options.only_ranks[0] if options.only_ranks else 0
    outside = Session.from_environment()
    if options.ranks is not None:
        if outside.size > 1 and outside.size != options.ranks:
            raise MspcError(f"mpirun started {outside.size} ranks, but --ranks is {options.ranks}")
        return Session.of_rank(first, options.ranks)
    return Session.of_rank(first, outside.size) if outside.size > 1 else Session(rank=first)


def _launch(target: NamedTarget | Path, options: CompileOptions, session: Session) -> Launch:
    if isinstance(target, Path):
        if options.inputs:
            raise MspcError(
                f"--input is for a named network, and {target} is a script",
                notes=[f"write '{target}:Net()' to name one"],
            )
        if target.is_dir():
            raise MspcError(f"{target} is a folder; give a script")
        return capture(target, options.script_arguments, session)
    if not options.inputs:
        raise MspcError(
            f"the network {target.name} needs its inputs",
            notes=["give one --input per argument: --input 'float32[16,32]'"],
        )
    return build(target, options.inputs, session)


def _ranks(options: CompileOptions, session: Session, launch: Launch) -> int:
    if options.ranks is not None:
        return options.ranks
    wanted = launch.context.device_num
    if session.launched:
        if wanted and wanted != session.size:
            raise MspcError(f"mpirun started {session.size} ranks, but the script's device_num is {wanted}")
        return session.size
    return wanted or 1


def _asked(options: CompileOptions, ranks: int) -> Iterable[int]:
    wrong = [rank for rank in options.only_ranks if not 0 <= rank < ranks]
    if wrong:
        raise MspcError(f"there is no rank {wrong[0]}; ranks are 0 to {ranks - 1}")
    return sorted(set(options.only_ranks)) if options.only_ranks else range(ranks)


def _config(launch: Launch, ranks: int) -> Config:
    context = launch.context
    settings = {name: getattr(context, name) for name in context.__dataclass_fields__}
    return Config.from_context(settings, ranks, os.path.dirname(os.path.abspath(launch.script)))


def _written(name: str, level: int) -> bool:
    return name == LAST or level >= 2 or (level == 1 and name in MAIN_STAGES)


def _files(stage: Stage, level: int) -> list[tuple[str, bytes]]:
    """(file name without counter, content) of a stage."""
    changed = "yes" if stage.changed else "no"
    header = f"# after: {stage.name}, previous: {stage.previous or 'none'}, changed: {changed}\n"
    files = [(f"{stage.file}.ir", (header + print_graph(stage.graph)).encode())]
    if level >= 3:
        from mspc.ir.export import to_dot

        files.append((f"{stage.file}.dot", to_dot(stage.graph).encode()))
    return files


def _numbered(rank: int, files: list[tuple[str, bytes]]) -> Iterable[tuple[str, bytes]]:
    """Names with the rank folder and the counter, which a graph's .ir and .dot share."""
    counter = -1
    for name, content in files:
        stem, dot, ending = name.rpartition(".")
        counter += ending == "ir"
        yield f"rank_{rank}/{stem}_{counter:04}{dot}{ending}", content


def _weights(compiled: Compiled) -> bytes:
    """The full initial parameters and the constants, as safetensors."""
    from safetensors.numpy import save

    arrays: dict[str, Any] = {name: parameter.value for name, parameter in compiled.traced.parameters.items()}
    arrays |= compiled.traced.constants
    used = {p.name for p in compiled.graph.parameters if p.kind != "input"}
    return save({name: np.require(array, requirements="C") for name, array in arrays.items() if name in used})


def _program(compiled: Compiled, execute: dict[str, str], digests: dict[str, str]) -> dict[str, Any]:
    graph = compiled.graph
    return {
        "format": FORMAT,
        "compile_id": compiled.compile_id,
        "ranks": compiled.config.ranks,
        "mode": compiled.config.mode,
        "training": any(node.phase == "update" for node in graph.nodes),
        "execute": execute,
        "digests": digests,
        "inputs": [
            {"name": p.name, **_typed(fed.global_type), "layout": str(fed.layout)}
            for p, fed in zip(compiled.inputs, compiled.fed, strict=True)
        ],
        "outputs": _outputs(graph),
        "parameters": [
            {"name": p.name, "kind": p.kind, **_typed(p.global_type or p.type), "layout": str(p.layout or "")}
            for p in graph.parameters
            if p.kind != "input"
        ],
    }


def _outputs(graph: Graph) -> list[dict[str, Any]]:
    return [
        {**_typed(value.type), "layout": "; ".join(map(str, element_layouts(value.layout)))}
        for value in graph.results
    ]


def _typed(type: Type) -> dict[str, Any]:
    shape = getattr(type, "shape", None)
    if shape is None:
        return {"type": str(type)}
    return {"dtype": str(getattr(type, "dtype", "")), "shape": list(shape)}
