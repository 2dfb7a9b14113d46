"""Writer of one rank's file of a set: slices as safetensors, with their positions and checksums in the header."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mspc.checkpoint.files import (
    CHUNK_BYTES,
    SEAL,
    RunningChecksum,
    default_kind,
    placeholder,
    reserved_digits,
    sealed,
    shown,
    start_checksum,
)
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import cannot_write, remove_left_over, unfinished_file, unfinished_folder
from mspc.ir.files.tensors import StoredTensor, header_of, in_order, write_array
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType

# Files of a checkpoint are written under temporary names, synchronised to disk, and then renamed.


def write_synced(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file atomically and durably: its bytes are on disk before it is renamed, and the rename is when this
    returns. Raise MspcError if it cannot be written; the earlier file stays."""
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
    """Synchronise the names in a folder to disk. Raise OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not supported by the file system
            raise
    finally:
        os.close(descriptor)


def make_synced_folder(folder: Path) -> None:
    """Make a folder and its parents, and synchronise their names to disk. Raise MspcError."""
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
        raise MspcError(f"cannot write to {folder}: it is a file", code="E0111") from None
    except (OSError, ValueError) as error:
        raise cannot_write(folder, error) from None


@contextmanager
def atomic_publication(place: Path) -> Generator[Path]:
    """Return a context with a new folder for folders of files. At its end all files are moved to folders of the same
    names in `place`, replacing existing ones; if the block raises or is killed, `place` is unchanged. Raise MspcError
    if something cannot be written."""
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


PLACES = "mspc"
"""Header entry with the positions of the slices, as JSON."""


@dataclass(frozen=True)
class TensorSlice:
    """A rank's slice of a tensor.

    global_type: of the global tensor. begin: of the slice in it. shape: of the slice. layout: of the tensor, as text.
    make: returns the slice as an array.
    """

    name: str
    global_type: TensorType
    begin: tuple[int, ...]
    shape: tuple[int, ...]
    layout: str
    make: Callable[[], Any]


class _ChecksumWriter:
    """File wrapper that computes a checksum of everything written."""

    def __init__(self, file: BinaryIO, running: RunningChecksum) -> None:
        self._file = file
        self._running = running

    def write(self, data: Any, /) -> None:
        self._running.update(data)
        self._file.write(data)


def write_slices(path: Path, slices: Sequence[TensorSlice], about: dict[str, Any] | None = None) -> None:
    """Write a file of slices, generating one at a time. about: further entries of the header. Raise MspcError if it
    cannot be written."""
    write_synced(path, lambda file: write_slices_to(file, slices, about))


def write_slices_to(file: BinaryIO, slices: Sequence[TensorSlice], about: dict[str, Any] | None = None) -> None:
    """Write slices to an open file; a seekable file needs only one slice in memory."""
    kind = default_kind()
    by_name = {s.name: s for s in slices}
    stored = in_order([StoredTensor(s.name, TensorType(s.global_type.dtype, s.shape), s.make) for s in slices])
    sums = {s.name: reserved_digits(kind) for s in slices}
    if not file.seekable():  # a pipe: the header must be complete before the slices
        for tensor in stored:
            sums[tensor.name] = _checksum(kind, tensor)
    file.write(sealed(header_of(stored, _about(by_name, sums, about))))
    for tensor in stored:
        running = start_checksum(kind)
        assert running is not None
        array = np.asarray(tensor.make(), tensor.type.dtype.numpy).reshape(tensor.type.shape)
        write_array(_ChecksumWriter(file, running), array, CHUNK_BYTES)
        sums[tensor.name] = shown(kind, running)
        del array
    if file.seekable():
        file.seek(0)
        file.write(sealed(header_of(stored, _about(by_name, sums, about))))
        file.seek(0, 2)


def _checksum(kind: str, tensor: StoredTensor) -> str:
    running = start_checksum(kind)
    assert running is not None
    running.update(np.ascontiguousarray(np.asarray(tensor.make(), tensor.type.dtype.numpy)).reshape(-1).view(np.uint8))
    return shown(kind, running)


def _about(slices: dict[str, TensorSlice], sums: dict[str, str], about: dict[str, Any] | None) -> dict[str, str]:
    places = {
        name: {"shape": list(s.global_type.shape), "begin": list(s.begin), "layout": s.layout, "checksum": sums[name]}
        for name, s in sorted(slices.items())
    }
    said = json.dumps({"places": places, **(about or {})}, separators=(",", ":"))
    return {"format": "ms", PLACES: said, SEAL: placeholder()}
