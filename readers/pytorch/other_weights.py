"""A program takes its weights out of a checkpoint, which has them under the module's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from mspc.checkpoint.files import Files
from mspc.checkpoint.reading import Checkpoint, Stored
from mspc.ir.diagnostics import MspcError
from mspc.ir.nearest import did_you_mean
from mspc.readers.pytorch.program import ExportedProgram, ExportedType, ProgramInput
from mspc.readers.pytorch.weights import Weights

NO_NAMES: Mapping[str, str] = MappingProxyType({})
SHOWN = 3
"""Names of a checkpoint in a message."""


def with_weights(
    program: ExportedProgram, stored: Checkpoint, names: Mapping[str, str] = NO_NAMES, advice: str = ""
) -> ExportedProgram:
    """The program with the parameters of a checkpoint and those of its buffers that are there; others stay as they are.

    Args:
        names: what the checkpoint calls parameters, where it is another name. advice: a note of the error.

    Raises:
        MspcError: a parameter is not there, or of another type.
    """
    behind = len(program.weights.files.paths)
    tensors = dict(program.weights.tensors)
    strided = dict(program.weights.strided) if isinstance(program.weights, Weights) else {}
    for each in program.inputs:
        if each.type is None or each.kind not in ("parameter", "buffer") or not each.persistent:
            continue
        given = _name_in(stored, each, program.same, names)
        if given is None and each.kind == "buffer":
            continue  # it has what it was made with
        name = program.same.get(each.qualified, each.qualified)
        if given is None:
            raise MspcError(
                f"{stored.name} has no tensor {name!r:.100}, which is a parameter of {program.name}",
                notes=[*did_you_mean(name, [*stored.tensors]), _listed(stored), *([advice] if advice else [])],
            )
        tensor = stored.tensors[given]
        _check(stored, given, tensor, each.type)
        pieces = tuple(replace(piece, file=piece.file + behind) for piece in tensor.pieces)
        tensors[name] = replace(tensor, pieces=pieces)
        strided.pop(name, None)
    paths = [*program.weights.files.paths, *stored.files.paths]
    files = Files(paths, [None] * len(paths))
    return replace(program, weights=Weights(stored.name, files, tensors, strided=strided))


def _name_in(
    stored: Checkpoint, each: ProgramInput, same: Mapping[str, str], names: Mapping[str, str]
) -> str | None:
    """What the checkpoint calls a tensor, which may have several names in the program."""
    first = same.get(each.qualified, each.qualified)
    known = (first, *(other for other, name in same.items() if name == first))
    return next((given for name in known if (given := names.get(name, name)) in stored.tensors), None)


def _listed(stored: Checkpoint) -> str:
    names, more = [*stored.tensors], len(stored.tensors) - SHOWN
    return f"it has {', '.join(names[:SHOWN])}{f' and {more} more' if more > 0 else ''}"


def _check(stored: Checkpoint, name: str, tensor: Stored, type: ExportedType) -> None:
    if (tensor.type.dtype, tensor.type.shape) != (type.dtype, type.shape):
        shape = ", ".join(map(str, type.shape))
        raise MspcError(
            f"{stored.name}: tensor {name!r:.100} is {tensor.type}, and the program has {type.dtype}[{shape}]"
        )
