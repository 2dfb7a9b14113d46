"""Atomic writing: files and folders appear complete or not at all. They are written under a temporary name next to
their place.

Each writer holds a lock on its file, so that leftovers of killed processes differ from files still being written.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import secrets
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from mspc.ir.diagnostics import MspcError

UNFINISHED = re.compile(r"\..*\.\d+-[0-9a-f]{8}\.new")
"""Names of files and folders that are incomplete or no longer needed: they may be removed if no process holds them."""
LONGEST = 200
"""Most bytes of a name that a temporary name contains: file systems allow 255, and a suffix follows."""

_UNFINISHED: set[tuple[int, Path]] = set()
"""(process, path) of files being written. A forked process inherits this set but does not own the files."""


class TemporaryPath:
    """A new file or folder that this process holds locked until `release`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def release(self) -> None:
        """Release the lock; another process may then remove the path if it still has its temporary name."""
        os.close(self.descriptor)


def unfinished_name(name: str) -> str:
    """Return a new temporary name for a file or folder with the final name `name`."""
    encoded = os.fsencode(name)
    if len(encoded) > LONGEST:
        digest = hashlib.sha256(encoded).hexdigest()[:12]
        name = f"{os.fsdecode(encoded[: LONGEST - len(digest) - 1])}~{digest}"
    return f".{name}.{os.getpid()}-{secrets.token_hex(4)}.new"


def new_file(folder: Path, name: str) -> TemporaryPath:
    """Return a new file in `folder`, open for writing, with the final name `name`. Raise OSError if that fails."""
    return _new(folder, name, os.O_RDWR | os.O_CREAT | os.O_EXCL)


@contextlib.contextmanager
def unfinished_file(folder: Path, name: str) -> Generator[TemporaryPath]:
    """Make a `new_file` for a block that moves it to its place. The file is removed if the block raises or SIGTERM ends
    the process inside it."""
    with tidy_when_terminated():
        beside = new_file(folder, name)
        with _noted(beside.path):
            yield beside


@contextlib.contextmanager
def unfinished_folder(folder: Path, name: str) -> Generator[Path]:
    """Make a `new_folder` for a block that moves its contents to their places. The folder with its remaining contents
    is removed after the block, and if SIGTERM ends the process inside it."""
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
    """Remove the file or folder at a path if the block raises or the process is terminated inside it."""
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
    """Make SIGTERM, inside the block, remove the unfinished files of this process, other threads' included, before it
    ends the process. Change nothing in threads other than the main one, or if the process handles SIGTERM itself."""
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
    """Remove the files and folders that this process is writing, before it ends at once."""
    for process, path in list(_UNFINISHED):
        if process == os.getpid():
            remove(path)


def new_folder(folder: Path, name: str) -> TemporaryPath:
    """Return a new folder in `folder` with the final name `name`. Raise OSError if that fails."""
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
            continue  # another process removed it before it was locked
        with contextlib.suppress(OSError):  # a file system without locks: no process removes anything there
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if is_at(path, descriptor):
            return TemporaryPath(path, descriptor)
        os.close(descriptor)


@contextlib.contextmanager
def held(path: Path) -> Generator[bool]:
    """Hold the file at `path` inside the block. Yield False if another process holds it or it cannot be locked."""
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


def remove_left_over(folder: Path, is_one: Callable[[str], object] = UNFINISHED.fullmatch) -> None:
    """Remove the unfinished files that killed processes left in a folder. is_one: tells these by their names."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in filter(is_one, names):
        with held(folder / name) as mine:
            if mine:
                remove(folder / name)


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as possible; errors are ignored."""
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


OPEN_ALREADY = re.compile(r"/dev/(fd/|std)|/proc/")
"""Paths that name a process's open files: they are written to directly, whatever they refer to."""


def write_atomically(
    path: Path, write: Callable[[BinaryIO], object], shown: Path | None = None, one_of_many: bool = False
) -> None:
    """Write a file: a reader sees the old or the new contents, never a part, even after a crash.

    If the path is a link, its target is written; pipes and devices are written to directly.

    write: writes the contents to the open file it gets. shown: the path as the user wrote it, if it differs.
    one_of_many: the file belongs to a long series, such as a dump of every step. Do not wait for the disk, and do not
    look for leftovers of other processes in the folder. Raise MspcError if it cannot be written; an older file is
    unchanged.
    """
    try:
        if _is_written_to(path):
            with open(path, "wb") as file:
                write(file)
            return
        place = Path(os.path.realpath(path))
        if not one_of_many:
            remove_left_over(place.parent)
        if place.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        with unfinished_file(place.parent, place.name) as beside, open(beside.descriptor, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(beside.descriptor, stat.S_IMODE(os.stat(place).st_mode))
            write(file)
            file.flush()
            if not one_of_many:
                os.fsync(beside.descriptor)
            os.replace(beside.path, place)
    except (OSError, ValueError) as error:  # ValueError: characters not allowed in file names
        raise cannot_write(shown or path, error) from None


def check_writable(path: Path, option: str = "") -> None:
    """Check in advance that `write_atomically` can write a file, so that no work is wasted.

    option: the option by which the user named it. Raise MspcError if the file cannot be written.
    """
    try:
        if _is_written_to(path):
            return
        place = Path(os.path.realpath(path))
        reason = _hindrance(place, path)
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) from None
    if reason:
        notes = [f"{option} names a file"] if option and place.is_dir() else []
        raise MspcError(f"cannot write {path}: {reason}", notes=notes, code="E0111")


def check_files(files: Mapping[str, Path | None]) -> None:
    """Call `check_writable` for the files that a command is to write, given by option; skip None. Raise MspcError if
    one cannot be written, or two options name the same file."""
    found: dict[str, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        check_writable(path, option)
        place = os.path.realpath(path)
        if place in found and not _is_written_to(path):
            raise MspcError(f"{found[place]} and {option} both name {path}", notes=["give each a file of its own"])
        found[place] = option


def _hindrance(place: Path, path: Path) -> str:
    """Return the reason why no file can be written at `place`, which the user called `path`, or ""."""
    folder = place.parent
    shown = str(path.parent if not path.is_symlink() else folder)
    if place.is_dir():
        return "it is a folder"
    if not folder.exists():
        return f"there is no folder {shown!r}"
    if not folder.is_dir():
        return f"{shown!r} is no folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"the folder {shown!r} is read-only"
    with contextlib.suppress(FileNotFoundError):
        os.stat(place)  # raises OSError for a name that is too long
        if not os.access(place, os.W_OK):
            return "it is read-only"
    return ""


def make_folder(folder: Path) -> None:
    """Make a folder for files, and its parents, if they are missing. Raise MspcError if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise MspcError(f"cannot write to {shown_path(folder)}: it is a file", code="E0111") from None
    except (OSError, ValueError) as error:
        raise _cannot_make(folder, error) from None


def check_folder(folder: Path, name: str) -> None:
    """Check in advance that `make_folder`, and then `write_atomically` of a file `name` in the folder, can succeed.
    Nothing is made. Raise MspcError if one of them would fail."""
    place, missing = Path(os.path.abspath(folder)), [""]
    while not os.path.lexists(place):
        missing.append(place.name)
        place = place.parent
    if len(missing) == 1 and not place.is_dir():
        raise MspcError(f"cannot write to {shown_path(folder)}: it is a file", code="E0111")
    if len(missing) == 1:
        check_writable(folder / name)
        return
    above = [(part, folder, _cannot_make) for part in missing]
    for part, path, cannot in [*above, (name, folder / name, cannot_write)]:
        try:
            os.stat(place / part)  # a missing name is expected; a name that is too long is another error
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise cannot(path, error) from None
    if not os.access(place, os.W_OK | os.X_OK):
        raise MspcError(
            f"cannot write to {shown_path(folder)}: the folder {shown_path(place)} is read-only", code="E0111"
        )


def _cannot_make(folder: Path, error: Exception) -> MspcError:
    return MspcError(f"cannot write to {shown_path(folder)}: {reason_of(error)}", code="E0111")


def cannot_write(path: Path, error: Exception) -> MspcError:
    """Return the MspcError for an OSError, or for the ValueError of a name that no file can have."""
    return MspcError(f"cannot write {shown_path(path)}: {reason_of(error)}", code="E0111")


def reason_of(error: Exception) -> str:
    """Return the message of a file system error, without the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def utf8_bytes(text: str) -> bytes:
    """Return a text in UTF-8; bytes of file names that are not UTF-8 become escapes."""
    return text.encode("utf-8", "backslashreplace")


def shown_path(path: Path) -> str:
    """Return a path as text that a terminal can show."""
    return str(path) if str(path).isprintable() else repr(str(path))


def _is_written_to(path: Path) -> bool:
    """Return whether a path leads to a pipe, a device or an open file, which must not be replaced."""
    if OPEN_ALREADY.match(os.path.abspath(path)):
        return True
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def cache_folder(name: str) -> Path | None:
    """Return the folder for one kind of results, under `$XDG_CACHE_HOME/mspc` (`~/.cache/mspc`).

    It may not exist yet, see `make_cache_folder`. Return None if the user has no home or other users may write there.
    """
    given, home = os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")
    found = given if os.path.isabs(given) else home
    if not os.path.isabs(found):
        return None
    folder = Path(found) / "mspc" / name
    for each in (folder.parent, folder):
        with contextlib.suppress(OSError):
            if not _is_own(os.stat(each)):
                _warn_once(str(each))
                return None
    return folder


def make_cache_folder(folder: Path) -> None:
    """Create a folder of `cache_folder`, for this user only. Raise OSError if that fails."""
    for each in (folder.parent, folder):
        each.mkdir(0o700, parents=True, exist_ok=True)


def read_own(path: Path) -> bytes | None:
    """Return the content of a file; None if it is missing or another user may have written it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        try:
            return file.read() if stat.S_ISREG(status.st_mode) and _is_own(status) else None
        except OSError:
            return None


def write_private(path: Path, content: bytes) -> None:
    """Write a file that `read_own` accepts, whatever the umask is. Raise MspcError if that fails."""

    def write(file: BinaryIO) -> None:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)

    write_atomically(path, write, one_of_many=True)


def drop_oldest(folder: Path, suffix: str, most: int) -> None:
    """Remove the least recently used files until the rest has at most `most` bytes. Raise OSError if that fails."""
    files: list[tuple[int, int, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(suffix):
                with contextlib.suppress(FileNotFoundError):  # another process may remove some as well
                    found = entry.stat()
                    files.append((found.st_mtime_ns, found.st_size, entry.path))
    surplus = sum(size for _, size, _ in files) - most
    for _, size, path in sorted(files):
        if surplus <= 0:
            break
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        surplus -= size


def _is_own(status: os.stat_result) -> bool:
    """Return whether only this user or the administrator may change a file or folder."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@functools.cache
def _warn_once(folder: str) -> None:
    text = f"warning: other users own {folder!r} or may write there, so that nothing is read from it or stored in it"
    print(f"{text}; chmod go-w, or set XDG_CACHE_HOME to another folder", file=sys.stderr, flush=True)
