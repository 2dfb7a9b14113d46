"""`mspc verify` of a compiled folder, edited by hand or not. Its ranks are compared with one device that runs the
network as it was read from the script; `program.json` contains the network's text."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mspc.commands.compile import CompileOptions
from mspc.commands.facts.equal_ranks import dump_text
from mspc.commands.report.tables import print_line, write_report
from mspc.commands.report.verification import report, report_against
from mspc.compiler.config import Config
from mspc.compiler.in_memory import read_network
from mspc.compiler.pipeline import VIEWS, shared_passes
from mspc.compiler.rank_graphs import copied
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.graph import STAGES, Graph, Parameter, Value
from mspc.ir.layout import Layout
from mspc.ir.text.fragments import read_layouts
from mspc.ir.text.parser import parse
from mspc.ir.text.source_text import Malformed
from mspc.ir.types import TensorType, Type, dtype_of
from mspc.ops.check_graph import check_graph
from mspc.ops.op import REGISTRY
from mspc.passes.base import PassManager, find_pass
from mspc.passes.lib.choices import release_constraints
from mspc.runtime.program import PROGRAM, Program, load_program, load_slices
from mspc.verify.global_batch import GlobalBatchNetwork
from mspc.verify.made_inputs import made_inputs
from mspc.verify.plain_network import PlainNetwork, plain_network
from mspc.verify.pytorch.against import against_torch
from mspc.verify.scale.foreign_dumps import BEGIN, END, EXECUTE, DumpsFound, ForeignDump, look_at
from mspc.verify.verification import STEPS, VerifiedProgram, verified


def verify_folder(
    folder: Path, options: CompileOptions, seed: int, with_torch: bool = False, mpi: bool = False
) -> None:
    """Verify a folder as `verify_target` does. Edited files are listed and compared with their errors.

    Raises:
        MspcError: the folder cannot be read, or lacks information. ExecutionError: a value differs.
    """
    program = checked_program(folder, options)
    network = read_network(program.network, str(program.folder / PROGRAM))
    if with_torch and STAGES in network.attrs:
        raise MspcError(
            f"{folder} holds the network with a loop over micro-batches, which PyTorch has no counterpart of",
            notes=["mspc verify --against torch of its script compares the parts of the batch one after the other"],
        )
    mean, stages = bool(network.attrs.get("gradients_mean")), _stages(program, network)
    many = ranks_together(program, network)
    plain, doubled = plain_network(copied(network))
    one = network_alone(network)
    graphs, edited = graphs_of_ranks(program)
    types = [_type(program, entry) for entry in program.inputs]
    config = Config(ranks=program.ranks // stages, mode=program.mode, gradients_mean=mean, pipeline_stages=stages)
    _check_told(program, one, types, many, config.feeds_own_rows)
    if any(len(graph.results) != len(many.results) for graph in graphs):
        raise MspcError(f"{folder} has {len(many.results)} outputs, but the graph of some rank has others")
    layouts = [_layout(program, entry, type, stages) for entry, type in zip(program.inputs, types, strict=True)]
    weights = load_slices(program, plain, 0)
    compared = VerifiedProgram(
        one,
        many,
        program.ranks,
        PlainNetwork(plain, doubled, weights),
        weights,
        lambda caution: made_inputs(one, types, [], seed, STEPS, caution == 2, caution == 0),
        graphs.__getitem__,
        graphs.__getitem__,
        layouts if config.feeds_own_rows else [],
        GlobalBatchNetwork(
            None, reason="the folder holds the network of a rank's rows; mspc verify of its script compares that"
        ),
        stages,
    )
    notes = [f"edited since the compile: {', '.join(edited)}"] if edited else []
    if with_torch:
        report_against(against_torch(compared), options.json, options.loudness, seed, notes, options.all_rows)
        return
    report(verified(compared, seed, mpi), config, options.json, options.loudness, seed, notes, options.all_rows)


def fed_layouts(program: Program) -> tuple[Layout, ...]:
    """Return the layouts of the inputs of a program without stages."""
    return tuple(_layout(program, entry, _type(program, entry), 1) for entry in program.inputs)


def _stages(program: Program, network: Graph) -> int:
    """Return the number of stages of the program. Raise MspcError if it does not divide the number of ranks."""
    stages = network.attrs.get(STAGES, 1)
    if not isinstance(stages, int) or stages < 1 or program.ranks % stages:
        raise MspcError(
            f"{program.folder / PROGRAM} is damaged: {program.ranks} ranks in {stages} stages", code="E0116"
        )
    return stages


def checked_program(folder: Path, options: CompileOptions) -> Program:
    """Return the program in a folder. Raise MspcError if not all of its ranks can be compared with one device."""
    if options.inputs or options.script_arguments or options.strategies:
        raise MspcError(
            f"{folder} is a folder, so a compiled program",
            notes=["--input, --strategies and script arguments are for scripts"],
        )
    program = load_program(folder)
    if options.ranks is not None and options.ranks != program.ranks:
        raise MspcError(
            f"{folder} was compiled for {program.ranks} ranks, not for {options.ranks}",
            notes=[f"verify it without --ranks, or compile it again with --ranks {options.ranks}"], code="E0112",
        )
    if missing := program.missing(program.ranks):
        raise MspcError(
            f"{folder} holds no graph for rank {missing[0]} of {program.ranks}", notes=["compile it without --rank"]
        )
    if not program.network:
        raise MspcError(
            f"{folder / PROGRAM} does not say what one device computes, so there is nothing to compare with",
            notes=[
                "mspc compile writes it unless the network depends on get_rank(), or ranks meet in the script's own "
                "collectives alone, in hybrid_parallel or stand_alone mode",
                "mspc run --simulate runs the folder on ranks of this process",
            ],
        )
    return program


def network_alone(graph: Graph) -> Graph:
    """Return a network after the passes that ranks share, compiled for one device."""
    graph.attrs = {"mode": "stand_alone", "ranks": 1}
    for parameter in graph.parameters:
        parameter.layout = parameter.global_type = None
    manager = PassManager()
    for name in shared_passes("stand_alone"):
        if name not in VIEWS:
            graph, _ = manager.apply(find_pass(name), graph)
        if name == "grad":
            release_constraints(graph)
    return graph


def graphs_of_ranks(program: Program) -> tuple[list[Graph], list[str]]:
    """Return (every rank's graph, the files that have been edited), and print a warning for each of these files."""
    graphs: list[Graph] = []
    edited: list[str] = []
    for rank in range(program.ranks):
        text = program.text(rank)
        graph = program.graph(rank, text, frames=True)
        if program.edited(rank, text):
            edited.append(program.execute[rank])
            print(f"warning: {program.folder / edited[-1]} has been edited since it was compiled", file=sys.stderr)
            check_graph(graph)
        graphs.append(graph)
    return graphs, edited


def ranks_together(program: Program, network: Graph) -> Graph:
    """Return the layouts of results and parameters over the ranks of a stage, as a graph without operators."""
    graph, stages = Graph("ranks"), _stages(program, network)
    graph.attrs = {"gradients_mean": bool(network.attrs.get("gradients_mean"))}
    for entry in program.parameters:
        type = _type(program, entry)
        kind = str(entry.get("kind"))
        layout = _layout(program, entry, type, stages)
        graph.parameters.append(Parameter(str(entry.get("name")), type, kind, layout=layout))
    for entry in program.outputs:
        type = _type(program, entry)
        graph.results.append(Value(type, layout=_layout(program, entry, type, stages)))
    return graph


def _check_told(program: Program, one: Graph, inputs: Sequence[Type], many: Graph, own_rows: bool) -> None:
    """Check that the inputs, outputs and parameters of the program are those of its network. own_rows: the network has
    one rank's rows and the program the global batch, so that the sizes of inputs and outputs are ignored.

    Raises:
        MspcError: one of the two was changed.
    """
    path = program.folder / PROGRAM
    taken = [parameter.type for parameter in one.parameters if parameter.kind == "input"]
    given = [value.type for value in one.results]
    for what, told, own in (("inputs", inputs, taken), ("outputs", [value.type for value in many.results], given)):
        if len(told) != len(own):
            raise MspcError(f"{path} is damaged: {what}: {len(told)}, in its network {len(own)}", code="E0116")
        for i, (one_told, one_own) in enumerate(zip(told, own, strict=True)):
            _check_type(path, f"{what}[{i}]", one_told, one_own, own_rows)
    held = {parameter.name: parameter.type for parameter in many.parameters}
    for parameter in one.parameters:
        if parameter.kind != "parameter":
            continue
        if parameter.name not in held:
            raise MspcError(
                f"{path} is damaged: its parameters lack {parameter.name!r}, which its network has", code="E0116"
            )
        _check_type(path, f"parameter {parameter.name!r}", held[parameter.name], parameter.type, False)


def _check_type(path: Path, what: str, told: Type, own: Type, any_sizes: bool) -> None:
    """Raise MspcError if a type of the program is not that of its network."""
    alike = any_sizes and isinstance(told, TensorType) and isinstance(own, TensorType) and told.dtype == own.dtype
    if alike or told == own:
        return
    raise MspcError(f"{path} is damaged: {what} is a {told}, in its network a {own}", code="E0116")


def _type(program: Program, entry: dict[str, Any]) -> TensorType:
    try:
        dtype, shape = dtype_of(str(entry["dtype"])), entry["shape"]
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"its shape is {shape!r:.80}")
        return TensorType(dtype, tuple(shape))
    except (MspcError, KeyError, ValueError) as error:
        raise MspcError(
            f"{program.folder / PROGRAM} is damaged: {entry.get('name', 'an output')}: {error}", code="E0116"
        ) from None


def _layout(program: Program, entry: dict[str, Any], type: TensorType, stages: int) -> Layout:
    text, ranks = str(entry.get("layout", "")), program.ranks // stages
    try:
        found = read_layouts(text)[0] if text else Layout.replicated(ranks, type.rank)
    except Malformed as error:
        raise MspcError(f"{program.folder / PROGRAM} is damaged: layout {text!r}: {error}", code="E0116") from None
    if found.ranks != ranks or len(found.dims) != type.rank:
        raise MspcError(f"{program.folder / PROGRAM} is damaged: {type} cannot have the layout {found}", code="E0116")
    return found


RANK = re.compile(r"rank_?(\d+)")
DUMP_STAGES = {"begin": BEGIN, "end": END, "validate": EXECUTE, "execute": EXECUTE}
"""Stages by words in the names of files. A dump without such a word counts as a graph that ranks execute."""
NEVER_SAID = (
    "values: nothing is run, so that sums which are missing or doubled are not seen",
    "the number of ranks, which is taken to be one more than the largest that a group names",
)
FEW = 8


def has_dumps(folder: Path) -> bool:
    """Return whether a folder contains dumps and is not that of a compile."""
    return not (folder / PROGRAM).exists() and any(folder.rglob("*.ir"))


def verify_dumps(folder: Path, json: Path | None) -> None:
    """Check all dumps of a folder; dumps with one name or in one folder belong to one compile.

    Raises:
        MspcError: a file is no dump of MindSpore, or cannot be read. ExecutionError: a check fails.
    """
    compiles: dict[str, list[ForeignDump]] = {}
    for path in sorted(folder.rglob("*.ir")):
        module = parse(dump_text(path), REGISTRY, str(path))
        if module.dialect != "mindspore":
            raise MspcError(f"{path} is no dump of MindSpore, and its folder has no {PROGRAM}")
        found = RANK.search(str(path.relative_to(folder)))
        stage = next((stage for word, stage in DUMP_STAGES.items() if word in path.stem), EXECUTE)
        dump = ForeignDump(str(path), int(found[1]) if found else 0, stage, tuple(module.graphs))
        place = RANK.sub("rank", str(path.relative_to(folder).parent))
        begin, *rest = path.stem.split(".")  # the name before that of the stage
        compiles.setdefault(f"{place}/{begin}" if rest else place, []).append(dump)
    told = [look_at(dumps) for dumps in compiles.values()]
    files = sum(map(len, compiles.values()))
    if json is not None:
        content = _content(files, told)
        write_report(json, "verify --scale", content, int(not content["fits"]))
    if json != Path("-"):
        _show(files, told)
    wrong = [each for found in told for each in found.wrong]
    if wrong:
        notes = [f"{each.dump.name}: {each.node.label}: {each.why}" for each in wrong[1:FEW]]
        first = wrong[0]
        message = f"{first.dump.name}: {first.node.label}: {first.why}"
        raise ExecutionError(message, notes=notes, frames=first.node.frames)


def _counts(told: Sequence[DumpsFound], what: str) -> Counter[str]:
    return sum((Counter(getattr(each, what)) for each in told), Counter[str]())


def _show(files: int, told: Sequence[DumpsFound]) -> None:
    checked = ", ".join(f"{count} {what}" for what, count in sorted(_counts(told, "checked").items())) or "nothing"
    wrong = sum(len(found.wrong) for found in told)
    print_line(f"{'fits' if not wrong else 'does not fit'}: {checked} in {files} dumps of MindSpore")
    print_line("not said, and not checked:")
    for what, count in sorted(_counts(told, "unsaid").items()):
        print_line(f"  {what} ({count})")
    for what in NEVER_SAID:
        print_line(f"  {what}")


def _content(files: int, told: Sequence[DumpsFound]) -> dict[str, object]:
    return {
        "fits": not any(found.wrong for found in told),
        "files": files,
        "checked": _counts(told, "checked"),
        "wrong": [
            {"file": each.dump.name, "operator": each.node.label, "why": each.why}
            for found in told
            for each in found.wrong
        ],
        "unsaid": [*_counts(told, "unsaid"), *NEVER_SAID],
    }
