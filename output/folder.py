"""Writes the folder of a compile: it is made beside its place and put there in one step at the end, so never half."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import TemporaryPath, new_folder, reason_of, remove_left_over, shown_path
from mspc.ir.files.refill import exchange, finish_refill, is_mount_point, is_own_name, refill
from mspc.ir.types import DTYPES
from mspc.runtime.program import PROGRAM, WEIGHTS

SYMBOLIC = "symbolic_graph.txt"
"""The file of `engine.symbolic`."""
OWN = re.compile(rf"rank_\d+|{re.escape(PROGRAM)}|{re.escape(WEIGHTS)}|{re.escape(SYMBOLIC)}")
OWN_IN_RANK = re.compile(r".*_\d{4,}\.(ir|dot)")
DUMP = re.compile(rf".*_({'|'.join(DTYPES)})_\d+(-\d+)*_rank\d+\.npy", re.IGNORECASE)
"""What the operator TensorDump of a compiled program leaves in its folder, in folders of any name."""
NOT_FREE = (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.EXDEV)


class OutputFolder:
    """Write files into a new folder; `commit` puts it in the place of `path`, else `path` stays as it was.

    An earlier output of mspc is replaced at once and an empty folder filled. Whenever the process is killed, the
    earlier output is complete or the new one is, and the next to write here removes what is left of the other.

    Raises:
        MspcError: `path` holds files that mspc did not write, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: set[str] = set()
        self._parents: list[Path] = []
        self._beside: TemporaryPath | None = None
        self._committed = False
        self._on_termination: Any = None
        try:
            self._place = Path(os.path.realpath(path))
            finish_refill(self._place, PROGRAM)
            _check_replaceable(path)
        except (OSError, ValueError) as error:  # ValueError: characters that no folder's name holds
            raise _cannot_write(path, error) from None

    def __enter__(self) -> OutputFolder:
        try:
            self._make_parents()
            remove_left_over(self._place.parent)
            remove_left_over(self._place)
            self._beside = new_folder(self._place if self._must_stay() else self._place.parent, self._place.name)
        except OSError as error:
            self._remove_unused()
            raise _cannot_write(self.path, error) from None
        if threading.current_thread() is threading.main_thread():
            self._on_termination = signal.signal(signal.SIGTERM, _leave)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._beside is not None
        shutil.rmtree(self._beside.path, ignore_errors=True)
        self._beside.release()
        self._remove_unused()
        if self._on_termination is not None:
            signal.signal(signal.SIGTERM, self._on_termination)
        if isinstance(error, OSError):
            raise _cannot_write(self.path, error) from None

    def _make_parents(self) -> None:
        missing = [p for p in self._place.parents if not p.exists()]
        for parent in reversed(missing):
            parent.mkdir(exist_ok=True)
            self._parents.insert(0, parent)

    def _must_stay(self) -> bool:
        """Whether another folder cannot come into this one's place, so that its contents change instead."""
        if not self._place.is_dir():
            return False
        return is_mount_point(self._place) or not os.access(self._place.parent, os.W_OK)

    def _remove_unused(self) -> None:
        """Folders that were made for an output that did not come."""
        if not self._committed:
            with contextlib.suppress(OSError):
                for parent in self._parents:
                    parent.rmdir()

    def write(self, name: str, content: str | bytes) -> None:
        """Write one file; `name` is relative to the folder. Leaving the `with` block explains an OSError."""
        self.write_by(name, lambda file: file.write(content.encode() if isinstance(content, str) else content))

    def write_by(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        """Write one file as `write` writes it to what it is handed, part by part."""
        assert self._beside is not None
        target = self._beside.path / name
        folder = os.path.dirname(name)
        if folder and folder not in self._made:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(folder)
        with open(target, "wb") as file:
            write(file)

    def commit(self) -> None:
        """Put the folder in its place."""
        assert self._beside is not None
        _check_replaceable(self.path)
        new = self._beside.path
        if new.parent == self._place:
            refill(self._place, new, PROGRAM)
        elif not _move(new, self._place) and not exchange(new, self._place):
            inside = self._place / new.name
            os.rename(new, inside)
            refill(self._place, inside, PROGRAM)
        self._committed = True


def _move(new: Path, place: Path) -> bool:
    """Give a folder the name `place` where that is free or an empty folder's; False where it is not."""
    try:
        os.rename(new, place)
    except OSError as error:
        if error.errno not in NOT_FREE:
            raise
        return False
    return True


def _leave(number: int, _: object) -> None:
    """A command that is terminated takes its unfinished folder away."""
    raise SystemExit(128 + number)


def _check_replaceable(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise MspcError(f"cannot write to {path}: it is a file", notes=["give another folder with --out"])
    foreign = sorted(_foreign(path))
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise MspcError(
            f"{path} holds files that mspc did not write: {shown}",
            notes=["give another folder with --out, or an empty one"],
        )


def _foreign(path: Path) -> list[str]:
    entries = [entry for entry in path.iterdir() if not is_own_name(entry.name)]
    if entries and not (path / PROGRAM).is_file():
        return [entry.name for entry in entries]
    found: list[str] = []
    for entry in entries:
        if OWN.fullmatch(entry.name):
            inside = list(entry.iterdir()) if entry.is_dir() else []
            own = [e for e in inside if OWN_IN_RANK.fullmatch(e.name) or _holds_dumps(e)]
            found += [f"{entry.name}/{e.name}" for e in inside if e not in own]
        elif not _holds_dumps(entry):
            found.append(entry.name)
    return found


def _holds_dumps(path: Path) -> bool:
    """Whether nothing but dumps are at a path, be it one or a folder of them."""
    if path.is_symlink() or not path.is_dir():
        return path.is_file() and bool(DUMP.fullmatch(path.name))
    entries = list(path.iterdir())
    return bool(entries) and all(is_own_name(entry.name) or _holds_dumps(entry) for entry in entries)


def _cannot_write(path: Path, error: Exception) -> MspcError:
    return MspcError(
        f"cannot write to {shown_path(path)}: {reason_of(error)}", notes=["give another folder with --out"]
    )
