"""The files of a checkpoint that is read are opened once, and read at places; errors name the file."""

from __future__ import annotations

import importlib
import mmap
import os
import threading
import weakref
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of, shown_path
from mspc.ir.files.parsing import reading
from mspc.ir.files.regular import check_regular
from mspc.ir.files.tensors import TensorFile

# Checksums of stored slices are XXH3 with 64 bits if the library xxhash is installed, else CRC-32 of zlib.
#
# A checksum is text, the name of its kind before its digits, so that a file names its kind.


AT_ONCE = 1 << 19
"""Bytes that are read or written and added to a checksum together, while they are in the processor's cache."""


class Running(Protocol):
    """A checksum of the bytes so far."""

    def update(self, data: Any) -> object: ...

    def hexdigest(self) -> str: ...


class _Crc32:
    def __init__(self) -> None:
        self._value = 0

    def update(self, data: Any) -> None:
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


DIGITS = {"xxh3": 16, "crc32": 8}
"""Hexadecimal digits of every kind."""


@cache
def _fast() -> Any:
    try:
        return importlib.import_module("xxhash").xxh3_64
    except ImportError:
        return None


def kind_here() -> str:
    """The kind that new checksums have."""
    return "crc32" if _fast() is None else "xxh3"


def empty(kind: str) -> str:
    """A text as long as a checksum of this kind: it reserves the place until the checksum is known."""
    return f"{kind}:{'0' * DIGITS[kind]}"


def started(kind: str) -> Running | None:
    """Start a checksum; None if this kind cannot be computed here."""
    if kind == "crc32":
        return _Crc32()
    made = _fast()
    return None if made is None else made()


def can_compare(text: str) -> bool:
    """Whether a checksum can be computed here, to compare it; False for none."""
    return bool(text) and started(text.partition(":")[0]) is not None


def shown(kind: str, running: Running) -> str:
    """A checksum as text."""
    return f"{kind}:{running.hexdigest()}"


def is_checksum(text: Any) -> bool:
    """Whether `text` is a checksum of a known kind."""
    kind, _, digits = text.partition(":") if isinstance(text, str) else ("", "", "")
    return kind in DIGITS and len(digits) == DIGITS[kind] and all(c in "0123456789abcdef" for c in digits)


# A text of JSON may hold a checksum of itself: the header of a rank's file does, and the index of a set.
#
# It is in the text, `"mspc_checksum":"xxh3:0123456789abcdef"`, and is that of the text with zeros as its digits.


SEAL = "mspc_checksum"
"""The key of the checksum."""
_BEFORE = f'"{SEAL}":"'.encode()


def placeholder() -> str:
    """Return the placeholder for the checksum until the text is sealed."""
    return empty(kind_here())


def sealed(text: bytes) -> bytes:
    """The text, of the same length, with its checksum in the place that was reserved for it."""
    place = _BEFORE + placeholder().encode()
    return text.replace(place, _BEFORE + _sum(text, kind_here()).encode(), 1)


def is_sealed(text: bytes, said: Any, what: str) -> bool:
    """Check that a text is as it was written. said: its entry of the checksum, or None. what: the name of the text in
    messages.

    Returns:
        False if that cannot be known: there is no checksum, or of a kind that cannot be computed here.

    Raises:
        ValueError: it is not.
    """
    if said is None:
        return False
    if not is_checksum(said):
        raise ValueError(f"the checksum of its {what} is given as {said!r:.80}")
    if not can_compare(said):
        return False
    kind = said.partition(":")[0]
    found = _sum(text.replace(_BEFORE + said.encode(), _BEFORE + empty(kind).encode(), 1), kind)
    if found != said:
        raise ValueError(f"the checksum of its {what} is {found}, and {said} was written")
    return True


def _sum(text: bytes, kind: str) -> str:
    running = started(kind)
    assert running is not None
    running.update(text)
    return shown(kind, running)


MOST_OPEN = 200
"""Files that are opened at once, so that nothing can take them away before they are read; the others open when needed.
"""


class Files:
    """Files by number.

    Args:
        sizes: bytes of each, None if unknown.

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
            raise MspcError(
                f"{shown_path(path)} is damaged: it has {size} bytes, and {wanted} were written", code="E0116"
            )
        self._open[number] = found
        return found

    def read_into(self, number: int, offset: int, target: memoryview) -> None:
        """Fill `target`, bytes, from a file. Raises MspcError."""
        descriptor, done = self._descriptor(number), 0
        try:
            while done < len(target):
                got = os.preadv(descriptor, [target[done:]], offset + done)
                if not got:
                    raise MspcError(
                        f"{shown_path(self.paths[number])} is damaged: it ends at byte {offset + done}", code="E0116"
                    )
                done += got
        except OSError as error:
            raise self._unreadable(number, error) from None
        self.bytes_read += len(target)

    def mapped(self, number: int, offset: int, size: int) -> Any:
        """Map bytes of a file as an array. Raises MspcError."""
        descriptor = self._descriptor(number)
        first = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        try:
            if os.fstat(descriptor).st_size < offset + size:
                raise MspcError(
                    f"{shown_path(self.paths[number])} is damaged: it ends before byte {offset + size}", code="E0116"
                )
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
    if not os.path.exists(path):
        raise MspcError(f"the checkpoint's file {shown_path(path)} is missing")
    with reading(path, "file of a checkpoint"):
        file = TensorFile(path)
    with reading(path, "file of a checkpoint", "is damaged", damaged="E0116"):
        return file, is_sealed(file.header, file.about.get(SEAL), "header")


def _close(descriptors: dict[int, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])
