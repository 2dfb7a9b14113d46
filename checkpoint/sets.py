"""Sets in a folder: `PREFIX-EPOCH_STEP/` with one file of every rank and one index. A set is there once its index is.

Sets have numbers, each greater than all before it in the folder, and the files of a set have its number in their names:
a set that is written again under the same name never touches the files that its older index names.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mspc.checkpoint.index import BEGINNING, INDEX, index_text, read_rank_file
from mspc.checkpoint.publishing import sync_folder, write_synced
from mspc.checkpoint.writing import PLACES
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.beside import remove, remove_left_over
from mspc.ir.files.parsing import parsed_json
from mspc.ir.files.regular import check_regular
from mspc.ir.files.tensors import TensorFile
from mspc.ir.files.whole import reason_of, shown_path

RANK_FILE = re.compile(r"rank_(\d{1,6})-(\d{1,15})\.safetensors")
SUFFIX = ".safetensors"
CALLED = re.compile(r"(.+)-\d+_\d+(\.safetensors)?")
"""What checkpoints of runs are called."""


@dataclass(frozen=True)
class Found:
    """A checkpoint in a folder. path: the folder of a set, or a file with whole tensors. sequence: its number."""

    path: Path
    sequence: int


def set_name(prefix: str, epoch: int, step: int) -> str:
    return f"{prefix}-{epoch}_{step}"


def rank_file(rank: int, sequence: int) -> str:
    return f"rank_{rank}-{sequence}{SUFFIX}"


def find_sets(folder: Path, prefix: str) -> list[Found]:
    """The published checkpoints of a prefix in a folder, the oldest first; sets, and files of one rank."""
    found: list[Found] = []
    for name in _names(folder, prefix):
        path = folder / name
        sequence = _of_file(path) if name.endswith(SUFFIX) else _of_set(path)
        if sequence is not None:
            found.append(Found(path, sequence))
    return sorted(found, key=lambda entry: (entry.sequence, entry.path.name))


def unreadable(folder: Path, prefix: str, found: Sequence[Found]) -> list[Path]:
    """What is called as the published checkpoints of a prefix are that were found, and is none of them: it is damaged,
    or cannot be read."""
    known = {entry.path for entry in found}
    paths = [folder / name for name in _names(folder, prefix) if folder / name not in known]
    return [path for path in paths if path.name.endswith(SUFFIX) or os.path.lexists(path / INDEX)]


def newest_of(folder: Path) -> Path | None:
    """The newest checkpoint of a folder, if all of its checkpoints have one prefix."""
    found = [CALLED.fullmatch(name) for name in _listed(folder)]
    prefixes = {match[1] for match in found if match}
    sets = find_sets(folder, prefixes.pop()) if len(prefixes) == 1 else []
    return sets[-1].path if sets else None


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
    text = index_text(sequence, ranks, state, files).encode()
    write_synced(place / INDEX, lambda file: file.write(text))
    kept = {INDEX, *(file.path.name for file in files)}
    for name in _listed(place):
        if name not in kept and RANK_FILE.fullmatch(name):
            remove(place / name)
    remove_left_over(place)


def remove_set(path: Path) -> None:
    """Remove a checkpoint. Of a set the index goes first, so that no reader finds one that is not whole."""
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
    try:
        check_regular(path / INDEX)
        with open(path / INDEX, encoding="utf-8", errors="replace") as file:
            match = BEGINNING.match(file.read(100))
    except (OSError, MspcError):
        return None
    return int(match[1]) if match else None


def _of_file(path: Path) -> int | None:
    try:
        about = parsed_json(TensorFile(path).about.get(PLACES, "{}"))
    except (OSError, ValueError, MspcError):
        return None
    sequence = about.get("sequence") if isinstance(about, dict) else None
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
