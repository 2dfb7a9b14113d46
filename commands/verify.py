"""`mspc verify`: some steps on one device and the same on N simulated ranks must give the same numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mspc.api.common.parameter import Parameter as ScriptParameter
from mspc.api.common.tensor import Tensor
from mspc.commands.compile import CompileOptions, Found, find_launch
from mspc.commands.report.table import check_json
from mspc.commands.report.verification import report, report_against
from mspc.commands.verify_folder import verify_folder
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, Stage, compile_traced, trace_call
from mspc.engine.capture import Launch
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.types import TensorType
from mspc.output.dumps import NO_FILES
from mspc.output.first_values import first_values
from mspc.output.programs import Programs, compile_for
from mspc.passes.base import OnPass
from mspc.passes.sharding.constraints import release_constraints
from mspc.verify.data_parallel.global_batch import Whole, difference_of, name_by_script, name_gradients
from mspc.verify.float64_graph import Doubled, Request, requests
from mspc.verify.made_inputs import made_inputs
from mspc.verify.pytorch.against import against_torch
from mspc.verify.verification import MARK, STEPS, Program, verified

Array = Any
SLICED = "slice_to_rank"
"""The pass behind which a rank's graph still has the operators of one device."""


def verify_target(target: str, options: CompileOptions, seed: int, with_torch: bool = False, mpi: bool = False) -> None:
    """Compare, print the table and the verdict, fail where anything differs by more than its tolerance.

    With the table as JSON on stdout nothing else is printed there.

    Args:
        target: as of `mspc compile`, or the folder that it wrote. with_torch: one device beside PyTorch, instead of the
        ranks beside one device. mpi: the ranks run under mpirun.

    Raises:
        MspcError: both of these are asked for, the program cannot be compiled, or the folder not be read.
        ExecutionError: a value differs, or the ranks do not run.
    """
    check_json(options.json)
    if with_torch and mpi:
        raise MspcError("--against torch judges one device, and --mpi runs ranks", notes=["give one of the two"])
    if os.path.isdir(target):
        verify_folder(Path(target), options, seed, with_torch, mpi)
        return
    found = find_launch(target, options)
    config = Config.from_context(found.launch.context, found.ranks, str(Path(found.launch.script).parent))
    if config.mode == "hybrid_parallel":
        raise MspcError(
            "in hybrid_parallel mode the script's own collectives decide what the ranks compute, so there is no step "
            "of one device to compare with",
            notes=["mspc run --simulate runs it on ranks of this process"],
        )
    many = _compiled(found.launch, config, options.loudness.on_pass())[0]
    if found.asked():
        _check_ranks_alike(found)
    program = _program(found.launch, many, seed)
    if with_torch:
        report_against(against_torch(program), options.json, options.loudness, seed, all_rows=options.all_rows)
        return
    report(verified(program, seed, mpi), config, options.json, options.loudness, seed, all_rows=options.all_rows)


def _check_ranks_alike(found: Found) -> None:
    """Raises MspcError where ranks that ask for their number launch different graphs."""
    first = compile_for(found.launch, found.ranks, NO_FILES, found.asked)
    if Programs(first, range(found.ranks), True, NO_FILES, found.rerun).differ:
        raise MspcError(
            "the network depends on get_rank(): the ranks run different graphs, so there is no step of one device to "
            "compare with",
            notes=["mspc run --simulate runs it on ranks of this process"],
        )


def _program(launch: Launch, many: Compiled, seed: int) -> Program:
    """What is compared of a launch."""
    config, fed, own = many.config, many.fed, many.config.feeds_own_rows
    alone = replace(config, ranks=1, mode="stand_alone", keeps_strategies=config.ranks * config.sharded)
    one, doubled = _compiled(_whole(launch, [f.graph_type if own else f.global_type for f in fed]), alone)
    brought: list[Tensor] = []
    describe_call(launch.args, brought)
    types, arrays = [f.global_type for f in fed], [t.asnumpy() for t in brought]
    layouts = [f.layout for f in fed] if own else []
    return Program(
        one.graph,
        many.graph,
        config.ranks,
        doubled,
        {value.name: np.array(value.make()) for value in first_values(one)},
        lambda positive: made_inputs(one.graph, types, arrays, seed, STEPS, positive),
        many.rank_graph,
        partial(_plain, many),
        layouts,
        _whole_batch(launch, one, [f.global_type for f in fed], alone) if own else Whole(None),
    )


def _whole_batch(launch: Launch, one: Compiled, types: Sequence[TensorType], alone: Config) -> Whole:
    """The launch on the whole batch."""
    try:
        compiled, _ = _compiled(_whole(launch, types), alone)
    except MspcError as error:
        return Whole(None, reason=f"the network does not take it: {error.message}")
    reason = difference_of(one.graph, compiled.graph)
    if reason:
        return Whole(None, reason=reason)
    return Whole(compiled.graph, {value.name: np.array(value.make()) for value in first_values(compiled)})


def _whole(launch: Launch, types: Sequence[TensorType]) -> Launch:
    """The launch with global types in the places of its tensors."""
    rest = iter(types)

    def place(arg: Any) -> Any:
        if isinstance(arg, Tensor | TensorType | np.ndarray) and not isinstance(arg, ScriptParameter):
            return next(rest)
        return tuple(map(place, arg)) if isinstance(arg, tuple | list) else arg

    return replace(launch, args=tuple(map(place, launch.args)), whole=True)


def _compiled(launch: Launch, config: Config, on_pass: OnPass | None = None) -> tuple[Compiled, Doubled | None]:
    """The program with its operators numbered; of one device also what its gradients are judged by, if it has any."""
    asked: list[Request] = []
    doubled: list[Doubled] = []

    def mark(stage: Stage) -> None:
        if stage.name != "grad":
            if not doubled and config.ranks == 1:
                name_by_script(stage.graph)
            asked[:] = requests(stage.graph) if not doubled else asked
            return
        if not config.sharded:
            release_constraints(stage.graph)
        if config.ranks == 1:
            doubled.append(Doubled.of(stage.graph, asked))
            name_gradients(stage.graph)
        for number, node in enumerate(stage.graph.nodes):
            node.attrs[MARK] = number

    call = trace_call(launch.target, describe_call(launch.args, []), config, launch.whole)
    return compile_traced(call, mark, on_pass), doubled[0] if doubled else None


def _plain(compiled: Compiled, rank: int) -> Graph:
    """A rank's graph as it is sliced, before operators are fused."""
    found: list[Graph] = []
    compiled.rank_graph(rank, lambda stage: found.append(stage.graph), (SLICED,))
    return found[0]
