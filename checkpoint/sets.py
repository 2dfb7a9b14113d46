"""A checkpoint is a set in a folder: `PREFIX-EPOCH_STEP/` has one file per rank and an index, which is written last.

Sets have increasing numbers within a folder, and the files of a set have its number in their names: rewriting a set
under the same name never modifies the files that its older index names.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from mspc.checkpoint.files import (
    PLACES,
    SEAL,
    Files,
    is_checksum,
    is_sealed,
    placeholder,
    read_header,
    sealed,
    sync_folder,
    write_synced,
)
from mspc.checkpoint.mindspore_file import open_file
from mspc.checkpoint.stored_tensors import Checkpoint, StoredSlice, TensorPieces, box_of_shape, extent
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of, remove, remove_left_over, shown_path
from mspc.ir.files.parsing import list_in, object_in, parsed_json, reading
from mspc.ir.files.regular import check_name, check_regular, read_bytes
from mspc.ir.files.tensors import LONGEST_HEADER, MAX_DIMENSIONS, TensorFile
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DTYPES, TensorType
from mspc.sharding.pieces import Box

# The index of a set, `index.json`, maps slices of tensors to positions in files.
#
# ```
# {"format": "mspc checkpoint", "version": 1, "sequence": 3, "ranks": 2,
#  "state": {"epoch": 1, "step": 4, ...},
#  "files": [{"name": "rank_0-3.safetensors", "bytes": 2304, "header": "xxh3:..."}, ...],
#  "tensors": {"w": {"dtype": "Float32", "shape": [8, 4], "layout": "(2) [0, -]", "slices": [
#    {"file": 0, "begin": [0, 0], "shape": [4, 4], "offset": 512, "checksum": "xxh3:..."}, ...]}, ...},
#  "mspc_checksum": "xxh3:..."}
# ```
#
# `header` is the checksum in the header of a file; the last entry is the checksum of the index.


INDEX = "index.json"
FORMAT, VERSION = "mspc checkpoint", 1
BEGINNING = re.compile(r'\{"format": "mspc checkpoint", "version": 1, "sequence": (\d{1,15}),')
"""Start of every index, which orders sets without reading them completely."""


@dataclass(frozen=True)
class RankFile:
    """A rank's file of a set, as described by its header.

    about: the header without the slice positions. header: its checksum, "" for none. is_sealed: the checksum was
    verified. is_own: mspc wrote the file.
    """

    path: Path
    size: int
    tensors: dict[str, TensorPieces]
    about: dict[str, Any]
    header: str = ""
    is_sealed: bool = False
    is_own: bool = True


def index_text(sequence: int, ranks: int, state: dict[str, Any], files: Sequence[RankFile]) -> bytes:
    """Return the text of the index of a set with these files."""
    tensors: dict[str, Any] = {}
    for number, file in enumerate(files):
        for name, stored in file.tensors.items():
            entry = tensors.setdefault(
                name,
                {
                    "dtype": stored.type.dtype.name, "shape": list(stored.type.shape), "layout": stored.layout,
                    "slices": [],
                },
            )  # fmt: skip
            (piece,) = stored.pieces
            shape = [e - b for b, e in zip(piece.box.begin, piece.box.end, strict=True)]
            entry["slices"].append({
                "file": number, "begin": list(piece.box.begin), "shape": shape, "offset": piece.segments[0][0],
                "checksum": piece.checksum,
            })  # fmt: skip
    listed = ",\n ".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(tensors.items()))
    names = json.dumps([{"name": file.path.name, "bytes": file.size, "header": file.header} for file in files])
    text = (
        f'{{"format": "{FORMAT}", "version": {VERSION}, "sequence": {sequence}, "ranks": {ranks},\n'
        f'"state": {json.dumps(state, sort_keys=True)},\n"files": {names},\n"tensors": {{\n {listed}\n}},\n'
        f'"{SEAL}":"{placeholder()}"}}\n'
    )
    return sealed(text.encode())


def read_rank_file(path: Path, number: int = 0) -> RankFile:
    """Read the header of a rank's file; its slices get this file number. Raise MspcError if the file is missing, not a
    safetensors file, or its header is damaged."""
    file, compared = read_header(path)
    with reading(path, "file of a checkpoint"):
        about = object_in(parsed_json(file.about.get(PLACES, "{}")), "its metadata")
        places = object_in(about.pop("places"), "its places") if "places" in about else {}
        found = {name: _placed(file, name, places, number) for name in file.names}
    return RankFile(path, file.size, found, about, file.about.get(SEAL, ""), compared, PLACES in file.about)


def _placed(file: TensorFile, name: str, places: dict[str, Any], number: int) -> TensorPieces:
    """Return a tensor of a file with its position in the global tensor; without a position it is the global tensor."""
    type = file.type(name)
    segments = ((file.place(name), type.nbytes),)
    if name not in places:
        return TensorPieces(type, (StoredSlice(Box((0,) * type.rank, type.shape), number, segments),))
    place = object_in(places[name], f"its place of {name!r}")
    begin, shape = _sizes(place, "begin", name), _sizes(place, "shape", name)
    box = _box(name, begin, type.shape, shape)
    layout, checksum = place.get("layout", ""), place.get("checksum", "")
    if not isinstance(layout, str) or (checksum != "" and not is_checksum(checksum)):
        raise ValueError(f"the place of {name!r} has layout {layout!r:.80} and checksum {checksum!r:.80}")
    return TensorPieces(TensorType(type.dtype, shape), (StoredSlice(box, number, segments, checksum),), layout)


def read_index(path: Path) -> Checkpoint:
    """Open the set with the index at `path`. Raise MspcError if the index is missing or damaged, or one of its files is
    missing or has another size."""
    with reading(path, "checkpoint", "is damaged", code="E0601", damaged="E0116"):
        text = read_bytes(path)
        content = object_in(parsed_json(text), "its index")
        if content.get("format") != FORMAT:
            raise ValueError(f"its format is {content.get('format')!r:.80}, not {FORMAT!r}")
        if content.get("version") != VERSION:
            raise ValueError(f"its version is {content.get('version')!r:.80}; this mspc reads {VERSION}")
        paths, sizes, headers = _files(content, path)
        entries = object_in(content.get("tensors"), "its tensors").items()
        tensors = {name: _stored(name, entry, sizes) for name, entry in entries}
        state = object_in(content.get("state"), "its state")
        numbers = [content.get(key) for key in ("ranks", "sequence")]
        if not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError(f"its ranks and sequence are {numbers!r:.80}")
        compared = is_sealed(text, content.get(SEAL), "text")
    ranks, sequence = cast(list[int], numbers)
    return Checkpoint(
        shown_path(path.parent), Files(paths, sizes), tensors, state, ranks=ranks, sequence=sequence, headers=headers,
        is_sealed=compared and all(headers),
    )  # fmt: skip


def _files(content: dict[str, Any], path: Path) -> tuple[list[Path], list[int], list[str]]:
    paths: list[Path] = []
    sizes: list[int] = []
    headers: list[str] = []
    for given in list_in(content.get("files"), "its files"):
        entry = object_in(given, "its entry of files")
        name, size, header = entry.get("name"), entry.get("bytes"), entry.get("header", "")
        if not isinstance(name, str) or type(size) is not int or size < 0 or (header != "" and not is_checksum(header)):
            raise ValueError(f"its files have an entry {entry!r}")
        check_name(name, str(path))
        if "/" in name:
            raise ValueError(f"it names {name!r}, and files of a set lie beside its index")
        paths.append(path.parent / name)
        sizes.append(size)
        headers.append(header)
    return paths, sizes, headers


def _stored(name: str, given: Any, files: Sequence[int]) -> TensorPieces:
    entry = object_in(given, f"its entry of {name!r}")
    dtype, slices = DTYPES.get(str(entry.get("dtype"))), entry.get("slices")
    if dtype is None or not isinstance(slices, list):
        raise ValueError(f"tensor {name!r} has element type {entry.get('dtype')!r:.80} and slices {slices!r:.60}")
    global_type = TensorType(dtype, _sizes(entry, "shape", name))
    pieces: list[StoredSlice] = []
    for inner in cast(list[Any], slices):
        place = object_in(inner, f"its slice of {name!r}")
        file, offset, checksum = place.get("file"), place.get("offset"), place.get("checksum", "")
        if type(file) is not int or not 0 <= file < len(files) or type(offset) is not int or offset < 0:
            raise ValueError(f"tensor {name!r} has a slice in file {file!r:.40} at byte {offset!r:.40}")
        if checksum != "" and not is_checksum(checksum):
            raise ValueError(f"tensor {name!r} has a slice with checksum {checksum!r:.80}")
        shape = _sizes(place, "shape", name)
        size = math.prod(shape) * dtype.itemsize
        if offset + size > files[file]:
            raise ValueError(f"tensor {name!r} has a slice after the end of file {file}")
        box = _box(name, _sizes(place, "begin", name), shape, global_type.shape)
        pieces.append(StoredSlice(box, file, ((offset, size),),
                            checksum))  # fmt: skip
    layout = entry.get("layout", "")
    if not isinstance(layout, str):
        raise ValueError(f"tensor {name!r} has layout {layout!r:.80}")
    return TensorPieces(global_type, tuple(pieces), layout)


def _box(name: str, begin: tuple[int, ...], shape: tuple[int, ...], global_shape: tuple[int, ...]) -> Box:
    """Return the box of a slice. Raise ValueError if it is outside its tensor."""
    fits = len(begin) == len(shape) == len(global_shape)
    if not fits or any(b + n > w for b, n, w in zip(begin, shape, global_shape, strict=True)):
        raise ValueError(f"tensor {name!r} of shape {global_shape} has a slice of shape {shape} at {begin}")
    return Box(begin, tuple(b + n for b, n in zip(begin, shape, strict=True)))


def _sizes(entry: dict[str, Any], key: str, name: str) -> tuple[int, ...]:
    found = entry.get(key)
    if isinstance(found, list):
        numbers = cast(list[Any], found)
        if len(numbers) <= MAX_DIMENSIONS and all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
            return tuple(numbers)
    raise ValueError(f"tensor {name!r} has {key} {found!r:.80}")


RANK_FILE = re.compile(r"rank_(\d{1,6})-(\d{1,15})\.safetensors")
SUFFIX, CKPT = ".safetensors", ".ckpt"
CHECKPOINT_NAME = re.compile(r"(.+)-(\d+)_(\d+)(\.safetensors|\.ckpt)?")
"""Names of checkpoints of runs: prefix, epoch, step; without a suffix it is the folder of a set."""


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint in a folder. path: folder of a set, or a file with global tensors. sequence: its number."""

    path: Path
    sequence: int


def set_name(prefix: str, epoch: int, step: int) -> str:
    return f"{prefix}-{epoch}_{step}"


def rank_file(rank: int, sequence: int) -> str:
    return f"rank_{rank}-{sequence}{SUFFIX}"


def find_sets(folder: Path, prefix: str) -> list[FoundCheckpoint]:
    """Return the published checkpoints of a prefix in a folder, oldest first: sets, and files of one rank."""
    found: list[FoundCheckpoint] = []
    for name in _names(folder, prefix):
        path = folder / name
        sequence = _of_file(path) if name.endswith(SUFFIX) else _of_set(path)
        if sequence is not None:
            found.append(FoundCheckpoint(path, sequence))
    return sorted(found, key=lambda entry: (entry.sequence, entry.path.name))


def unreadable(folder: Path, prefix: str, found: Sequence[FoundCheckpoint]) -> list[Path]:
    """Return the files and folders named like published checkpoints of a prefix that are not among `found`, because
    they are damaged or cannot be read."""
    known = {entry.path for entry in found}
    paths = [folder / name for name in _names(folder, prefix) if folder / name not in known]
    return [path for path in paths if path.name.endswith(SUFFIX) or os.path.lexists(path / INDEX)]


def prefixes_in(folder: Path) -> list[str]:
    """Return the sorted prefixes of the checkpoints in a folder, including prefixes whose checkpoints are all damaged.
    Unfinished sets of killed runs and files of MindSpore's format do not count."""
    matches = [CHECKPOINT_NAME.fullmatch(name) for name in _listed(folder)]
    called = sorted({match[1] for match in matches if match and match[4] != CKPT})
    return [
        prefix
        for prefix in called
        if (found := find_sets(folder, prefix)) or not all(map(_is_plain, unreadable(folder, prefix, found)))
    ]


def mindspore_files(folder: Path, prefix: str) -> list[str]:
    """Return the names of a prefix's checkpoints in MindSpore's format, sorted by epoch and step."""
    matches = [CHECKPOINT_NAME.fullmatch(name) for name in _listed(folder)]
    found = [match for match in matches if match and match[1] == prefix and match[4] == CKPT]
    return [match[0] for match in sorted(found, key=lambda match: (int(match[2]), int(match[3])))]


def newest_of(folder: Path) -> Path | None:
    """Return the newest checkpoint of a folder, or None. Raise MspcError if the folder has checkpoints of several
    prefixes, or a later one that is damaged."""
    prefixes = prefixes_in(folder)
    if not prefixes:
        return None
    if len(prefixes) > 1:
        raise MspcError(
            f"{shown_path(folder)} has checkpoints of {len(prefixes)} prefixes: {', '.join(map(repr, prefixes))}",
            notes=["give the path of the one that is wanted"],
        )
    sets = find_sets(folder, prefixes[0])
    last = _position(sets[-1].path) if sets else (-1, -1)
    later = [path for path in unreadable(folder, prefixes[0], sets) if _position(path) > last]
    if later:
        before = f"; the one before is {shown_path(sets[-1].path)}" if sets else ""
        raise MspcError(f"{shown_path(later[-1])} is damaged, or cannot be read{before}", code="E0116")
    return sets[-1].path


def _position(path: Path) -> tuple[int, int]:
    match = CHECKPOINT_NAME.fullmatch(path.name)
    assert match
    return int(match[2]), int(match[3])


def next_sequence(folder: Path, prefix: str) -> int:
    """Return a number above those of all sets of the folder, including unfinished ones."""
    last = max((entry.sequence for entry in find_sets(folder, prefix)), default=0)
    for name in _names(folder, prefix):
        if (folder / name).is_dir():
            for file in _listed(folder / name):
                match = RANK_FILE.fullmatch(file)
                last = max(last, int(match[2])) if match else last
    return last + 1


def publish(place: Path, sequence: int, ranks: int, state: dict[str, Any]) -> None:
    """Make a set of the ranks' files in the folder `place` by renaming its index into place. Then remove files of an
    older set with this name and of unfinished ones. Raise MspcError if a file is missing or damaged, or the index
    cannot be written; an older set is unchanged."""
    files = [read_rank_file(place / rank_file(rank, sequence), rank) for rank in range(ranks)]
    text = index_text(sequence, ranks, state, files)
    write_synced(place / INDEX, lambda file: file.write(text))
    needed = {INDEX, *(file.path.name for file in files)}
    for name in _listed(place):
        if name not in needed and RANK_FILE.fullmatch(name):
            remove(place / name)
    remove_left_over(place)


def remove_set(path: Path) -> None:
    """Remove a checkpoint, the index of a set first, so that no reader finds an incomplete set."""
    if not path.is_dir():
        remove(path)
        return
    remove(path / INDEX)
    with contextlib.suppress(OSError):
        sync_folder(path)
    for name in _listed(path):
        if RANK_FILE.fullmatch(name):
            remove(path / name)
    remove_left_over(path)
    with contextlib.suppress(OSError):  # it contains files of the user
        path.rmdir()


def remove_unfinished(folder: Path, prefix: str, own: Sequence[Path] = ()) -> None:
    """Remove unpublished sets of killed runs, except those in `own`."""
    for name in _names(folder, prefix):
        place = folder / name
        if place.is_dir() and place not in own and not (place / INDEX).exists():
            if all(RANK_FILE.fullmatch(file) or file.startswith(".") for file in _listed(place)):
                remove_set(place)


def _of_set(path: Path) -> int | None:
    """Return the number at the start of an index, if the files next to it have it in their names."""
    found = _of_index(path / INDEX)
    while found is not None and not os.path.lexists(path / rank_file(0, found)):
        again = _of_index(path / INDEX)  # the set may just have been rewritten
        if again == found:
            return None
        found = again
    return found


def _of_index(path: Path) -> int | None:
    try:
        check_regular(path)
        with open(path, encoding="utf-8", errors="replace") as file:
            match = BEGINNING.match(file.read(100))
    except (OSError, MspcError):
        return None
    return int(match[1]) if match else None


def _is_plain(path: Path) -> bool:
    """Return whether this is a complete file of tensors without a number."""
    try:
        return path.name.endswith(SUFFIX) and "sequence" not in read_rank_file(path).about
    except MspcError:
        return False


def _of_file(path: Path) -> int | None:
    try:
        sequence = read_rank_file(path).about.get("sequence")
    except MspcError:
        return None
    return sequence if type(sequence) is int else None


def _names(folder: Path, prefix: str) -> list[str]:
    wanted = re.compile(re.escape(prefix) + r"-\d+_\d+(\.safetensors)?")
    return sorted(name for name in _listed(folder) if wanted.fullmatch(name))


def _listed(folder: Path) -> list[str]:
    """Return the names in a folder; [] if it is missing. Raise MspcError if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise MspcError(f"cannot read the folder {shown_path(folder)}: {reason_of(error)}") from None


# Sharded safetensors of Hugging Face: `model.safetensors.index.json` maps tensors to files.


HUGGING_FACE_INDEX = "model.safetensors.index.json"


def open_sharded(path: Path) -> Checkpoint:
    """Open the files named by an index. Raise MspcError if the index is damaged, or a file is missing or lacks a
    tensor."""
    shown = shown_path(path)
    with reading(path, "index", "is damaged", damaged="E0116"):
        content = parsed_json(read_bytes(path))
    given = content.get("weight_map") if isinstance(content, dict) else None
    names = cast(dict[str, Any], given) if isinstance(given, dict) else {}
    if not names or not all(isinstance(file, str) for file in names.values()):
        raise MspcError(f"{shown} is no index of a checkpoint: its weight_map names no files")
    listed = sorted(set(names.values()))
    for name in listed:
        check_name(name, shown)  # symbolic links may lead outside, as in a cache
    files = [read_rank_file(path.parent / name, number) for number, name in enumerate(listed)]
    tensors: dict[str, TensorPieces] = {}
    for name, file in names.items():
        stored = files[listed.index(file)].tensors.get(name)
        if stored is None:
            raise MspcError(f"{shown} says that {file} holds tensor {name!r}, and it does not")
        tensors[name] = replace(stored, layout="")
    return Checkpoint(shown_path(path.parent), Files([f.path for f in files], [f.size for f in files]), tensors)


def open_tensors(path: Path) -> Checkpoint:
    """Open a safetensors file; slices of a set have their positions. Raise MspcError if the file is missing or not a
    safetensors file."""
    with reading(path, "checkpoint", "is no safetensors file", code="E0601"):
        TensorFile(path)
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


def with_slices_as_tensors(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint in which every slice of a rank's file is a tensor of its own; other checkpoints are
    unchanged."""
    stored = checkpoint.tensors.values()
    are_complete = all(any(extent(piece.box) == each.type.shape for piece in each.pieces) for each in stored)
    if len(checkpoint.files.paths) > 1 or are_complete:
        return checkpoint
    tensors = {name: _as_own_tensor(stored) for name, stored in checkpoint.tensors.items()}
    return replace(checkpoint, tensors=tensors)


def _as_own_tensor(stored: TensorPieces) -> TensorPieces:
    (piece,) = stored.pieces
    shape = extent(piece.box)
    return TensorPieces(stored.type.with_shape(shape), (replace(piece, box=box_of_shape(shape)),))


def open_checkpoint(path: Path, crc_check: bool = False) -> Checkpoint:
    """Open a checkpoint of any format: a set by its folder or index, the newest checkpoint of a folder, sharded
    safetensors by their index, a file of MindSpore's, or safetensors.

    crc_check: require and verify the checksum of a file of MindSpore's. Raise MspcError if it is missing or damaged.
    """
    with reading(path, "checkpoint"):
        if path.is_dir():
            return _open_folder(path)
        if path.suffix == ".json":
            return open_index(path)
        if path.suffix == ".ckpt" and path.is_file() and not _is_tensors(path):
            return open_file(path, crc_check)
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
    """Open a set, or sharded safetensors of Hugging Face. Raise MspcError."""
    with reading(path, "checkpoint", code="E0601"):
        check_regular(path)
        with open(path, encoding="utf-8", errors="replace") as file:
            is_own = FORMAT in file.read(100)
    return read_index(path) if is_own or path.name == INDEX else open_sharded(path)


def _is_tensors(path: Path) -> bool:
    with open(path, "rb") as file:
        begin = file.read(9)
    return begin[8:] == b"{" and int.from_bytes(begin[:8], "little") <= LONGEST_HEADER


def rank_state(checkpoint: Checkpoint, rank: int) -> dict[str, Any]:
    """Return the state stored for one rank only, in its file or else in the first rank's; {} for merged files without
    such state. Raise MspcError if the file is damaged."""
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
