"""This module writes one rank's file of a set: its slices as safetensors, and in the header the place and the checksum
of each.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mspc.checkpoint.files import AT_ONCE, SEAL, Running, empty, kind_here, placeholder, sealed, shown, started
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import cannot_write, remove_left_over, unfinished_file, unfinished_folder
from mspc.ir.files.tensors import StoredTensor, header_of, in_order, write_array
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType

# Files of a checkpoint come into being beside their place, are waited for on the disk, and then get their name.


def write_synced(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file that is there completely or not at all, also after the power fails: its bytes are on the disk before
    its name, and the name when this returns.

    Raises:
        MspcError: it cannot be written; the earlier file stays.
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
        raise MspcError(f"cannot write to {folder}: it is a file", code="E0111") from None
    except (OSError, ValueError) as error:
        raise cannot_write(folder, error) from None


@contextmanager
def published_together(place: Path) -> Generator[Path]:
    """Make a new folder for folders of files. After the block all of these files get their names in folders of the same
    names in `place`, over files that are there; if the block raises or is killed, `place` stays as it is.

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


PLACES = "mspc"
"""The entry of a header with the places of the slices, as JSON."""


@dataclass(frozen=True)
class TensorSlice:
    """A rank's slice of a tensor.

    global_type: of the global tensor. begin: of the slice in it. shape: of the slice. layout: how the tensor is
    sharded, as text. make: gives the slice as an array.
    """

    name: str
    global_type: TensorType
    begin: tuple[int, ...]
    shape: tuple[int, ...]
    layout: str
    make: Callable[[], Any]


class _Summed:
    """Writes to a file, and has a checksum of all that was written."""

    def __init__(self, file: BinaryIO, running: Running) -> None:
        self._file = file
        self._running = running

    def write(self, data: Any, /) -> None:
        self._running.update(data)
        self._file.write(data)


def write_slices(path: Path, slices: Sequence[TensorSlice], about: dict[str, Any] | None = None) -> None:
    """Write a file of slices, one after another, so that no more than one is made at a time.

    about: further facts, which the header stores beside the places.

    Raises:
        MspcError: it cannot be written.
    """
    write_synced(path, lambda file: write_slices_to(file, slices, about))


def write_slices_to(file: BinaryIO, slices: Sequence[TensorSlice], about: dict[str, Any] | None = None) -> None:
    """The same to a file that is open for writing and can go back to its beginning."""
    kind = kind_here()
    by_name = {s.name: s for s in slices}
    stored = in_order([StoredTensor(s.name, TensorType(s.global_type.dtype, s.shape), s.make) for s in slices])
    sums = {s.name: empty(kind) for s in slices}
    if not file.seekable():  # a pipe: its beginning must be known before
        for tensor in stored:
            sums[tensor.name] = _checksum(kind, tensor)
    file.write(sealed(header_of(stored, _about(by_name, sums, about))))
    for tensor in stored:
        running = started(kind)
        assert running is not None
        array = np.asarray(tensor.make(), tensor.type.dtype.numpy).reshape(tensor.type.shape)
        write_array(_Summed(file, running), array, AT_ONCE)
        sums[tensor.name] = shown(kind, running)
        del array
    if file.seekable():
        file.seek(0)
        file.write(sealed(header_of(stored, _about(by_name, sums, about))))
        file.seek(0, 2)


def _checksum(kind: str, tensor: StoredTensor) -> str:
    running = started(kind)
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
