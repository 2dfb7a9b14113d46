"""The folder that a compile writes: made beside its place and renamed at the end, so never half there."""

from __future__ import annotations

import glob
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
from mspc.runtime.program import PROGRAM, WEIGHTS

OWN = re.compile(rf"rank_\d+|{re.escape(PROGRAM)}|{re.escape(WEIGHTS)}")
OWN_IN_RANK = re.compile(r".*_\d{4,}\.(ir|dot)")


class OutputFolder:
    """Write files into a new folder; `commit` puts it in the place of `path`, else `path` stays as it was.

    An earlier output of mspc is replaced as a whole and an empty folder filled.

    Raises:
        MspcError: `path` holds files that mspc did not write, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _check_replaceable(path)
        absolute = Path(os.path.abspath(path))
        self._place = absolute
        self._beside = absolute.with_name(f".{absolute.name}.{os.getpid()}.new")
        self._old = absolute.with_name(f".{absolute.name}.{os.getpid()}.old")
        self._made: set[str] = set()
        self._on_termination: Any = None

    def __enter__(self) -> OutputFolder:
        try:
            self._place.parent.mkdir(parents=True, exist_ok=True)
            _remove_left_over(self._place)
            if threading.current_thread() is threading.main_thread():
                self._on_termination = signal.signal(signal.SIGTERM, _leave)
            self._beside.mkdir()
        except OSError as error:
            raise _cannot_write(self.path, error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._beside, ignore_errors=True)
        if self._on_termination is not None:
            signal.signal(signal.SIGTERM, self._on_termination)
        if isinstance(error, OSError):
            raise _cannot_write(self.path, error) from None

    def write(self, name: str, content: str | bytes) -> None:
        """Write one file; `name` is relative to the folder. Leaving the `with` block explains an OSError."""
        self.write_by(name, lambda file: file.write(content.encode() if isinstance(content, str) else content))

    def write_by(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        """Write one file as `write` writes it to what it is handed, part by part."""
        target = self._beside / name
        folder = os.path.dirname(name)
        if folder and folder not in self._made:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(folder)
        with open(target, "wb") as file:
            write(file)

    def commit(self) -> None:
        """Put the folder in its place."""
        _check_replaceable(self.path)
        if not self._place.exists():
            os.rename(self._beside, self._place)
            return
        if self._place.is_symlink() or os.path.ismount(self._place):
            self._refill()
            return
        os.rename(self._place, self._old)
        os.rename(self._beside, self._place)
        shutil.rmtree(self._old, ignore_errors=True)

    def _refill(self) -> None:
        """A link or a mount point must stay: its contents change instead."""
        for entry in list(self._place.iterdir()):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for entry in list(self._beside.iterdir()):
            shutil.move(str(entry), str(self._place / entry.name))


def _leave(number: int, _: object) -> None:
    """A command that is terminated takes its unfinished folder away."""
    raise SystemExit(128 + number)


def _remove_left_over(place: Path) -> None:
    """Remove what an earlier compile for this place has left behind that was killed."""
    for path in place.parent.glob(f".{glob.escape(place.name)}.*"):
        found = re.fullmatch(rf"\.{re.escape(place.name)}\.(\d+)\.(new|old)", path.name)
        if found and not os.path.exists(f"/proc/{found[1]}") and os.path.isdir("/proc/self"):
            shutil.rmtree(path, ignore_errors=True)


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
    entries = list(path.iterdir())
    if entries and not (path / PROGRAM).is_file():
        return [entry.name for entry in entries]
    found = [entry.name for entry in entries if not OWN.fullmatch(entry.name)]
    for folder in entries:
        if folder.is_dir() and OWN.fullmatch(folder.name):
            found += [
                f"{folder.name}/{e.name}" for e in folder.iterdir() if not OWN_IN_RANK.fullmatch(e.name)
            ]
    return found


def _cannot_write(path: Path, error: OSError) -> MspcError:
    return MspcError(
        f"cannot write to {path}: {error.strerror or error}", notes=["give another folder with --out"]
    )
