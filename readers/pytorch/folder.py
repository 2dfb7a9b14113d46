"""A folder of Hugging Face: its `config.json` says which model it is, and its safetensors hold the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mspc.checkpoint.files import Files
from mspc.checkpoint.hugging_face import HUGGING_FACE_INDEX, open_sharded
from mspc.checkpoint.index import read_rank_file
from mspc.checkpoint.reading import Checkpoint, Stored
from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.exporting import Exported, export_folder
from mspc.readers.pytorch.program import ExportedProgram, ExportedType
from mspc.readers.pytorch.reading import read_program
from mspc.readers.pytorch.weights import Weights

ONE_FILE = "model.safetensors"


def read_folder(folder: Path, sizes: Mapping[str, int]) -> ExportedProgram:
    """The model in a folder, exported in training mode, with the weights that are there.

    sizes: `batch` and `length` of its inputs.

    Raises:
        MspcError: PyTorch or transformers is missing, cannot make or export the model, or weights are not the model's.
    """
    with TemporaryDirectory(prefix="mspc-") as place:
        stored = _stored(folder)
        exported = export_folder(folder, Path(place) / "model.pt2", sizes, [*(stored.tensors if stored else ())])
        program = read_program(exported.path)
        weights = program.weights
        if stored is not None and isinstance(weights, Weights):
            weights = _together(weights, stored, program, exported)
    return replace(program, name=str(folder), weights=weights, same=exported.same)


def _stored(folder: Path) -> Checkpoint | None:
    """The weights in the folder; None where it has none."""
    if (folder / HUGGING_FACE_INDEX).is_file():
        return open_sharded(folder / HUGGING_FACE_INDEX)
    if (folder / ONE_FILE).is_file():
        file = read_rank_file(folder / ONE_FILE)
        return Checkpoint(str(folder), Files([file.path], [file.size]), file.tensors)
    return None


def _together(weights: Weights, stored: Checkpoint, program: ExportedProgram, exported: Exported) -> Weights:
    """The tensors of the archive, which are buffers, and those of the folder, under the names of the module."""
    behind, same = len(weights.files.paths), exported.same
    found, strided = dict(weights.tensors), dict(weights.strided)
    for each in program.inputs:
        if each.kind not in ("parameter", "buffer") or each.type is None:
            continue
        name = same.get(each.qualified, each.qualified)
        names = [name, *(other for other, first in same.items() if first == name)]
        candidates = [exported.stored.get(other, other) for other in names]
        given = next((other for other in candidates if other in stored.tensors), None)
        if given is None and each.kind == "buffer":
            continue  # it has what it was made with
        if given is None:
            raise MspcError(
                f"{stored.name} has no tensor {name!r:.100}, which is a parameter of the model",
                notes=[
                    f"it has {', '.join([*stored.tensors][:3])} and {max(0, len(stored.tensors) - 3)} more",
                    "where transformers puts several together, write a function that gives the model as it loads it: "
                    "mspc compile model.py:make --torch",
                ],
            )
        tensor = stored.tensors[given]
        _check(stored.name, given, tensor, each.type)
        pieces = tuple(replace(piece, file=piece.file + behind) for piece in tensor.pieces)
        found[name] = replace(tensor, pieces=pieces)
        strided.pop(name, None)
    files = Files([*weights.files.paths, *stored.files.paths], [None] * (behind + len(stored.files.paths)))
    return Weights(stored.name, files, found, strided=strided)


def _check(name: str, key: str, stored: Stored, type: ExportedType) -> None:
    if (stored.type.dtype, stored.type.shape) != (type.dtype, type.shape):
        shape = ", ".join(map(str, type.shape))
        raise MspcError(f"{name}: tensor {key!r:.100} is {stored.type}, and the model has {type.dtype}[{shape}]")
