"""A folder of Hugging Face: its `config.json` says which model it is, and its safetensors hold the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from mspc.checkpoint.hugging_face import HUGGING_FACE_INDEX
from mspc.checkpoint.opening import open_checkpoint
from mspc.checkpoint.reading import Checkpoint
from mspc.readers.pytorch.exporting import export_folder
from mspc.readers.pytorch.other_weights import with_weights
from mspc.readers.pytorch.program import ExportedProgram
from mspc.readers.pytorch.reading import read_program

WEIGHTS = (HUGGING_FACE_INDEX, "model.safetensors")
ADVICE = (
    "where transformers puts several tensors together, write a function that gives the model as it loads it: "
    "mspc compile model.py:make --torch"
)


def read_folder(folder: Path, sizes: Mapping[str, int]) -> ExportedProgram:
    """The model in a folder, exported in training mode, with the weights that are there.

    sizes: `batch` and `length` of its inputs.

    Raises:
        MspcError: PyTorch or transformers is missing, cannot make or export the model, or weights are not the model's.
    """
    stored = _stored(folder)
    with TemporaryDirectory(prefix="mspc-") as place:
        exported = export_folder(folder, Path(place) / "model.pt2", sizes, [*(stored.tensors if stored else ())])
        program = replace(read_program(exported.path), name=str(folder), same=exported.same, own_plan=exported.own_plan)
        return program if stored is None else with_weights(program, stored, exported.stored, ADVICE)


def _stored(folder: Path) -> Checkpoint | None:
    """The weights in the folder; None where it has none."""
    found = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    return None if found is None else open_checkpoint(found)
