"""This module reads sharded safetensors of Hugging Face: `model.safetensors.index.json` says in which file each tensor
is.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from mspc.checkpoint.files import Files
from mspc.checkpoint.index import read_rank_file
from mspc.checkpoint.reading import Checkpoint, TensorPieces
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of, shown_path
from mspc.ir.files.inside import check_name
from mspc.ir.files.parsing import parsed_json
from mspc.ir.files.regular import read_bytes

HUGGING_FACE_INDEX = "model.safetensors.index.json"


def open_sharded(path: Path) -> Checkpoint:
    """Open the files that an index names.

    Raises:
        MspcError: the index is damaged, a file is missing, or lacks a tensor that it should have.
    """
    shown = shown_path(path)
    try:
        content = parsed_json(read_bytes(path))
    except ValueError as error:
        raise MspcError(f"{shown} is damaged: {error}") from None
    except OSError as error:
        raise MspcError(f"cannot read {shown}: {reason_of(error)}") from None
    given = content.get("weight_map") if isinstance(content, dict) else None
    names = cast(dict[str, Any], given) if isinstance(given, dict) else {}
    if not names or not all(isinstance(file, str) for file in names.values()):
        raise MspcError(f"{shown} is no index of a checkpoint: its weight_map names no files")
    listed = sorted(set(names.values()))
    for name in listed:
        check_name(name, shown)  # links may lead out: the files of a cache are links
    files = [read_rank_file(path.parent / name, number) for number, name in enumerate(listed)]
    tensors: dict[str, TensorPieces] = {}
    for name, file in names.items():
        stored = files[listed.index(file)].tensors.get(name)
        if stored is None:
            raise MspcError(f"{shown} says that {file} holds tensor {name!r}, and it does not")
        tensors[name] = replace(stored, layout="")
    return Checkpoint(shown_path(path.parent), Files([f.path for f in files], [f.size for f in files]), tensors)
