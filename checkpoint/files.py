"""Files of a checkpoint that is being read: opened once and read at offsets; errors name the file."""

from __future__ import annotations

import errno
import importlib
import json
import mmap
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import cannot_write, remove_left_over, shown_path, unfinished_file, unfinished_folder
from mspc.ir.files.parsing import reading
from mspc.ir.files.regular import check_regular
from mspc.ir.files.tensors import StoredTensor, TensorFile, header_of, in_order, write_array
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType

# Checksums of stored slices are 64-bit XXH3 if the library xxhash is installed, else CRC-32 of zlib. A checksum is text
# that starts with the name of its kind.


CHUNK_BYTES = 1 << 19
"""Bytes that are read or written and added to a checksum at once, so that they stay in the cache."""


class RunningChecksum(Protocol):
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
"""Number of hexadecimal digits of every kind."""


@cache
def _fast() -> Any:
    try:
        return importlib.import_module("xxhash").xxh3_64
    except ImportError:
        return None


def default_kind() -> str:
    """Return the kind of new checksums."""
    return "crc32" if _fast() is None else "xxh3"


def reserved_digits(kind: str) -> str:
    """Return a placeholder with the length of a checksum of this kind."""
    return f"{kind}:{'0' * DIGITS[kind]}"


def start_checksum(kind: str) -> RunningChecksum | None:
    """Start a checksum; None if this kind cannot be computed here."""
    if kind == "crc32":
        return _Crc32()
    made = _fast()
    return None if made is None else made()


def can_compare(text: str) -> bool:
    """Return whether a checksum can be recomputed here; False for none."""
    return bool(text) and start_checksum(text.partition(":")[0]) is not None


def shown(kind: str, running: RunningChecksum) -> str:
    """Return a checksum as text."""
    return f"{kind}:{running.hexdigest()}"


def is_checksum(text: Any) -> bool:
    """Return whether `text` is a checksum of a known kind."""
    kind, _, digits = text.partition(":") if isinstance(text, str) else ("", "", "")
    return kind in DIGITS and len(digits) == DIGITS[kind] and all(c in "0123456789abcdef" for c in digits)


# A JSON text may contain a checksum of itself, as in the header of a rank's file and the index of a set.
#
# It is an entry, `"mspc_checksum":"xxh3:0123456789abcdef"`, computed with zeros in place of its digits.


SEAL = "mspc_checksum"
"""Key of the checksum."""
_BEFORE = f'"{SEAL}":"'.encode()


def placeholder() -> str:
    """Return the placeholder for the checksum until the text is sealed."""
    return reserved_digits(default_kind())


def sealed(text: bytes) -> bytes:
    """Return the text with its checksum in the reserved place."""
    place = _BEFORE + placeholder().encode()
    return text.replace(place, _BEFORE + _sum(text, default_kind()).encode(), 1)


def is_sealed(text: bytes, said: Any, what: str) -> bool:
    """Return True if the checksum of a text is right, False if there is none or its kind cannot be computed here.
    said: the entry of the checksum, or None. what: name of the text in messages. Raise ValueError if it is wrong."""
    if said is None:
        return False
    if not is_checksum(said):
        raise ValueError(f"the checksum of its {what} is given as {said!r:.80}")
    if not can_compare(said):
        return False
    kind = said.partition(":")[0]
    found = _sum(text.replace(_BEFORE + said.encode(), _BEFORE + reserved_digits(kind).encode(), 1), kind)
    if found != said:
        raise ValueError(f"the checksum of its {what} is {found}, and {said} was written")
    return True


def _sum(text: bytes, kind: str) -> str:
    running = start_checksum(kind)
    assert running is not None
    running.update(text)
    return shown(kind, running)


MAX_OPEN = 200
"""Maximum number of files opened in advance, so that they cannot be removed before they are read; others open when
needed."""


class Files:
    """Files by number.

    sizes: bytes of each, None if unknown. Raise MspcError if a file is missing or has another size.
    """

    def __init__(self, paths: Sequence[Path], sizes: Sequence[int | None]) -> None:
        self.paths = list(paths)
        self._sizes = list(sizes)
        self._open: dict[int, int] = {}
        self._lock = threading.Lock()
        self.bytes_read = 0
        """Bytes of tensors that were read so far."""
        weakref.finalize(self, _close, self._open)
        for number in range(min(len(self.paths), MAX_OPEN)):
            self._descriptor(number)

    @classmethod
    def joined(cls, several: Sequence[Files]) -> Files:
        """Return the concatenation of several file lists. Open files stay open, because their paths may no longer
        exist."""
        found = cls([], [])
        for each in several:
            first = len(found.paths)
            found._open |= {first + number: os.dup(descriptor) for number, descriptor in each._open.items()}
            found.paths += each.paths
            found._sizes += each._sizes
        return found

    def close(self) -> None:
        """Close the files; a file that is read again is reopened."""
        _close(self._open)

    def _descriptor(self, number: int) -> int:
        with self._lock:
            return self._open[number] if number in self._open else self._opened(number)

    def _opened(self, number: int) -> int:
        path = self.paths[number]
        with reading(path, "file of a checkpoint"):
            check_regular(path)
            found = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            size = os.fstat(found).st_size
        wanted = self._sizes[number]
        if wanted is not None and size != wanted:
            os.close(found)
            raise MspcError(
                f"{shown_path(path)} is damaged: it has {size} bytes, and {wanted} were written", code="E0116"
            )
        self._open[number] = found
        return found

    def read_into(self, number: int, offset: int, target: memoryview) -> None:
        """Fill `target` with bytes of a file. Raise MspcError."""
        descriptor, done = self._descriptor(number), 0
        with reading(self.paths[number], "file of a checkpoint"):
            while done < len(target):
                got = os.preadv(descriptor, [target[done:]], offset + done)
                if not got:
                    raise MspcError(
                        f"{shown_path(self.paths[number])} is damaged: it ends at byte {offset + done}", code="E0116"
                    )
                done += got
        self.bytes_read += len(target)

    def mapped(self, number: int, offset: int, size: int) -> Any:
        """Map bytes of a file as an array. Raise MspcError."""
        descriptor = self._descriptor(number)
        first = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        with reading(self.paths[number], "file of a checkpoint"):
            if os.fstat(descriptor).st_size < offset + size:
                raise MspcError(
                    f"{shown_path(self.paths[number])} is damaged: it ends before byte {offset + size}", code="E0116"
                )
            room = mmap.mmap(descriptor, offset + size - first, offset=first, access=mmap.ACCESS_READ)
        return np.frombuffer(room, np.uint8, size, offset - first)


def read_header(path: Path) -> tuple[TensorFile, bool]:
    """Return the header of a safetensors file, and whether its checksum was verified. Raise MspcError if the file is
    missing, not a safetensors file, or its header is damaged."""
    with reading(path, "file of a checkpoint"):
        file = TensorFile(path)
    with reading(path, "file of a checkpoint", "is damaged", damaged="E0116"):
        return file, is_sealed(file.header, file.about.get(SEAL), "header")


def _close(descriptors: dict[int, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])


# Writer of one rank's file of a set -------------------------------------------------------------------
# Slices as safetensors, with their positions and checksums in the header.


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
