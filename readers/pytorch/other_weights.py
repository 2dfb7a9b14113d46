"""Weights of a program from a checkpoint, which has them under the module's names.

If several tensors of a checkpoint are a parameter, as one for every expert may be, each of them is a
part that is read in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from mspc.checkpoint.files import Files
from mspc.checkpoint.stored_tensors import Checkpoint, StoredSlice, TensorPieces
from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.readers.pytorch.archive import ProgramWeights
from mspc.readers.pytorch.exported_program import ExportedProgram, ExportedType, ProgramInput
from mspc.readers.pytorch.written_values import read_names
from mspc.sharding.pieces import Box


@dataclass(frozen=True)
class JoinedWeight:
    """The tensors of a parameter: lists of names, each list stacked along the dimension `stacked`, and the results
    joined along `joined`; None: not done."""

    names: tuple[tuple[str, ...], ...]
    stacked: int | None = None
    joined: int | None = None


NO_NAMES: Mapping[str, JoinedWeight] = MappingProxyType({})
SHOWN = 3
"""Names of a checkpoint in a message."""


def with_weights(
    program: ExportedProgram, stored: Checkpoint, names: Mapping[str, JoinedWeight] = NO_NAMES, advice: str = ""
) -> ExportedProgram:
    """Return the program with the parameters of a checkpoint and its buffers that are there.

    Other buffers stay, and so do missing parameters that nothing is computed from, which no run saves. names: for
    parameters that are no tensor of their name in the checkpoint, the tensors there. advice: a note of the error.

    Raise MspcError if a parameter is missing, or of another type.
    """
    behind = len(program.weights.files.paths)
    tensors = dict(program.weights.tensors)
    strided = dict(program.weights.strided) if isinstance(program.weights, ProgramWeights) else {}
    read = read_names(program.graph)
    for each in program.inputs:
        if each.type is None or each.kind not in ("parameter", "buffer") or not each.persistent:
            continue
        given = _made_of(stored, each, program.same, names)
        if given is None and (each.kind == "buffer" or each.name not in read):
            continue  # it has its initial value
        name = program.same.get(each.qualified, each.qualified)
        if given is None:
            raise MspcError(
                f"{stored.name} has no tensor {name!r:.100}, which is a parameter of {program.name}",
                notes=[*did_you_mean(name, [*stored.tensors]), _listed(stored), *([advice] if advice else [])],
            )
        tensor = _joined(stored, given, each.type)
        _check(stored, given, tensor, each.type)
        pieces = tuple(replace(piece, file=piece.file + behind) for piece in tensor.pieces)
        tensors[name] = replace(tensor, pieces=pieces)
        strided.pop(name, None)
    files = Files.joined([program.weights.files, stored.files])
    return replace(program, weights=ProgramWeights(stored.name, files, tensors, strided=strided))


def _made_of(
    stored: Checkpoint, each: ProgramInput, same: Mapping[str, str], names: Mapping[str, JoinedWeight]
) -> JoinedWeight | None:
    """Return the tensors of a parameter, which may have several names in the program, or None if any is missing."""
    first = same.get(each.qualified, each.qualified)
    for name in (first, *(other for other, name in same.items() if name == first)):
        given = names.get(name, JoinedWeight(((name,),)))
        if all(given.names) and all(part in stored.tensors for parts in given.names for part in parts):
            return given
        packed = _packed_parts(stored, name, each)
        if packed is not None:
            return packed
    return None


def _packed_parts(stored: Checkpoint, name: str, each: ProgramInput) -> JoinedWeight | None:
    """Return the parts of a parameter that a plan has taken apart, as a run saves them: `gate_up_proj[0]` and `[1]`."""
    parts: list[str] = []
    while f"{name}[{len(parts)}]" in stored.tensors:
        parts.append(f"{name}[{len(parts)}]")
    if len(parts) < 2 or each.type is None:
        return None
    shape = stored.tensors[parts[0]].type.shape
    dims = [d for d, pair in enumerate(zip(shape, each.type.shape, strict=False)) if pair[0] != pair[1]]
    return JoinedWeight(tuple((part,) for part in parts), None, dims[0]) if len(dims) == 1 else None


def _joined(stored: Checkpoint, given: JoinedWeight, type: ExportedType) -> TensorPieces:
    if given.stacked is None and given.joined is None:
        return stored.tensors[given.names[0][0]]
    pieces: list[StoredSlice] = []
    at, shape = 0, list[int]()
    for parts in given.names:
        for number, part in enumerate(parts):
            tensor = stored.tensors[part]
            begin, sizes = [0] * tensor.type.rank, [*tensor.type.shape]
            if given.stacked is not None:
                begin.insert(given.stacked, number)
                sizes.insert(given.stacked, 1)
            if given.joined is not None:
                begin[given.joined] += at
            ends = [b + n for b, n in zip(begin, sizes, strict=True)]
            shape = ends if not shape else [max(pair) for pair in zip(shape, ends, strict=True)]
            if tensor.type.dtype != type.dtype or len(tensor.pieces) != 1:
                return tensor  # another type, which is reported
            pieces.append(replace(tensor.pieces[0], box=Box(tuple(begin), tuple(ends))))
        at = shape[given.joined] if given.joined is not None else 0
    return TensorPieces(TensorType(type.dtype, tuple(shape)), tuple(pieces))


def _listed(stored: Checkpoint) -> str:
    names, more = [*stored.tensors], len(stored.tensors) - SHOWN
    return f"it has {', '.join(names[:SHOWN])}{f' and {more} more' if more > 0 else ''}"


def _check(stored: Checkpoint, given: JoinedWeight, tensor: TensorPieces, type: ExportedType) -> None:
    if (tensor.type.dtype, tensor.type.shape) != (type.dtype, type.shape):
        shape = ", ".join(map(str, type.shape))
        first: Sequence[str] = given.names[0]
        several = f" and {sum(map(len, given.names)) - 1} more are" if len(first) > 1 else " is"
        raise MspcError(
            f"{stored.name}: tensor {first[0]!r:.100}{several} {tensor.type}, and the program has {type.dtype}[{shape}]"
        )
