"""Files of a checkpoint come into being beside their place, are waited for on the disk, and then get their name."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import cannot_write
from mspc.ir.files.temporary import remove_left_over, unfinished_file, unfinished_folder


def write_synced(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file that is there completely or not at all, also after the power fails: its bytes are on the disk before
    its name, and the name when this returns.

    Raises:
        MspcError: it cannot be written; what was there before still is.
    """
    try:
        remove_left_over(path.parent)
        with unfinished_file(path.parent, path.name) as beside, open(beside.descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(beside.descriptor)
            os.replace(beside.path, path)
        sync_folder(path.parent)
    except (OSError, ValueError) as error:
        raise cannot_write(path, error) from None


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has no such call
            raise
    finally:
        os.close(descriptor)


def make_synced_folder(folder: Path) -> None:
    """Make a folder, and those above it, and wait until their names are on the disk. Raises MspcError."""
    missing: list[Path] = []
    at = folder
    while not at.exists() and at != at.parent:
        missing.append(at)
        at = at.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for made in missing:
            sync_folder(made.parent)
    except FileExistsError:
        raise MspcError(f"cannot write to {folder}: it is a file") from None
    except (OSError, ValueError) as error:
        raise cannot_write(folder, error) from None


@contextmanager
def published_together(place: Path) -> Generator[Path]:
    """A new folder for folders of files. Behind the block all of these files get their names in folders of the same
    names in `place`, over files that are there; where the block raises or is killed, what is in `place` stays as it is.

    Raises:
        MspcError: something cannot be written.
    """
    is_new = not place.exists()
    make_synced_folder(place)
    try:
        remove_left_over(place)
        with unfinished_folder(place, place.name) as beside:
            yield beside
            folders = sorted(beside.iterdir())
            for folder in folders:
                make_synced_folder(place / folder.name)
            for folder in folders:
                for file in sorted(folder.iterdir()):
                    os.replace(file, place / folder.name / file.name)
                sync_folder(place / folder.name)
    except OSError as error:
        raise cannot_write(place, error) from None
    finally:
        if is_new:
            with suppress(OSError):  # there are files
                place.rmdir()
