"""Execution of a compiled directory on one rank, or on all ranks in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mspc.analysis.aliasing import updated_parameters
from mspc.engine.job import Job
from mspc.ir.diagnostics import ExecutionError, MspcError, ranks_listed
from mspc.ir.files.atomic_writing import write_atomically
from mspc.ir.files.tensors import StoredTensor, in_order, write_tensors
from mspc.ir.graph import Graph, Parameter
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.check_graph import check_graph
from mspc.runtime.available_memory import check_memory, explain_memory_errors
from mspc.runtime.comm.agreement import agree, agree_on_collectives, gathered, stop_together
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.data import Batches, full_type, gather, load_batches, storable, synthetic_batches
from mspc.runtime.device_choice import DeviceOptions, DeviceRequest
from mspc.runtime.faults.record import NodeFailure
from mspc.runtime.program import Program, Settings, load_program, load_slices

Array = Any


@dataclass(frozen=True)
class Options:
    """Options of `mspc run DIR`; see `commands.run.run_directory`."""

    folder: Path
    data: Path | None = None
    synthetic: bool = False
    steps: int | None = None
    save: Path | None = None
    save_outputs: Path | None = None


def check_program(options: Options, ranks: int | None) -> Program:
    """Return the program, checked to run on `ranks` ranks; None for the number that it was compiled for. Raise
    MspcError if it cannot run."""
    program = load_program(options.folder)
    if ranks is not None and ranks != program.ranks:
        several = "s" * (program.ranks > 1)
        raise MspcError(
            f"{options.folder} was compiled for {program.ranks} rank{several}, not for {ranks}",
            notes=[f"run it on {program.ranks}, or compile it again with --ranks {ranks}"], code="E0112",
        )
    if missing := program.missing():
        raise MspcError(
            f"{options.folder} holds no graph for {ranks_listed(missing)} of {program.ranks}",
            notes=["compile it without --rank"],
        )
    if options.data is not None and options.synthetic:
        raise MspcError("--data and --synthetic exclude each other", code="E0106")
    if options.data is not None and not os.path.exists(options.data):
        raise MspcError(f"there is no file {options.data}", code="E0101")
    if options.data is None and not options.synthetic and program.inputs:
        names = ", ".join(str(entry.get("name")) for entry in program.inputs)
        raise MspcError(
            f"{options.folder} takes {names}",
            notes=["give --data FILE.npz with these arrays, or --synthetic"], code="E0801",
        )
    return program


def simulate_program(
    options: Options, program: Program, wishes: DeviceOptions | None = None, profiler: Callable[[], Any] = lambda: None
) -> None:
    """Run all ranks in this process. profiler: makes an object that times the steps of one rank. Raise the
    MspcError of the first rank that failed."""
    from mspc.engine.simulate import simulated_hardware  # brings the compiler along

    def main(comm: LocalComm) -> None:
        hardware = simulated_hardware(wishes, comm.rank)
        run_rank(options, Job(comm, comm, None, hardware, profiler()), program)

    World(program.ranks).run(main)


@dataclass
class _Prepared:
    graph: Graph
    values: dict[str, Array]
    batches: Batches
    steps: int
    layouts: list[Layout | None]
    trains: bool
    tells: int = 0
    """The first rank with losses, which prints them."""


@dataclass(frozen=True)
class EarlyGraph:
    """A rank's graph, read while the other ranks were starting, with its source text."""

    text: str
    graph: Graph


def read_graph_early(folder: Path, rank: int, frames: bool = False) -> EarlyGraph | None:
    """Read a rank's graph before MPI has started, with source lines if `frames`. Return None on failure, which the run
    reports."""
    try:
        program = load_program(folder)
        text = program.text(rank)
        return EarlyGraph(text, program.graph(rank, text, frames))
    except MspcError:
        return None


def run_rank(options: Options, job: Job, program: Program, ahead: EarlyGraph | None = None) -> None:
    """Run this rank's part: read its graph and slices, agree with the others, run the steps. Raise MspcError, status 2,
    if the files are damaged or do not fit, ExecutionError, status 1, if a step failed."""
    error: MspcError | None = None
    prepared: _Prepared | None = None
    try:
        job.hardware.choose(DeviceRequest(), job.size)
        prepared = _prepare(options, job, program, ahead)
    except MspcError as found:
        error = found
    stop_together(job.comm, error)
    assert prepared is not None
    graph = prepared.graph
    agree(job.comm, str(graph.attrs.get("compile_id", "")), str(program.folder))
    agree_on_collectives(job.comm, graph)
    if not program.outputs and prepared.trains:  # captured stages of a pipeline, of which the last one has the loss
        own = np.array(job.rank if graph.results else job.size)
        prepared = replace(prepared, tells=int(job.comm.all_reduce(own, "min", tuple(range(job.size)))))
    executor = _executor(graph, prepared.values, job, program.settings)
    if job.watch is not None:
        job.watch.describe = lambda rank, _, index: _place(program, rank, index)
        job.watch.graph_of = lambda rank, _: graph if rank == job.rank else program.graph(rank, program.text(rank))
    outputs: list[list[Array]] = []
    try:
        for step in range(prepared.steps):
            job.step(0, step + 1)
            results = job.run(executor, prepared.batches.step(step))
            if options.save_outputs is not None:
                outputs.append(_global_outputs(prepared.layouts, results, job))
            _show(step + 1, prepared, results, job)
            job.step_done()
        job.hardware.memory.finish()
        if job.profile is not None:
            job.profile.end(job)
    except NodeFailure as failure:
        raise _with_frames(failure, program, job) from failure
    if options.save is not None:
        _save_parameters(options.save, executor, job)
    if options.save_outputs is not None and job.rank == 0:
        names = [f"output{i}" for i in range(len(graph.results))]
        stacked = {n: np.stack([step[i] for step in outputs]) for i, n in enumerate(names)} if outputs else {}
        if prepared.steps == 1:
            stacked = {name: array[0] for name, array in stacked.items()}
        arrays = {name: storable(array) for name, array in stacked.items()}
        write_atomically(options.save_outputs, lambda file: np.savez(file, **arrays))


def _prepare(options: Options, job: Job, program: Program, ahead: EarlyGraph | None) -> _Prepared:
    text = program.text(job.rank)
    edited = program.edited(job.rank, text)
    if edited:
        name = program.folder / program.execute[job.rank]
        print(f"warning: {name} has been edited since it was compiled", file=sys.stderr, flush=True)
    if ahead is not None and ahead.text == text:
        graph = ahead.graph
    else:
        graph = program.graph(job.rank, text, frames=job.profile is not None)
    if edited:
        check_graph(graph)
    check_memory(graph, str(program.folder / program.execute[job.rank]))
    inputs = [parameter for parameter in graph.parameters if parameter.kind == "input"]
    with explain_memory_errors(f"the inputs and parameters of rank {job.rank}"):
        values = load_slices(program, graph, job.rank)
        if options.data is not None:
            batches = load_batches(options.data, inputs, job.rank)
        else:
            batches = synthetic_batches(inputs, job.rank)
    outputs, trains = program.outputs, bool(updated_parameters(graph))
    if trains and not outputs:
        outputs = [{}] * len(graph.results)
    if len(outputs) != len(graph.results):
        raise MspcError(
            f"{program.folder} has {len(outputs)} outputs, but the graph of rank {job.rank} {len(graph.results)}"
        )
    stages = program.stages(graph)
    layouts = [
        program.layout(entry, f"output {index}", value.shape, stages)
        for index, (entry, value) in enumerate(zip(outputs, graph.results, strict=True))
    ]
    return _Prepared(graph, values, batches, options.steps or batches.count, layouts, trains)


def _executor(graph: Graph, values: dict[str, Array], job: Job, settings: Settings) -> Any:
    """Return the executor of the graph on this rank's device. Raise MspcError, on all ranks together, if one cannot be
    made."""
    hardware = job.hardware
    hardware.agree(job.comm)
    error: MspcError | None = None
    executor: Any = None
    try:
        hardware.prepare(settings.deterministic, job.comm, job.watch)
        executor = hardware.executor(graph, job.comm, values, job.cursor, tf32=settings.matmul_allow_tf32)
    except MspcError as found:
        error = found
    stop_together(job.comm, error)
    return executor


def _show(step: int, prepared: _Prepared, results: list[Array], job: Job) -> None:
    """Print the results on one rank: the loss of a training step, otherwise a summary of each output."""
    if prepared.trains and results:
        if job.rank == prepared.tells:
            print(f"step: {step}, loss is {number(results[0])}", flush=True)
        return
    for index, array in enumerate(_global_outputs(prepared.layouts, results, job)):
        if job.rank == 0:
            wide = np.asarray(array, dtype=np.float64) if array.size else np.zeros(1)
            print(
                f"step: {step}, output {index}: shape {tuple(array.shape)}, mean {wide.mean():.6g}, "
                f"min {wide.min():.6g}, max {wide.max():.6g}",
                flush=True,
            )


def number(array: Array) -> str:
    """Return a one-element tensor as the shortest text that parses to the same value; others as NumPy prints them."""
    array = np.asarray(array)
    return str(array.reshape(())[()]) if array.size == 1 else str(array)


def _global_outputs(layouts: list[Layout | None], results: list[Array], job: Job) -> list[Array]:
    """Return the full outputs, gathered if the ranks hold slices."""
    outputs: list[Array] = []
    for layout, array in zip(layouts, results, strict=True):
        array = np.asarray(array)
        if layout is not None and not layout.is_partial and not layout.is_replicated:
            shape = tuple(n * shards for n, shards in zip(array.shape, layout.strategy, strict=True))
            array = gather(array, layout, shape, job.comm)
        outputs.append(array)
    return outputs


def _save_parameters(path: Path, executor: Any, job: Job) -> None:
    own = {parameter.name: parameter for parameter in executor.graph.parameters if parameter.kind != "input"}

    def full(parameter: Parameter) -> Array:
        return gather(executor.parameter(parameter.name), parameter.layout, full_type(parameter).shape, job.comm)

    tensors = _of_all_ranks([StoredTensor(name, full_type(p), partial(full, p)) for name, p in own.items()], job)
    if job.rank == 0:
        write_atomically(path, lambda file: write_tensors(file, tensors))
        return
    for tensor in in_order(tensors):
        tensor.make()


def _of_all_ranks(own: list[StoredTensor], job: Job) -> list[StoredTensor]:
    """Return the tensors of all ranks. Tensors that a rank does not hold, as with stages, come from the first rank that
    does."""
    make = {tensor.name: tensor.make for tensor in own}
    found: dict[str, StoredTensor] = {}
    everyone = tuple(range(job.size))
    said = gathered(job.comm, [(t.name, str(t.type.dtype), t.type.shape) for t in own])
    if all(told == said[0] for told in said):
        return own
    for rank, told in enumerate(said):
        for name, dtype, shape in told:
            type = TensorType(dtype_of(dtype), tuple(shape))

            def handed(name: str = name, type: TensorType = type, rank: int = rank) -> Array:
                given = make[name]() if name in make else np.empty(type.shape, type.dtype.numpy)
                return job.comm.broadcast(given, rank, everyone)

            found.setdefault(name, StoredTensor(name, type, handed))
    return list(found.values())


def _place(program: Program, rank: int, index: int) -> ExecutionError:
    graph = program.graph(rank, program.text(rank), frames=True)
    node = graph.nodes[index]
    return ExecutionError(f"at {node.label}", frames=node.frames)


def _with_frames(failure: NodeFailure, program: Program, job: Job) -> NodeFailure:
    """Return the failure with the source lines of its node, which a rank reads only when needed."""
    if failure.location is not None or failure.index < 0:
        return failure
    graph = program.graph(job.rank, program.text(job.rank), frames=True)
    if failure.region:
        graph = next(region for region in graph.graphs() if region.name == failure.region)
    return failure.at(graph.nodes[failure.index].frames)
