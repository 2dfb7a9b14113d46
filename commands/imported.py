"""Commands are given networks of PyTorch: exported programs, which are read as data, and what PyTorch exports here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mspc.api.setting_kind import say_once
from mspc.api.state import Session
from mspc.commands.options import EXPORTED, ImportOptions, target_name
from mspc.engine.capture import CapturedCall, NamedTarget, capture_made, made_by
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType

if TYPE_CHECKING:
    from mspc.readers.pytorch.program import ExportedProgram


def capture_imported(
    target: NamedTarget | Path, options: ImportOptions, inputs: Sequence[str], session: Session
) -> CapturedCall:
    """The call of a network of PyTorch, with global inputs as it was exported with; the batch is sharded over all
    ranks where they divide it.

    Raises:
        MspcError: the program cannot be read, or compiled as the options say.
    """
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

    def make() -> tuple[Any, Sequence[TensorType]]:
        from mspc.readers.pytorch.training import Training, compiled_as  # late: few networks are imported

        training = Training(options.loss, options.optimizer, options.precision, options.accumulate)
        made = compiled_as(_program(target, options), training)
        return made.network, made.inputs

    def data(types: Sequence[TensorType]) -> str | tuple[Any, ...]:
        # Of a batch in parts every rank has a share of each part, which no share of the batch holds.
        return _sharded_batch(types, session.size) if options.accumulate == 1 else "full_batch"

    return capture_made(make, path, session, data)


def _program(target: NamedTarget | Path, options: ImportOptions) -> ExportedProgram:
    """The program of a target, with numbers for all of its sizes. Raises MspcError."""
    from mspc.readers.pytorch.reading import read_program  # late, as above
    from mspc.readers.pytorch.sizes import with_sizes

    if isinstance(target, NamedTarget):
        with TemporaryDirectory(prefix="mspc-") as folder:
            program = _of_function(target, Path(folder) / f"{target.name}{EXPORTED}")
    elif target.is_dir():
        from mspc.readers.pytorch.folder import read_folder

        return _loaded(read_folder(target, dict(options.sizes)), options.load)
    else:
        program = read_program(target)
    return _loaded(with_sizes(program, dict(options.sizes)), options.load)


def _loaded(program: ExportedProgram, path: Path | None) -> ExportedProgram:
    """The program with the weights of a checkpoint, if one is named. Raises MspcError."""
    if path is None:
        return program
    from mspc.checkpoint.opening import open_checkpoint  # late, as above
    from mspc.readers.pytorch.other_weights import with_weights

    return with_weights(program, open_checkpoint(path))


def _of_function(target: NamedTarget, to: Path) -> ExportedProgram:
    """The program of the module that a function of a script gives. The archive is read on when its folder is gone."""
    from mspc.readers.pytorch.exporting import export_made
    from mspc.readers.pytorch.reading import read_program

    exported = export_made(made_by(target), to, target_name(target))
    program = read_program(exported.path)
    return replace(program, name=target_name(target), same={**exported.same, **program.same})


def _sharded_batch(types: Sequence[TensorType], ranks: int) -> str | tuple[Any, ...]:
    """How inputs are sharded: those that have the batch of the first one over all ranks, or none."""
    batch = next((type.shape[0] for type in types if type.shape), 0)
    if not batch or batch % ranks:
        if batch:
            rows = f"{ranks} ranks do not divide the {batch} rows of the first input"
            say_once("batch", f"{rows}, so every rank gets all of them unless a plan says otherwise")
        return "full_batch"
    return tuple(
        (ranks if type.shape[0] == batch else 1, *(1,) * (type.rank - 1)) if type.shape else () for type in types
    )
