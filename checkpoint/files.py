"""The files of a checkpoint that is read are opened once, and read at places; errors name the file."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.checkpoint.seal import SEAL, is_sealed
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of, shown_path
from mspc.ir.files.regular import check_regular
from mspc.ir.files.tensors import TensorFile

MOST_OPEN = 200
"""Files that are opened ahead, so that nothing can take them away before they are read; of more, each when it is
needed."""


class Files:
    """Files by number.

    Args:
        sizes: bytes of each, None where nobody knows.

    Raises:
        MspcError: one is missing or has another size.
    """

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int | None]) -> None:
        self.paths = list(paths)
        self._sizes = list(sizes)
        self._open: dict[int, int] = {}
        self._lock = threading.Lock()
        self.bytes_read = 0
        """Bytes of tensors that were read so far."""
        weakref.finalize(self, _close, self._open)
        for number in range(min(len(self.paths), MOST_OPEN)):
            self._descriptor(number)

    @classmethod
    def joined(cls, several: Sequence[Files]) -> Files:
        """Return the files of several, in order. Those that are open stay so: their paths may be gone."""
        found = cls([], [])
        for each in several:
            first = len(found.paths)
            found._open |= {first + number: os.dup(descriptor) for number, descriptor in each._open.items()}
            found.paths += each.paths
            found._sizes += each._sizes
        return found

    def close(self) -> None:
        """Close the files; one that is read once more is opened again."""
        _close(self._open)

    def _descriptor(self, number: int) -> int:
        with self._lock:
            return self._open[number] if number in self._open else self._opened(number)

    def _opened(self, number: int) -> int:
        path = self.paths[number]
        try:
            check_regular(path)
            found = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            size = os.fstat(found).st_size
        except FileNotFoundError:
            raise MspcError(f"the checkpoint's file {shown_path(path)} is missing") from None
        except (OSError, ValueError) as error:
            raise self._unreadable(number, error) from None
        wanted = self._sizes[number]
        if wanted is not None and size != wanted:
            os.close(found)
            raise MspcError(f"{shown_path(path)} is damaged: it has {size} bytes, and {wanted} were written")
        self._open[number] = found
        return found

    def read_into(self, number: int, offset: int, target: memoryview) -> None:
        """Fill `target`, bytes, from a file. Raises MspcError."""
        descriptor, done = self._descriptor(number), 0
        try:
            while done < len(target):
                got = os.preadv(descriptor, [target[done:]], offset + done)
                if not got:
                    raise MspcError(f"{shown_path(self.paths[number])} is damaged: it ends at byte {offset + done}")
                done += got
        except OSError as error:
            raise self._unreadable(number, error) from None
        self.bytes_read += len(target)

    def mapped(self, number: int, offset: int, size: int) -> Any:
        """Bytes of a file as an array that reads them where it is looked at. Raises MspcError."""
        descriptor = self._descriptor(number)
        first = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        try:
            if os.fstat(descriptor).st_size < offset + size:
                raise MspcError(f"{shown_path(self.paths[number])} is damaged: it ends before byte {offset + size}")
            room = mmap.mmap(descriptor, offset + size - first, offset=first, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise self._unreadable(number, error) from None
        return np.frombuffer(room, np.uint8, size, offset - first)

    def _unreadable(self, number: int, error: Exception) -> MspcError:
        return MspcError(f"cannot read the checkpoint {shown_path(self.paths[number])}: {reason_of(error)}")


def read_header(path: Path) -> tuple[TensorFile, bool]:
    """A file of safetensors by its header, and whether that was compared with the checksum that it has of itself.

    Raises:
        MspcError: it is missing, or no such file, or its header is not as it was written.
    """
    try:
        file = TensorFile(path)
    except FileNotFoundError:
        raise MspcError(f"the checkpoint's file {shown_path(path)} is missing") from None
    except OSError as error:
        raise MspcError(f"cannot read the checkpoint {shown_path(path)}: {reason_of(error)}") from None
    except ValueError as error:
        raise MspcError(f"{shown_path(path)} is no file of a checkpoint: {error}") from None
    try:
        return file, is_sealed(file.header, file.about.get(SEAL), "header")
    except ValueError as error:
        raise MspcError(f"{shown_path(path)} is damaged: {error}") from None


def _close(descriptors: dict[int, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])
