"""A checkpoint is a set in a folder: `PREFIX-EPOCH_STEP/` has one file of every rank and one index, which comes last.

Sets have numbers, each greater than all before it in the folder, and the files of a set have its number in their names:
a set that is written again under the same name never touches the files that its older index names.
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

from mspc.checkpoint.files import SEAL, Files, is_checksum, is_sealed, placeholder, read_header, sealed
from mspc.checkpoint.mindspore_file import open_file
from mspc.checkpoint.stored_tensors import Checkpoint, StoredSlice, TensorPieces, box_of_shape, extent
from mspc.checkpoint.writing import PLACES, sync_folder, write_synced
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of, remove, remove_left_over, shown_path
from mspc.ir.files.parsing import list_in, object_in, parsed_json, reading
from mspc.ir.files.regular import check_name, check_regular, read_bytes
from mspc.ir.files.tensors import LONGEST_HEADER, MOST_DIMENSIONS, TensorFile
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DTYPES, TensorType
from mspc.sharding.pieces import Box

# The index of a set, `index.json`, says which slice of which tensor is stored where in which file.
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
# `header` is the checksum that the header of a file has of itself; the last entry is that of the index.


INDEX = "index.json"
FORMAT, VERSION = "mspc checkpoint", 1
BEGINNING = re.compile(r'\{"format": "mspc checkpoint", "version": 1, "sequence": (\d{1,15}),')
"""How every index begins, so that sets can be put in order without reading all of them."""


@dataclass(frozen=True)
class RankFile:
    """A rank's file of a set, as its header describes it.

    about: the header except the places. header: its own checksum, "" for none. is_sealed: whether that was compared.
    is_own: whether mspc wrote it.
    """

    path: Path
    size: int
    tensors: dict[str, TensorPieces]
    about: dict[str, Any]
    header: str = ""
    is_sealed: bool = False
    is_own: bool = True


def index_text(sequence: int, ranks: int, state: dict[str, Any], files: Sequence[RankFile]) -> bytes:
    """The text of the index of a set with these files."""
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
    """The contents of a rank's file, by its header alone; its slices get the number of the file.

    Raises:
        MspcError: it is missing, or no such file, or its header is not as it was written.
    """
    file, compared = read_header(path)
    try:
        about = object_in(parsed_json(file.about.get(PLACES, "{}")), "its metadata")
        places = object_in(about.pop("places"), "its places") if "places" in about else {}
        found = {name: _placed(file, name, places, number) for name in file.names}
    except ValueError as error:
        raise MspcError(f"{shown_path(path)} is no file of a checkpoint: {error}") from None
    return RankFile(path, file.size, found, about, file.about.get(SEAL, ""), compared, PLACES in file.about)


def _placed(file: TensorFile, name: str, places: dict[str, Any], number: int) -> TensorPieces:
    """A tensor of a file at its place in the global tensor; one without a place is the global tensor itself."""
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
    """Open the set whose index is at `path`.

    Raises:
        MspcError: there is no index, it is damaged, or a file that it names is missing or has another size.
    """
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
    """The box of a slice. Raises ValueError if it is outside of its tensor."""
    fits = len(begin) == len(shape) == len(global_shape)
    if not fits or any(b + n > w for b, n, w in zip(begin, shape, global_shape, strict=True)):
        raise ValueError(f"tensor {name!r} of shape {global_shape} has a slice of shape {shape} at {begin}")
    return Box(begin, tuple(b + n for b, n in zip(begin, shape, strict=True)))


def _sizes(entry: dict[str, Any], key: str, name: str) -> tuple[int, ...]:
    found = entry.get(key)
    if isinstance(found, list):
        numbers = cast(list[Any], found)
        if len(numbers) <= MOST_DIMENSIONS and all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
            return tuple(numbers)
    raise ValueError(f"tensor {name!r} has {key} {found!r:.80}")


RANK_FILE = re.compile(r"rank_(\d{1,6})-(\d{1,15})\.safetensors")
SUFFIX, CKPT = ".safetensors", ".ckpt"
CALLED = re.compile(r"(.+)-(\d+)_(\d+)(\.safetensors|\.ckpt)?")
"""The names of checkpoints of runs: prefix, epoch, step; without a suffix it is the folder of a set."""


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint in a folder. path: the folder of a set, or a file with global tensors. sequence: its number."""

    path: Path
    sequence: int


def set_name(prefix: str, epoch: int, step: int) -> str:
    return f"{prefix}-{epoch}_{step}"


def rank_file(rank: int, sequence: int) -> str:
    return f"rank_{rank}-{sequence}{SUFFIX}"


def find_sets(folder: Path, prefix: str) -> list[FoundCheckpoint]:
    """The published checkpoints of a prefix in a folder, the oldest first; sets, and files of one rank."""
    found: list[FoundCheckpoint] = []
    for name in _names(folder, prefix):
        path = folder / name
        sequence = _of_file(path) if name.endswith(SUFFIX) else _of_set(path)
        if sequence is not None:
            found.append(FoundCheckpoint(path, sequence))
    return sorted(found, key=lambda entry: (entry.sequence, entry.path.name))


def unreadable(folder: Path, prefix: str, found: Sequence[FoundCheckpoint]) -> list[Path]:
    """Files and folders whose names are those of published checkpoints of a prefix, but which are not among the found
    ones, since they are damaged or cannot be read."""
    known = {entry.path for entry in found}
    paths = [folder / name for name in _names(folder, prefix) if folder / name not in known]
    return [path for path in paths if path.name.endswith(SUFFIX) or os.path.lexists(path / INDEX)]


def prefixes_in(folder: Path) -> list[str]:
    """Return the prefixes of the checkpoints that runs have published in a folder, sorted, also those of which all are
    damaged. Unfinished sets of killed runs do not count, nor do files of MindSpore's format."""
    matches = [CALLED.fullmatch(name) for name in _listed(folder)]
    called = sorted({match[1] for match in matches if match and match[4] != CKPT})
    return [
        prefix
        for prefix in called
        if (found := find_sets(folder, prefix)) or not all(map(_is_plain, unreadable(folder, prefix, found)))
    ]


def of_mindspores_format(folder: Path, prefix: str) -> list[str]:
    """The names of a prefix's checkpoints that are files of MindSpore's format, sorted by epoch and step."""
    matches = [CALLED.fullmatch(name) for name in _listed(folder)]
    found = [match for match in matches if match and match[1] == prefix and match[4] == CKPT]
    return [match[0] for match in sorted(found, key=lambda match: (int(match[2]), int(match[3])))]


def newest_of(folder: Path) -> Path | None:
    """Return the newest checkpoint of a folder, or None.

    Raises:
        MspcError: the folder has checkpoints of several prefixes, or a later one that is damaged.
    """
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
    match = CALLED.fullmatch(path.name)
    assert match
    return int(match[2]), int(match[3])


def next_sequence(folder: Path, prefix: str) -> int:
    """A number above those of all sets of the folder, unfinished ones included."""
    last = max((entry.sequence for entry in find_sets(folder, prefix)), default=0)
    for name in _names(folder, prefix):
        if (folder / name).is_dir():
            for file in _listed(folder / name):
                match = RANK_FILE.fullmatch(file)
                last = max(last, int(match[2])) if match else last
    return last + 1


def publish(place: Path, sequence: int, ranks: int, state: dict[str, Any]) -> None:
    """Make a set of the ranks' files that lie in the folder `place`: its index comes last, by one rename. Files of an
    older set of this name, and of unfinished ones, go afterwards.

    Raises:
        MspcError: a file is missing or damaged, or the index cannot be written; an older set is as it was.
    """
    files = [read_rank_file(place / rank_file(rank, sequence), rank) for rank in range(ranks)]
    text = index_text(sequence, ranks, state, files)
    write_synced(place / INDEX, lambda file: file.write(text))
    needed = {INDEX, *(file.path.name for file in files)}
    for name in _listed(place):
        if name not in needed and RANK_FILE.fullmatch(name):
            remove(place / name)
    remove_left_over(place)


def remove_set(path: Path) -> None:
    """Remove a checkpoint. The index of a set goes first, so that no reader finds one that is incomplete."""
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
    with contextlib.suppress(OSError):  # something of the user's is in it
        path.rmdir()


def remove_unfinished(folder: Path, prefix: str, own: Sequence[Path] = ()) -> None:
    """Remove unpublished sets of killed runs, except those of `own`."""
    for name in _names(folder, prefix):
        place = folder / name
        if place.is_dir() and place not in own and not (place / INDEX).exists():
            if all(RANK_FILE.fullmatch(file) or file.startswith(".") for file in _listed(place)):
                remove_set(place)


def _of_set(path: Path) -> int | None:
    """The number at the beginning of an index, if the files beside it have it in their names, as they all do."""
    found = _of_index(path / INDEX)
    while found is not None and not os.path.lexists(path / rank_file(0, found)):
        again = _of_index(path / INDEX)  # the set may just have been written again
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
    """Whether this is a complete file of tensors that no run has numbered."""
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
    """Raises MspcError for a folder that is there and cannot be read: it is not one without checkpoints."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise MspcError(f"cannot read the folder {shown_path(folder)}: {reason_of(error)}") from None


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
    with reading(path, "checkpoint", code="E0601"):
        check_regular(path)
        with open(path, encoding="utf-8", errors="replace") as file:
            is_own = FORMAT in file.read(100)
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
