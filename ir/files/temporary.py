"""A file that is being written has a name of its own beside its place. Whoever writes it holds a lock on it, so that
what a killed process has left behind can be told from what another one is writing, whatever became of process numbers.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import signal
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

UNFINISHED = re.compile(r"\..*\.\d+-[0-9a-f]{8}\.new")
"""Names of what is not complete yet, or not needed any more: it may be removed once nobody holds it."""
LONGEST = 200
"""Bytes of a name that are taken over: file systems take 255, and more comes behind."""

_UNFINISHED: set[tuple[int, Path]] = set()
"""(process, file) of what is being written; a process that was forked off meanwhile has the list, and not the files."""


class TemporaryPath:
    """A new file or folder that this process holds until `release`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def release(self) -> None:
        """Let go of it; whoever comes next may remove what still has a name of unfinished things."""
        os.close(self.descriptor)


def unfinished_name(name: str) -> str:
    """A new name for what will be called `name`."""
    encoded = os.fsencode(name)
    if len(encoded) > LONGEST:
        digest = hashlib.sha256(encoded).hexdigest()[:12]
        name = f"{os.fsdecode(encoded[: LONGEST - len(digest) - 1])}~{digest}"
    return f".{name}.{os.getpid()}-{secrets.token_hex(4)}.new"


def new_file(folder: Path, name: str) -> TemporaryPath:
    """A new file in `folder`, open for writing, for what will be called `name`. Raises OSError."""
    return _new(folder, name, os.O_RDWR | os.O_CREAT | os.O_EXCL)


@contextlib.contextmanager
def unfinished_file(folder: Path, name: str) -> Generator[TemporaryPath]:
    """`new_file` for the time of a block, which moves it to its place. Where the block raises, and where SIGTERM ends
    the process inside of it, the file is removed."""
    with tidy_when_terminated():
        beside = new_file(folder, name)
        with _noted(beside.path):
            yield beside


@contextlib.contextmanager
def unfinished_folder(folder: Path, name: str) -> Generator[Path]:
    """`new_folder` for the time of a block, which moves what is in it to its places: behind the block, and where
    SIGTERM ends the process inside of it, the folder is removed with what is left there."""
    with tidy_when_terminated():
        beside = new_folder(folder, name)
        try:
            with _noted(beside.path):
                yield beside.path
            remove(beside.path)
        finally:
            beside.release()


@contextlib.contextmanager
def _noted(path: Path) -> Generator[None]:
    """Have what is at a path removed where the block raises or the process is terminated inside of it."""
    entry = os.getpid(), path
    _UNFINISHED.add(entry)
    try:
        yield
    except BaseException:
        remove(path)
        raise
    finally:
        _UNFINISHED.discard(entry)


@contextlib.contextmanager
def tidy_when_terminated() -> Generator[None]:
    """Inside, SIGTERM removes what this process has not finished before it ends it, other threads' files too. In a
    thread that is not the main one, and where the process has a way of its own to end, nothing changes."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _end_tidily)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end_tidily(number: int, _: Any) -> None:
    remove_unfinished()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def remove_unfinished() -> None:
    """Remove what this process is writing, for one that ends at once."""
    for process, path in list(_UNFINISHED):
        if process == os.getpid():
            remove(path)


def new_folder(folder: Path, name: str) -> TemporaryPath:
    """A new folder in `folder` for what will be called `name`. Raises OSError."""
    return _new(folder, name, os.O_RDONLY | os.O_DIRECTORY)


def _new(folder: Path, name: str, flags: int) -> TemporaryPath:
    while True:
        path = folder / unfinished_name(name)
        if flags & os.O_DIRECTORY:
            path.mkdir()
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:
            if not folder.is_dir():
                raise
            continue  # somebody has removed it before it was held
        with contextlib.suppress(OSError):  # a file system without locks: nobody removes anything there
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if is_at(path, descriptor):
            return TemporaryPath(path, descriptor)
        os.close(descriptor)


@contextlib.contextmanager
def held(path: Path) -> Generator[bool]:
    """Hold the file at `path` inside the block; False where somebody else does, or nobody can."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = is_at(path, descriptor)
    except OSError:
        mine = False
    try:
        yield mine
    finally:
        os.close(descriptor)


def remove_left_over(folder: Path) -> None:
    """Remove from a folder what processes have left there that were killed while they wrote."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in filter(UNFINISHED.fullmatch, names):
        with held(folder / name) as mine:
            if mine:
                remove(folder / name)


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()


def is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except OSError:
        return False
