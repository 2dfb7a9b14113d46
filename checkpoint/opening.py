"""This module opens a checkpoint by its name, whatever its format."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from mspc.checkpoint.files import Files
from mspc.checkpoint.mindspore_file import open_file
from mspc.checkpoint.sets import FORMAT, INDEX, RANK_FILE, newest_of, read_index, read_rank_file
from mspc.checkpoint.stored_tensors import Checkpoint, TensorPieces, box_of_shape, extent
from mspc.checkpoint.writing import PLACES
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of, shown_path
from mspc.ir.files.parsing import parsed_json
from mspc.ir.files.regular import check_name, check_regular, read_bytes
from mspc.ir.files.tensors import LONGEST_HEADER, TensorFile

# This module reads sharded safetensors of Hugging Face: `model.safetensors.index.json` says in which file each tensor
# is.


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
        raise MspcError(f"{shown} is damaged: {error}", code="E0116") from None
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


def open_tensors(path: Path) -> Checkpoint:
    """A safetensors file; slices of a set among them know their places.

    Raises:
        MspcError: there is no such file, or it is no safetensors file.
    """
    try:
        TensorFile(path)
    except FileNotFoundError:
        raise MspcError(f"there is no checkpoint {str(path)!r}", code="E0601") from None
    except OSError as error:
        raise MspcError(f"cannot read the checkpoint {str(path)!r}: {reason_of(error)}") from None
    except ValueError as error:
        raise MspcError(f"{str(path)!r} is no safetensors file: {error}") from None
    file = read_rank_file(path)
    about = file.about
    state, texts = about.get("state", {}), about.get("texts", {})
    sequence = about.get("sequence", 0)
    for what, value, fits in (
        ("texts are", texts, isinstance(texts, dict) and all(isinstance(text, str) for text in texts.values())),
        ("state is", state, isinstance(state, dict)),
        ("sequence is", sequence, type(sequence) is int and sequence >= 0),
    ):
        if not fits:
            raise MspcError(f"{shown_path(path)} is no file of a checkpoint: its {what} {value!r:.100}")
    return Checkpoint(
        shown_path(path), Files([path], [file.size]), file.tensors, state, texts=texts, sequence=sequence,
        is_sealed=file.is_sealed or not file.is_own,
    )  # fmt: skip


def as_it_lies(checkpoint: Checkpoint) -> Checkpoint:
    """A file of one rank's slices is opened with every slice as a tensor of its own; other checkpoints are opened as
    they are."""
    stored = checkpoint.tensors.values()
    are_complete = all(any(extent(piece.box) == each.type.shape for piece in each.pieces) for each in stored)
    if len(checkpoint.files.paths) > 1 or are_complete:
        return checkpoint
    tensors = {name: _alone(stored) for name, stored in checkpoint.tensors.items()}
    return replace(checkpoint, tensors=tensors)


def _alone(stored: TensorPieces) -> TensorPieces:
    (piece,) = stored.pieces
    shape = extent(piece.box)
    return TensorPieces(stored.type.with_shape(shape), (replace(piece, box=box_of_shape(shape)),))


def open_checkpoint(path: Path, crc_check: bool = False) -> Checkpoint:
    """A checkpoint, whatever its format: a set by its folder or index, the newest checkpoint of a folder, sharded
    safetensors by their index, a file of MindSpore's, or safetensors.

    Args:
        crc_check: a file of MindSpore's must have a checksum, which is compared now.

    Raises:
        MspcError: there is none, or it is damaged.
    """
    try:
        if path.is_dir():
            return _open_folder(path)
        if path.suffix == ".json":
            return open_index(path)
        if path.suffix == ".ckpt" and path.is_file() and not _is_tensors(path):
            return open_file(path, crc_check)
    except OSError as error:
        raise MspcError(f"cannot read the checkpoint {str(path)!r}: {reason_of(error)}") from None
    except ValueError:  # characters that no file name holds
        raise MspcError(f"there is no checkpoint {str(path)!r}", code="E0601") from None
    return open_tensors(path)


def _open_folder(path: Path) -> Checkpoint:
    for name in (INDEX, HUGGING_FACE_INDEX):
        if os.path.isfile(path / name):
            return open_index(path / name)
    unfinished = [name for name in sorted(os.listdir(path)) if RANK_FILE.fullmatch(name)]
    if unfinished:
        raise MspcError(
            f"{shown_path(path)} is no complete checkpoint: {INDEX} is missing",
            notes=["the run that wrote it ended before all ranks had written; take the set before it"],
        )
    newest = newest_of(path)
    if newest is not None:
        return open_checkpoint(newest)
    single = path / "model.safetensors"
    if single.is_file():
        return open_tensors(single)
    ranks = sum(name.startswith("rank_") and name[5:].isdigit() for name in os.listdir(path))
    notes = ["its folders rank_0, rank_1, ... have a file of each rank: load_distributed_checkpoint takes these"]
    raise MspcError(
        f"{shown_path(path)} is a folder without a checkpoint: it has no {INDEX}", notes=notes if ranks else []
    )


def open_index(path: Path) -> Checkpoint:
    """A set, or sharded safetensors as Hugging Face writes them. Raises MspcError."""
    try:
        check_regular(path)
        with open(path, encoding="utf-8", errors="replace") as file:
            is_own = FORMAT in file.read(100)
    except FileNotFoundError:
        raise MspcError(f"there is no checkpoint {str(path)!r}", code="E0601") from None
    return read_index(path) if is_own or path.name == INDEX else open_sharded(path)


def _is_tensors(path: Path) -> bool:
    with open(path, "rb") as file:
        begin = file.read(9)
    return begin[8:] == b"{" and int.from_bytes(begin[:8], "little") <= LONGEST_HEADER


def own_state(checkpoint: Checkpoint, rank: int) -> dict[str, Any]:
    """Return the state that the file of a rank holds for this rank alone, or the first rank's if it has no file. Empty
    for a file that was merged of several before they had it.

    Raises:
        MspcError: the file is damaged.
    """
    paths = checkpoint.files.paths
    number = rank if rank < len(paths) else 0
    try:
        about = parsed_json(checkpoint.header(number).get(PLACES, "{}"))
        own = about.get("own", None if checkpoint.headers else {}) if isinstance(about, dict) else None
        if not isinstance(own, dict):
            raise ValueError(f"its state of the rank is {own!r:.80}")
    except ValueError as error:
        raise MspcError(f"{shown_path(paths[number])} is damaged: {error}", code="E0116") from None
    return own
