"""Locates the elements of a part of a tensor in stored slices, by arithmetic alone, and reads them.

Slices are stored row-major. The part of a slice to read is a box; its bytes are runs of elements that are contiguous
both in the file and in the target array.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from mspc.checkpoint.files import (
    CHUNK_BYTES,
    SEAL,
    Files,
    RunningChecksum,
    can_compare,
    read_header,
    shown,
    start_checksum,
)
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.sharding.pieces import Box, common_part

MAX_BLOCKS = 1 << 22
"""Maximum number of blocks that are checked one by one; no layout creates as many."""


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """A stored slice.

    box: its position in the global tensor. file: number of its file. segments: (first byte, bytes) of its elements in
    the file, in order; one segment in most formats. checksum: of all its bytes, "" for none.
    """

    box: Box
    file: int
    segments: tuple[tuple[int, int], ...]
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class ByteRun:
    """Bytes that are read together: offsets in the stored slice and in the array, and size."""

    source: int
    target: int
    size: int


def box_of_shape(shape: Sequence[int]) -> Box:
    return Box((0,) * len(shape), tuple(shape))


def box_of(slices: Sequence[slice] | None, shape: Sequence[int]) -> Box:
    """Return the part of a tensor selected by slices without steps; None for the whole tensor."""
    if slices is None:
        return box_of_shape(shape)
    ends = [s.indices(n) for s, n in zip(slices, shape, strict=True)]
    return Box(tuple(begin for begin, _, _ in ends), tuple(max(begin, end) for begin, end, _ in ends))


def box_at(layout: Layout | None, rank: int, shape: Sequence[int]) -> Box:
    """Return the slice of a tensor on a rank."""
    return box_of(None if layout is None else layout.slices_for(rank, shape), shape)


def extent(box: Box) -> tuple[int, ...]:
    """Return the shape of a box."""
    return tuple(end - begin for begin, end in zip(box.begin, box.end, strict=True))


def run_length(part: Box, stored: Box, target: Box) -> int:
    """Return the number of elements of every run of `part`, which is within both boxes."""
    length = 1
    for n, s, t in zip(*(reversed(extent(box)) for box in (part, stored, target)), strict=True):
        length *= n
        if n != s or n != t:
            break
    return length


def runs(part: Box, stored: Box, target: Box, itemsize: int) -> Iterator[ByteRun]:
    """Yield the runs of `part`, a box within the stored and the target box, in file order."""
    if not part.size:
        return
    length = run_length(part, stored, target)
    sizes, outer, rest = extent(part), len(part.begin), 1
    while rest < length:
        outer -= 1
        rest *= sizes[outer]
    sources, targets = _strides(extent(stored)), _strides(extent(target))
    first, into = part.within(stored).begin, part.within(target).begin
    source = sum(i * s for i, s in zip(first, sources, strict=True))
    begin = sum(i * s for i, s in zip(into, targets, strict=True))
    steps = [range(n) for n in sizes[:outer]]
    for index in itertools.product(*steps):
        here = sum(i * s for i, s in zip(index, sources, strict=False))
        there = sum(i * s for i, s in zip(index, targets, strict=False))
        yield ByteRun((source + here) * itemsize, (begin + there) * itemsize, length * itemsize)


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[d + 1 :]) for d in range(len(shape))]


def file_ranges(segments: Sequence[tuple[int, int]], begin: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (first byte in the file, bytes) of the `size` bytes of a stored slice from `begin` on."""
    for offset, length in segments:
        if begin < length and size:
            taken = min(size, length - begin)
            yield offset + begin, taken
            begin, size = 0, size - taken
        else:
            begin -= length


def covering_slices(pieces: Sequence[StoredSlice], wanted: Box, prefer: int) -> list[tuple[StoredSlice, Box]]:
    """Return the stored slices that cover `wanted`, each with the part to read from it; among replicas that of the file
    `prefer`, or else the first. Raise ValueError if the slices leave a gap there, or overlap."""
    found: dict[Box, tuple[StoredSlice, Box]] = {}
    for piece in pieces:
        part = common_part(piece.box, wanted)
        if not part.size or (piece.box in found and piece.file != prefer):
            continue
        found[piece.box] = (piece, part)
    parts = list(found.values())
    if len(parts) == 1 and parts[0][1] == wanted:
        return parts
    if wanted.size:
        _check_cover([part for _, part in parts], wanted)
    return parts


def _check_cover(parts: Sequence[Box], wanted: Box) -> None:
    """Check that these boxes cover `wanted` exactly once, by the blocks into which their boundaries divide it."""
    cuts = [
        sorted({wanted.begin[d], wanted.end[d], *(p.begin[d] for p in parts), *(p.end[d] for p in parts)})
        for d in range(len(wanted.begin))
    ]
    shape = tuple(len(c) - 1 for c in cuts)
    if math.prod(shape) > MAX_BLOCKS:
        raise ValueError("its slices divide it into too many blocks")
    count = np.zeros(shape, np.uint16)
    places = [{at: i for i, at in enumerate(c)} for c in cuts]
    for part in parts:
        ends = zip(part.begin, part.end, places, strict=True)
        count[tuple(slice(place[b], place[e]) for b, e, place in ends)] += 1
    if count.min() == 0:
        first = tuple(int(i) for i in np.argwhere(count == 0)[0])
        raise ValueError(f"no slice holds element {[c[i] for c, i in zip(cuts, first, strict=True)]}")
    if count.max() > 1:
        raise ValueError("two of its slices overlap")


# Reading of tensors, or parts of them, by name in any format.
#
# Only the bytes of the requested part are read from the stored slices. If a slice is read completely, its checksum is
# verified.


MIN_READ_BYTES = 1 << 16
"""Minimum bytes of a run for reading; with shorter runs the file is memory-mapped and the part copied as an array."""


@dataclass(frozen=True)
class TensorPieces:
    """A tensor of a checkpoint: global type, stored slices, and layout as text."""

    type: TensorType
    pieces: tuple[StoredSlice, ...]
    layout: str = ""


@dataclass
class Checkpoint:
    """An open checkpoint.

    name: in messages. tensors: by name. state: of the saved run. texts: entries that are not tensors. prefer: the file
    whose replicas are read. ranks: number of writers, 0 if unknown. sequence: number of the set in its folder. headers:
    checksums of the files' headers in the index of a set, "" for none. is_sealed: the description of the tensors has
    verified checksums, or was not written by mspc; False for sets written before there were such checksums, or if they
    cannot be computed.
    """

    name: str
    files: Files
    tensors: Mapping[str, TensorPieces]
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    prefer: int = 0
    ranks: int = 0
    sequence: int = 0
    verify: bool = True
    headers: Sequence[str] = ()
    is_sealed: bool = True

    def header(self, number: int) -> Mapping[str, str]:
        """Return the entries of the header of a file of a set. Raise MspcError if its checksum differs from the
        index."""
        path, wanted = self.files.paths[number], self.headers[number] if self.headers else ""
        about = read_header(path)[0].about
        found = about.get(SEAL, "none")
        if wanted and found != wanted:
            raise MspcError(
                f"{shown_path(path)} is damaged: the checksum of its header is {found}, and the index has {wanted}",
                code="E0116",
            )
        return about

    def unchecked(self) -> list[str]:
        """Return the names of tensors with slices whose checksums are missing or cannot be computed here."""
        return [name for name, s in self.tensors.items() if not all(can_compare(p.checksum) for p in s.pieces)]

    def read(self, name: str, slices: Sequence[slice] | None = None) -> Any:
        """Return a tensor, or the part selected by slices without steps, as a new array. Raise KeyError if there is no
        such tensor, MspcError if its bytes cannot be read or are damaged."""
        stored = self.tensors[name]
        wanted = box_of(slices, stored.type.shape)
        parts = self._parts(name, wanted)
        array = np.empty(extent(wanted), stored.type.dtype.numpy)  # at most as large as its files
        for piece, part in parts:
            self._fill(name, array, wanted, piece, part)
        return array

    def _parts(self, name: str, wanted: Box) -> list[tuple[StoredSlice, Box]]:
        try:
            return covering_slices(self.tensors[name].pieces, wanted, self.prefer)
        except ValueError as error:
            raise MspcError(f"{self.name}: tensor {name!r} is incomplete: {error}") from None

    def _fill(self, name: str, array: Any, wanted: Box, piece: StoredSlice, part: Box) -> None:
        itemsize = array.itemsize
        target = memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")
        kind = piece.checksum.partition(":")[0]
        checks = self.verify and bool(piece.checksum) and part == piece.box
        running = start_checksum(kind) if checks else None
        length = run_length(part, piece.box, wanted)
        if length < part.size and length * itemsize < MIN_READ_BYTES and len(piece.segments) == 1:
            self._copy(array, wanted, piece, part, running)
        else:
            for run in runs(part, piece.box, wanted, itemsize):
                self._read(piece, run.source, target[run.target : run.target + run.size], running)
        if running is not None and shown(kind, running) != piece.checksum:
            path = shown_path(self.files.paths[piece.file])
            raise MspcError(
                f"{path} is damaged: the checksum of tensor {name!r} is {shown(kind, running)}, and {piece.checksum} "
                "was written", code="E0116"
            )

    def _read(self, piece: StoredSlice, begin: int, target: memoryview, running: RunningChecksum | None) -> None:
        at = 0
        for offset, size in file_ranges(piece.segments, begin, len(target)):
            for first in range(0, size, CHUNK_BYTES):
                some = target[at + first : at + min(first + CHUNK_BYTES, size)]
                self.files.read_into(piece.file, offset + first, some)
                if running is not None:
                    running.update(some)
            at += size
        if at != len(target):
            raise MspcError(
                f"{shown_path(self.files.paths[piece.file])} is damaged: a tensor ends before its shape", code="E0116"
            )

    def _copy(self, array: Any, wanted: Box, piece: StoredSlice, part: Box, running: RunningChecksum | None) -> None:
        """Copy a part of short runs from the memory-mapped file; only its pages are read."""
        offset, size = piece.segments[0]
        shape = extent(piece.box)
        stored = self.files.mapped(piece.file, offset, size)
        if running is not None:
            running.update(stored.data)
        here, there = part.within(piece.box), part.within(wanted)
        is_aligned = stored.ctypes.data % array.dtype.itemsize == 0 or not stored.size
        source = (stored if is_aligned else stored.copy()).view(array.dtype)
        array[_index(there)] = source.reshape(shape)[_index(here)]
        self.files.bytes_read += part.size * array.itemsize

    def verified(self) -> Iterator[tuple[str, str]]:
        """Read everything; yield (name of a file or tensor, its error or ""): first headers of a set's files, then
        tensors."""
        for number in range(len(self.headers)):
            wrong = ""
            try:
                self.header(number)
            except MspcError as error:
                wrong = error.message
            yield self.files.paths[number].name, wrong
        for name, stored in self.tensors.items():
            wrong = ""
            try:
                self._parts(name, box_of(None, stored.type.shape))
                for piece in stored.pieces:
                    room = np.empty(extent(piece.box), stored.type.dtype.numpy)
                    self._fill(name, room, piece.box, piece, piece.box)
            except MspcError as error:
                wrong = error.message
            yield name, wrong




def _index(box: Box) -> tuple[slice, ...]:
    return tuple(map(slice, box.begin, box.end))
