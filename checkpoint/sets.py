"""A checkpoint is a set in a folder: `PREFIX-EPOCH_STEP/` has one file of every rank and one index, which comes last.

Sets have numbers, each greater than all before it in the folder, and the files of a set have its number in their names:
a set that is written again under the same name never touches the files that its older index names.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mspc.checkpoint.index import BEGINNING, INDEX, index_text, read_rank_file
from mspc.checkpoint.publishing import sync_folder, write_synced
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of, shown_path
from mspc.ir.files.regular import check_regular
from mspc.ir.files.temporary import remove, remove_left_over
from mspc.ir.late_dataclass import dataclass

RANK_FILE = re.compile(r"rank_(\d{1,6})-(\d{1,15})\.safetensors")
SUFFIX, CKPT = ".safetensors", ".ckpt"
CALLED = re.compile(r"(.+)-(\d+)_(\d+)(\.safetensors|\.ckpt)?")
"""What checkpoints of runs are called: prefix, epoch, step; without a suffix it is the folder of a set."""


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
    """The prefixes of the checkpoints that runs have published in a folder, sorted, those included of which all are
    damaged. What killed runs have left of sets does not count, nor do files of MindSpore's format."""
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
    """The newest checkpoint of a folder, None where it has none.

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
        raise MspcError(f"{shown_path(later[-1])} is damaged, or cannot be read{before}")
    return sets[-1].path


def _position(path: Path) -> tuple[int, int]:
    """(epoch, step) of what is called as checkpoints are."""
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
    """Remove a checkpoint. Of a set the index goes first, so that no reader finds one that is incomplete."""
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
    """Remove what killed runs have left of sets that were never published, but for those of `own`."""
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
    """Entries of a folder that are called as checkpoints of the prefix are."""
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
