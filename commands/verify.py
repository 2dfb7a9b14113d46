"""`mspc verify` runs some steps on one device and on N simulated ranks, which must compute the same numbers.
`--scale` proves programs of many ranks at small sizes."""

from __future__ import annotations

import gc
import itertools
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from mspc.commands.compile import CompileOptions, FoundCall, find_call
from mspc.commands.facts.equal_ranks import dump_text
from mspc.commands.options import is_capture, is_imported, is_stablehlo
from mspc.commands.report.scale import report_scale
from mspc.commands.report.tables import print_line, write_report
from mspc.commands.report.verification import report, report_against
from mspc.commands.stablehlo import read_target
from mspc.commands.verify_capture import plain_program
from mspc.commands.verify_folder import ToProve, give_layouts, located, of_folder, verify_folder
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, DumpPoint, TracedCall, compile_traced, decided_by_script, trace_call
from mspc.compiler.frontend.trace import Traced
from mspc.compiler.rank_graphs import before_joining
from mspc.engine.capture import CapturedCall, NamedTarget, build_target, parse_target
from mspc.engine.script import forget_script
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ir.layout import Layout
from mspc.ir.text.parser import parse
from mspc.ir.types import TensorType
from mspc.mindspore_api.common.parameter import Parameter as ScriptParameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.state import Session
from mspc.ops.control.structural import Gradient, StopGradient
from mspc.ops.op import REGISTRY, Op
from mspc.output.dumps import NO_FILES, first_values
from mspc.output.programs import Programs, compile_for
from mspc.passes.base import OnPass
from mspc.passes.lib.choices import release_constraints
from mspc.readers.stablehlo.module import HloModule
from mspc.readers.stablehlo.network import StableHloNetwork
from mspc.readers.stablehlo.shardings import layout_of, sharding_in
from mspc.runtime.available_memory import explain_memory_errors
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.program import PROGRAM
from mspc.verify.difference import ComparedValue, coarsest, compare, noise_between
from mspc.verify.global_batch import GlobalBatchNetwork, difference_of
from mspc.verify.made_inputs import made_inputs
from mspc.verify.one_device import Movement, OneDevice
from mspc.verify.pytorch.against import against_torch
from mspc.verify.same_values import MARK, number_operators
from mspc.verify.scale.foreign_dumps import BEGIN, END, EXECUTE, DumpsFound, ForeignDump, look_at
from mspc.verify.scale.rank_kinds import RankKind, kinds_of, merged
from mspc.verify.scale.small_programs import Unfit
from mspc.verify.verification import STEPS, PlainNetwork, VerifiedProgram, one_device, plain_network, verified

Array = Any
SLICED = "slice_to_rank"
"""The pass after which a rank's graph still has the operators of one device; stages are cut before it."""


def verify_target(target: str, options: CompileOptions, seed: int, with_torch: bool = False, mpi: bool = False) -> None:
    """Compare, print the table and the verdict, and fail if anything differs by more than its tolerance.

    With the table as JSON on stdout, nothing else is printed to stdout. target: as for `mspc compile`, or the folder
    that it wrote. with_torch: compare one device with PyTorch, instead of the ranks with one device. mpi: the ranks run
    under mpirun. Raise MspcError if `with_torch` and `mpi` are given, the program cannot be compiled, or the folder
    cannot be read; ExecutionError if a value differs, or the ranks do not run.
    """
    if with_torch and mpi:
        raise MspcError("--against torch judges one device, and --mpi runs ranks", notes=["give one of the two"])
    if os.path.isdir(target) and not is_imported(Path(target)):
        verify_folder(Path(target), options, seed, with_torch, mpi)
        return
    found, many = compiled_call(target, options)
    config = many.config
    program = compared_program(found.captured, many, seed, with_torch)
    if with_torch:
        rows: list[ComparedValue] = []
        if options.imported.torch:
            check_comparable(program, options)
            rows = module_rows(found, program, options)
        judged = against_torch(program)
        judged.rows += rows
        report_against(judged, options.json, options.loudness, seed, all_rows=options.all_rows)
        return
    compared = located(lambda: verified(program, seed, mpi), lambda: of_call(found.captured, many, program), seed)
    report(compared, config, options.json, options.loudness, seed, all_rows=options.all_rows)


def compiled_call(target: str, options: CompileOptions) -> tuple[FoundCall, Compiled]:
    """Return the launch of a script or an imported network, compiled for its ranks. Raise MspcError if no step of one
    device computes the same as the ranks."""
    found = find_call(target, options)
    config = Config.from_context(found.captured.context, found.ranks, str(Path(found.captured.script).parent))
    with found.captured.errors_at_launch():
        many = compiled_with_numbers(traced(found.captured, config), options.loudness.on_pass())
    mode = config.mode
    if decided_by_script(many.graph, mode):
        raise MspcError(
            f"in {mode} mode the script's own collectives decide what the ranks compute, so there is no step "
            "of one device to compare with",
            notes=["mspc run --simulate runs it on ranks of this process"],
        )
    first = compile_for(found.captured, found.ranks, NO_FILES, found.asked) if found.asked() else None
    if first is not None and Programs(first, range(found.ranks), True, NO_FILES, found.rerun).differ:
        raise MspcError(
            "the network depends on get_rank(): the ranks run different graphs, so there is no step of one device to "
            "compare with",
            notes=["mspc run --simulate runs it on ranks of this process"],
        )
    return found, many


def compared_program(captured: CapturedCall, many: Compiled, seed: int, inlines: bool) -> VerifiedProgram:
    """Return the programs and inputs of a launch that are compared. inlines: the reference has no loops over layers,
    through which PyTorch could not compare gradients."""
    config, fed, own = many.config, many.fed, many.config.feeds_own_rows
    alone = replace(config, ranks=1, mode="stand_alone", keeps_strategies=config.ranks * config.sharded)
    given = with_global_types(captured, [f.graph_type if own else f.global_type for f in fed])
    call = traced(given, alone)
    reference = reference_of(given, call, inlines=inlines)
    one = compiled_with_numbers(call)
    # The valid numbers of an input are read outside of loops: for stages, from the reference, which unrolls them.
    limited = reference.graph if config.pipeline_stages > 1 else one.graph
    brought: list[Tensor] = []
    describe_call(captured.args, brought)
    types, arrays = [f.global_type for f in fed], [t.asnumpy() for t in brought]

    def sliced(rank: int) -> Graph:
        """Return a rank's graph after slicing and after the cut into stages, in the order of their schedule, before
        operators are fused."""
        found: list[Graph] = []
        many.rank_graph(rank, lambda stage: found.append(stage.graph), (SLICED,))
        return before_joining(found[0], rank)

    return VerifiedProgram(
        one.graph,
        many.graph,
        config.all_ranks,
        reference,
        weights_of(one.traced, one.graph) | reference.weights,
        lambda caution: made_inputs(limited, types, arrays, seed, STEPS, caution == 2, caution == 0),
        many.rank_graph,
        sliced,
        [f.layout for f in fed] if own else [],
        global_batch(captured, reference, types, alone) if own else GlobalBatchNetwork(None),
        config.pipeline_stages,
    )


def reference_of(
    captured: CapturedCall, call: TracedCall, own_weights: bool = True, inlines: bool = False
) -> PlainNetwork:
    """Return the reference for a launch. call: the launch as it is compiled for one device; it is not changed.
    own_weights: whether to include first values. inlines: equal layers do not become one graph."""
    config, stages, again = call.config, call.config.pipeline_stages > 1, _may_reuse_wrongly(call.traced)
    if stages:  # the parts of a batch run one after the other
        config = replace(config, pipeline_stages=1, pipeline_table="")
    if stages or again or inlines:
        call = traced(captured, config, unrolled=stages or inlines, reuses_calls=not again)
    graph, doubled = plain_network(call.again(call.config).traced.graph)
    return PlainNetwork(graph, doubled, weights_of(call.traced, graph, doubled.graph) if own_weights else {})


def _may_reuse_wrongly(traced: Traced) -> bool:
    """Return whether the front end may have reused calls wrongly for gradients, so that the reference is read without
    reuse.

    A gradient that reuses a whole call cannot be wrong. Without reuse, calls that draw random numbers would draw
    others, and calls that change parameters, such as moving averages, would change them once more.
    """
    nodes = [*traced.graph.all_nodes()]
    ops = [node.op for node in nodes]
    changes = any(node.op.mutates and node.phase == "forward" for node in nodes)
    if not traced.reused_calls or changes or any(isinstance(op, Op) and op.draws for op in ops):
        return False
    return any(isinstance(op, StopGradient) for op in ops) or sum(isinstance(op, Gradient) for op in ops) > 1


def weights_of(traced: Traced, *graphs: Graph) -> dict[str, Array]:
    """Return the first values of the graphs' parameters and constants, by name."""
    found = {value.name: value for graph in reversed(graphs) for value in first_values(traced, graph)}
    return {name: np.array(value.make()) for name, value in found.items()}


def global_batch(
    captured: CapturedCall, one: PlainNetwork, types: Sequence[TensorType], alone: Config
) -> GlobalBatchNetwork:
    """Return the network of a launch on the global batch, or the reason why there is none."""
    try:
        given = with_global_types(captured, types)
        batch = reference_of(given, traced(given, alone))
    except MspcError as error:
        return GlobalBatchNetwork(None, reason=f"the network does not take it: {error.message}")
    reason = difference_of(one.graph, batch.graph)
    if reason:
        return GlobalBatchNetwork(None, reason=reason)
    return GlobalBatchNetwork(batch.graph, batch.weights)


def with_global_types(captured: CapturedCall, types: Sequence[TensorType]) -> CapturedCall:
    """Return the launch with its tensors replaced by global types."""
    rest = iter(types)

    def place(arg: Any) -> Any:
        if isinstance(arg, Tensor | TensorType | np.ndarray) and not isinstance(arg, ScriptParameter):
            return next(rest)
        return tuple(map(place, arg)) if isinstance(arg, tuple | list) else arg

    return replace(captured, args=tuple(map(place, captured.args)), global_types=True)


def traced(captured: CapturedCall, config: Config, unrolled: bool = False, reuses_calls: bool = True) -> TracedCall:
    """Return the launch as the front end reads it. unrolled: equal layers do not become one graph. reuses_calls: see
    `trace`."""
    call = describe_call(captured.args, [])
    return trace_call(captured.target, call, config, captured.global_types, unrolled, reuses_calls)


def compiled_with_numbers(call: TracedCall, on_pass: OnPass | None = None) -> Compiled:
    """Compile a call, and number the operators after `grad`: earlier numbers would make equal operators different for
    passes that compare them."""

    def mark(stage: DumpPoint) -> None:
        if stage.name == "grad":
            if not call.config.sharded:
                release_constraints(stage.graph)
            number_operators(stage.graph, MARK)

    return compile_traced(call, mark, on_pass)


def of_script(target: str, options: CompileOptions) -> ToProve:
    """Return the programs of a script or of an imported network. Raise MspcError if they cannot be compiled."""
    found, many = compiled_call(target, options)
    given = of_call(found.captured, many)
    forget_script(found.captured.script)
    return given


def of_call(captured: CapturedCall, many: Compiled, program: VerifiedProgram | None = None) -> ToProve:
    """Return the programs of a launch. many: it compiled for its ranks. program: it as `compared_program` has it, whose
    reference is taken."""
    from mspc.verify.scale.reference import OwnRows  # late: most runs of verify find no difference

    config = many.config
    rows = config.feeds_own_rows
    if program is not None:
        one, batch = program.reference.graph, program.global_batch.graph
        values: Sequence[Any] = [SimpleNamespace(name=n, make=a.copy) for n, a in program.reference.weights.items()]
    else:
        given = with_global_types(captured, [f.graph_type if rows else f.global_type for f in many.fed])
        alone = replace(config, ranks=1, mode="stand_alone", keeps_strategies=config.ranks * config.sharded)
        call = traced(given, alone)
        plain = reference_of(given, call, own_weights=False)
        types = [f.global_type for f in many.fed]
        one, batch = plain.graph, global_batch(captured, plain, types, alone).graph if rows else None
        values = first_values(call.traced, one)
    kinds = kinds_of(many.rank_graphs, range(config.all_ranks))
    own = None
    if rows:
        own = OwnRows(config.ranks, tuple(f.layout for f in many.fed), config.gradients_mean, batch)
    else:
        for kind in kinds:
            give_layouts(kind.graph, many.graph)
    return ToProve(one, kinds, values, own)


# `mspc verify --scale` runs the programs of all ranks together at small sizes and compares them with one device ----


def verify_scale(target: str, options: CompileOptions, seed: int, against: Path | None = None) -> None:
    """Compare, print the compared values and the verdict, and fail if anything differs. target: as for `mspc compile`,
    the folder that it wrote, or a folder of MindSpore's dumps. against: the capture of one device, if the target is a
    capture. Raise MspcError if the program cannot be compiled or read, or it cannot be run at sizes that fit on this
    machine; ExecutionError if a value differs, or ranks wait for each other."""
    begin = time.perf_counter()
    is_folder = os.path.isdir(target) and not is_imported(Path(target))
    if is_folder and not (Path(target) / PROGRAM).exists() and any(Path(target).rglob("*.ir")):
        verify_dumps(Path(target), options.json)
        return
    if is_capture(Path(target)):
        from mspc.commands import verify_capture  # late: few commands read captures

        if against is None:
            notes = ["mspc capture script.py --ranks 1 --out DIR records one device, and --against DIR names it"]
            raise MspcError(f"{target} is a capture, and says nothing of one device", notes=notes)
        given = verify_capture.programs_of_captures(Path(target), against)
        verify_capture.check_precision(given)
    elif against is not None:
        parsed = parse_target(target)
        if not (is_stablehlo(parsed) or options.imported.jax):
            raise MspcError(f"--against {against} is for a capture or a step of JAX, and {target} is none")

        given = programs_of_partitioned(parsed, against)
    else:
        given = of_folder(Path(target), options) if is_folder else of_script(target, options)
    gc.collect()
    try:
        with explain_memory_errors("what ranks hold at small sizes"):
            found = given.proved(seed)
    except Unfit as error:
        raise MspcError(f"the program cannot be made smaller: {error.reason}") from None
    seconds = time.perf_counter() - begin
    notes = (*given.places(found), *given.notes)
    report_scale(found, options.json, options.loudness, seed, seconds, notes, given.compile_id)


RANK = re.compile(r"rank_?(\d+)")
DUMP_STAGES = {"begin": BEGIN, "end": END, "validate": EXECUTE, "execute": EXECUTE}
"""Stages by words in the names of files. A dump without such a word counts as a graph that ranks execute."""
NEVER_SAID = (
    "values: nothing is run, so that sums which are missing or doubled are not seen",
    "the number of ranks, which is taken to be one more than the largest that a group names",
)
FEW = 8


def verify_dumps(folder: Path, json: Path | None) -> None:
    """Check all dumps of a folder; dumps with one name or in one folder belong to one compile. Raise MspcError if a
    file is no dump of MindSpore, or cannot be read; ExecutionError if a check fails."""
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


# A step of JAX beside the module that XLA's partitioner made of it, for `mspc verify --scale step.mlir --against` ----


MAX_LAYOUTS = 24
"""Layouts of one result that are tried if neither text says which one it has."""


def programs_of_partitioned(target: NamedTarget | Path, after: Path) -> ToProve:
    """Return the programs of all devices and of one. All arguments are given, and all results compared. Raise MspcError
    if a file cannot be read, the module is of one device, or it is not of this step."""
    step, module = (with_innermost_lines(read_target(each)) for each in (target, after))
    if module.devices == 1 and step.partitions:  # a serialized module does not say how many there are
        module = replace(module, attributes={**module.attributes, "mhlo.num_partitions": step.partitions})
    count = module.devices
    if count < 2:
        raise MspcError(f"{after} is a module for one device, and a partitioned one is compared with its step")
    if step.partitions not in (0, count):
        raise MspcError(f"{after} is for {count} devices, and {step.file} for {step.partitions}", code="E0112")
    whole = StableHloNetwork(step, 1, is_function=True)
    one, values = plain_program(lambda: (whole, whole.input_types), Path(step.file), _session(0, 1))
    graphs = [_program(module, rank, count, whole) for rank in range(count)]
    names = result_names(whole)
    if any(len(graph.results) != len(names) for graph in graphs):
        found = len(graphs[0].results)
        raise MspcError(f"{after} has {found} results, and {step.file} has {len(names)}: it is of another step")
    layouts = argument_layouts(whole, module, count)
    for graph in graphs:
        for parameter in graph.parameters:
            parameter.layout = layouts[parameter.name]
    shapes = [value.tensor_type.shape for value in one.results]
    told = [_told(whole, module, at, layouts) for at in range(len(names))]
    asked = [list(_fitting(shape, value.tensor_type.shape, own, count, layouts.values(), names[at], after))
             for at, (shape, value, own) in enumerate(zip(shapes, graphs[0].results, told, strict=True))]  # fmt: skip
    notes: list[str] = []
    if any(len(each) > 1 for each in asked):
        notes.append("layouts of some results are in neither text: they are taken as they fit")
    kinds = merged([RankKind((rank,), graph) for rank, graph in enumerate(graphs)])
    made = ToProve(one, kinds, values, notes=tuple(notes), results=names, placed=asked, batch=())
    made.place({at: each[0] for at, each in enumerate(asked)})
    return made


def with_innermost_lines(module: HloModule) -> HloModule:
    """Return a module with one line for each operation, without its column: XLA keeps no more, and operations of the
    two texts that are on one line are held to each other."""
    for function in module.functions.values():
        for operation in function.body.all_operations():
            origin = operation.origin
            if origin is not None and origin.frames:
                operation.origin = replace(origin, frames=(replace(origin.frames[0], column=0),))
    return module


def _session(rank: int, count: int) -> Session:
    return Session(rank, count, rank, count, launched=True, initialized=True)


def _program(module: HloModule, rank: int, count: int, whole: StableHloNetwork) -> Graph:
    """Return the program of one device, with its own constants."""
    network = StableHloNetwork(replace(module, rank=rank), 1, like=whole, is_function=True)
    graph, values = plain_program(lambda: (network, network.input_types), Path(module.file), _session(rank, count))
    graph.attrs["ranks"] = count
    held = {value.name: value for value in values}
    own: dict[Value, Value] = {
        each: Constant(np.asarray(held[each.name].make()), each.tensor_type.dtype)
        for each in graph.parameters if each.kind == "constant"
    }  # fmt: skip
    graph.replace(own)
    graph.parameters = [each for each in graph.parameters if each not in own]
    return graph


def result_names(whole: StableHloNetwork) -> list[tuple[str, str]]:
    """Return (kind, name) of every result of a step."""
    main = whole.module.main
    targets = {each.target: each.name for each in whole.arguments if each.target >= 0}
    found: list[tuple[str, str]] = []
    for at in range(len(main.result_types)):
        attributes = main.result_attributes[at] if at < len(main.result_attributes) else {}
        name = targets.get(at)
        info = str(attributes.get("jax.result_info") or f"result {at}")
        found.append(("result", info) if name is None else ("parameter", name))
    return found


def argument_layouts(whole: StableHloNetwork, module: HloModule, count: int) -> dict[str, Layout]:
    """Return the layouts of arguments, as the partitioned module or else the step says; whole on every device without
    one. Raise MspcError if one does not fit the sizes of the arguments."""
    found: dict[str, Layout] = {}
    main = module.main
    for at, each in enumerate(whole.arguments):
        sharding = sharding_in(main.argument_attributes[at])
        named = layout_of(module, sharding, each.type.rank) if sharding is not None else None
        if sharding is None and each.sharding is not None:
            named = layout_of(whole.module, each.sharding, each.type.rank)
        layout = Layout.replicated(count, each.type.rank) if named is None else named.to_layout()
        local: Any = main.body.types[at]
        if layout.ranks != count or layout.local_shape(each.type.shape) != local.shape:
            raise MspcError(
                f"{module.file}: argument {each.name} is {local}, no slice of {each.type} in {whole.module.file}",
                module.location(main.place), [f"its sharding is {sharding}"],
            )  # fmt: skip
        found[each.name] = layout
    return found


def _told(whole: StableHloNetwork, module: HloModule, at: int, layouts: dict[str, Layout]) -> list[Layout]:
    """Return the layout of a result as one of the texts says, else that of the argument whose place it takes."""
    for text in (module, whole.module):
        attributes = text.main.result_attributes
        sharding = sharding_in(attributes[at]) if at < len(attributes) else None
        if sharding is not None:
            type: Any = whole.module.main.result_types[at]
            named = layout_of(text, sharding, type.rank)
            if named is not None:
                return [named.to_layout()]
    return [layouts[each.name] for each in whole.arguments if each.target == at]


def _fitting(
    shape: tuple[int, ...], local: tuple[int, ...], told: Sequence[Layout], count: int, known: Any,
    name: tuple[str, str], after: Path,
) -> Iterator[Layout]:  # fmt: skip
    """Yield layouts of a result with these sizes, the likeliest first."""
    if len(shape) != len(local) or any(n == 0 or m % n for m, n in zip(shape, local, strict=True)):
        raise MspcError(f"{after}: {' '.join(name)} has sizes {local}, no slice of {shape}: it is of another step")
    seen: list[Layout] = []
    meshes = {layout.mesh for layout in known}
    for layout in itertools.chain(told, known, _on_axes(shape, local, meshes, count)):
        fits = len(layout.dims) == len(shape) and layout.local_shape(shape) == local
        if fits and layout not in seen:
            seen.append(layout)
            yield layout
        if len(seen) >= MAX_LAYOUTS:
            return
    if not seen:
        raise MspcError(f"{after}: {' '.join(name)} has sizes {local}, which no axes give of {shape}")


def _on_axes(
    shape: tuple[int, ...], local: tuple[int, ...], meshes: set[tuple[int, ...]], count: int
) -> Iterator[Layout]:  # fmt: skip
    """Yield layouts that divide each dimension by some axes of a mesh in which the devices lie."""
    parts = [m // n for m, n in zip(shape, local, strict=True)]
    finest = sorted(meshes | {(count,)}, key=len, reverse=True)
    for mesh in finest:
        axes = range(len(mesh))
        choices = [
            [own for n in range(len(mesh) + 1) for own in itertools.permutations(axes, n)
             if math.prod(mesh[a] for a in own) == part and all(mesh[a] > 1 for a in own)]
            for part in parts
        ]  # fmt: skip
        for dims in itertools.product(*choices):
            used = [axis for own in dims for axis in own]
            if len(set(used)) == len(used):
                yield Layout.of(mesh, dims)


# `mspc verify --torch --against torch` compares one device with the module itself ---------------------
# Results and all gradients.


def check_comparable(program: VerifiedProgram, options: CompileOptions) -> None:
    """Raise MspcError if the program draws random numbers that cannot be given to PyTorch, or if options change its
    results relative to the module."""
    said = options.imported
    if said.precision or said.accumulate != 1:
        raise MspcError(
            "--against torch compares with the module as it is, so it takes no --precision and no --accumulate"
        )
    for node in program.reference.graph.nodes:
        inner = [each for region in node.regions for graph in region.graphs() for each in graph.nodes]
        if any(getattr(each.op, "seeds", ()) for each in inner):
            raise MspcError(
                f"{node.label} draws random numbers in a loop or a branch, and PyTorch would draw others",
                frames=node.frames, notes=["call model.eval() in the function to draw none"],
            )  # fmt: skip


def module_rows(found: FoundCall, program: VerifiedProgram, options: CompileOptions) -> list[ComparedValue]:
    """Return rows that compare the results and gradients of one step with those of the module for the same numbers.
    Raise MspcError if the module is called with other tensors than the program."""
    from mspc.readers.pytorch.network import module_step  # late: it brings PyTorch along
    from mspc.verify.pytorch.counterparts import first_of_ties, load_torch

    target, said = found.target, options.imported
    assert isinstance(target, NamedTarget)
    network = next(cell for _, cell in found.captured.target.cells_and_names() if getattr(cell, "is_imported", False))
    device, _, _ = one_device(program, program.reference.graph)
    arrays, weights = device.feeds[0][0], program.weights
    trains = any(node.attrs.get("gradient_for") for node in program.reference.graph.nodes)
    results, gradients, draws = _step(device, weights, arrays)
    with first_of_ties(load_torch()):
        theirs = module_step(network, build_target(target), arrays, weights, said.loss, trains, draws)
    moves = [Movement(device.graph, weights, sign) for sign in (1.0, -1.0)]
    others = [_step(device, move.weights, [move.array(each, 0) for each in arrays]) for move in moves]
    least, rows = coarsest(program.reference.graph), list[ComparedValue]()
    for i, (mine, expected) in enumerate(zip(results, theirs.results, strict=True)):
        noise = partial(noise_between, mine, [other[0][i] for other in others])
        rows.append(compare("module", f"result {i}" if len(results) > 1 else "result", expected, _like(mine, expected),
                            least, noise))  # fmt: skip
    for name in dict.fromkeys([*gradients, *theirs.gradients]):
        expected, mine = theirs.gradients.get(name), gradients.get(name)
        if mine is None:  # a parameter that the program does not train
            mine = np.zeros_like(expected)
        expected = np.zeros(mine.shape, np.float32) if expected is None else expected
        noise = partial(noise_between, mine, [other[1][name] for other in others if name in other[1]])
        rows.append(compare("module's gradient", name, expected, _like(mine, expected), least, noise))
    return rows


def _step(
    device: OneDevice, weights: Mapping[str, Array], arrays: Sequence[Array]
) -> tuple[list[Array], dict[str, Array], list[Array]]:
    """Return the results of one step, the gradients that its updates read, by parameter, and the masks of dropout
    and other numbers that it draws."""
    gradients: dict[str, Array] = {}
    draws: list[Array] = []

    def noted(node: Node, backend: NumPyBackend) -> Callable[..., Any] | None:
        if not getattr(node.op, "draws", False) or node.phase != "forward":
            return None
        kernel = node.op.kernel(backend)

        def kept(*operands: Array) -> Any:
            found = kernel(*operands)
            draws.append(found[1].astype(bool) if isinstance(found, tuple) else np.array(found))
            return found

        return kept

    def note(node: Node, gradient: Array) -> Array:
        gradients[str(node.attrs["gradient_for"])] = np.array(gradient)
        return gradient

    run = replace(device, weights=dict(weights), feeds=[[list(arrays)]], mark="", combine=note, kernels=noted)
    run = run.run()[0][0]
    count = sum(isinstance(key, tuple) and key[0] == "result" for key in run)
    return [run["result", i] for i in range(count)], gradients, draws


def _like(mine: Array, expected: Array) -> Array:
    """Return a value in the dtype of the one with which it is compared; half precision values arrive in Float32."""
    return mine.astype(expected.dtype) if mine.dtype != expected.dtype else mine
