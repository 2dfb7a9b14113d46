"""Networks of PyTorch as targets of commands: exported programs, read as data, and modules exported on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mspc.commands.options import EXPORTED, ImportOptions, target_name
from mspc.engine.capture import CapturedCall, NamedTarget, build_target, capture_network
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType
from mspc.mindspore_api.setting_kind import say_once
from mspc.mindspore_api.state import Session

if TYPE_CHECKING:
    from mspc.readers.pytorch.exported_program import ExportedProgram
    from mspc.readers.pytorch.plans.strategies import LayerPlan

OWN_PLAN = "own"
"""Value of --plan for the plan that is part of the model."""
TF32 = "tf32"
"""The precision in which Float32 matmuls on a GPU round their operands."""
EIGHT = "float8"
"""The precision in which linear layers multiply in 8 bits, and other matmuls in BFloat16."""


def capture_imported(
    target: NamedTarget | Path, options: ImportOptions, inputs: Sequence[str], session: Session
) -> CapturedCall:
    """Return the call of a PyTorch network with global inputs of the exported types. The batch is sharded over all
    ranks if their number divides it. Raise MspcError if the program cannot be read, or not be compiled with these
    options."""
    if inputs:
        raise MspcError(
            f"--input is for a network in a script; {target_name(target)} knows its inputs",
            notes=["--size gives numbers to sizes that are open"],
        )
    if options.torch and isinstance(target, Path):
        raise MspcError(
            f"--torch is for a function that gives a module, as in 'model.py:make', not for {target_name(target)}"
        )
    path = target if isinstance(target, Path) else target.path

    plans: list[LayerPlan] = []

    def make() -> tuple[Any, Sequence[TensorType]]:
        from mspc.readers.pytorch.training import Training, compiled_as  # late: few networks are imported

        program = _program(target, options)
        plans.extend(_planned(program, options.plan, session.size))
        program = plans[0].program if plans else program
        training = Training(
            options.loss, options.optimizer, options.precision, options.accumulate, next(iter(plans), None)
        )
        made = compiled_as(program, training)
        return made.network, made.inputs

    def data(types: Sequence[TensorType]) -> str | tuple[Any, ...]:
        # If a batch is in parts, every rank has a slice of each part, which no slice of the batch contains.
        if options.accumulate != 1:
            return "full_batch"
        return plans[0].inputs(types) if plans else sharded_batch(types, session.size)

    captured = capture_network(make, path, session, data)
    context = captured.context
    if options.device:
        context = replace(context, device_target=options.device.upper())
    if options.precision == TF32:
        context = replace(context, matmul_allow_tf32=True)
    if options.precision == EIGHT:
        context = replace(context, fp8_format="hybrid")
    if not plans:
        return replace(captured, context=context)
    # The planned layers decide the sharding of the others, which would follow the batch otherwise.
    context = replace(context, parallel_mode="auto_parallel", search_mode="sharding_propagation")
    if plans[0].stages:
        if options.optimizer or options.accumulate != 1:
            _check_micro_batches(plans[0], options.accumulate)
        context = replace(context, pipeline_stages=plans[0].plan.stages)
    if plans[0].pads:
        context = replace(context, pad_uneven=True)
    if plans[0].plan.fully_shard:
        context = replace(context, enable_parallel_optimizer=True)
    return replace(captured, context=context)


def _check_micro_batches(plan: LayerPlan, parts: int) -> None:
    """Raise MspcError if a batch has too few parts for the stages to work at a time."""
    if parts < plan.plan.stages:
        raise MspcError(
            f"{plan.plan.name} has {plan.plan.stages} stages, and --accumulate {parts} gives a batch fewer parts",
            notes=[f"the parts are the micro-batches of the pipeline: give --accumulate {plan.plan.stages} or more"],
        )


def _planned(program: ExportedProgram, asked: str, ranks: int) -> list[LayerPlan]:
    """Return the requested plan in a list, [] if none is. Raise MspcError if it cannot be read or does not exist."""
    if not asked:
        return []
    from mspc.readers.pytorch.plans.strategies import planned  # late, as above
    from mspc.readers.pytorch.plans.written_plan import plan_in, plan_of

    if asked != OWN_PLAN:
        return [planned(program, plan_in(Path(asked), ranks))]
    if not program.own_plan:
        raise MspcError(
            f"{program.name} brings no plan of its own",
            notes=["models of transformers do, from a folder or with --torch; else --plan names a file"],
        )
    own = plan_of(f"the plan of {program.name}", {"layers": dict(program.own_plan)}, ranks)
    return [planned(program, own, is_own=True)]


def _program(target: NamedTarget | Path, options: ImportOptions) -> ExportedProgram:
    """Return the program of a target, with numbers for all of its sizes. Raise MspcError if it cannot be read."""
    from mspc.readers.pytorch.graph_reader import read_program  # late, as above
    from mspc.readers.pytorch.sizes import with_sizes

    if isinstance(target, NamedTarget):
        with TemporaryDirectory(prefix="mspc-") as folder:
            program = _of_function(target, Path(folder) / f"{target.name}{EXPORTED}")
    elif target.is_dir():
        from mspc.readers.pytorch.exporting import read_folder

        return _loaded(read_folder(target, dict(options.sizes)), options.load)
    else:
        program = read_program(target)
    return _loaded(with_sizes(program, dict(options.sizes)), options.load)


def _loaded(program: ExportedProgram, path: Path | None) -> ExportedProgram:
    """Return the program, with the weights of a checkpoint if `path` is given. Raise MspcError if they do not fit."""
    if path is None:
        return program
    from mspc.checkpoint.sets import open_checkpoint  # late, as above
    from mspc.readers.pytorch.other_weights import with_weights

    return with_weights(program, open_checkpoint(path))


def _of_function(target: NamedTarget, to: Path) -> ExportedProgram:
    """Return the program of the module that a function of a script returns. The archive is read even after its folder
    is deleted."""
    from mspc.readers.pytorch.exporting import export_made
    from mspc.readers.pytorch.graph_reader import read_program

    exported = export_made(build_target(target), to, target_name(target))
    program = read_program(exported.path)
    return replace(program, name=target_name(target), same={**exported.same, **program.same},
                   own_plan=exported.own_plan, dropped=exported.dropped)  # fmt: skip


def sharded_batch(types: Sequence[TensorType], ranks: int) -> str | tuple[Any, ...]:
    """Return the sharding of inputs: those with the batch of the first one over all ranks, or "full_batch" for none."""
    batch = next((type.shape[0] for type in types if type.shape), 0)
    if not batch or batch % ranks:
        if batch:
            rows = f"{ranks} ranks do not divide the {batch} rows of the first input"
            say_once("batch", f"{rows}, so every rank gets all of them unless a plan says otherwise")
        return "full_batch"
    return tuple(
        (ranks if type.shape[0] == batch else 1, *(1,) * (type.rank - 1)) if type.shape else () for type in types
    )
