"""A checkpoint that is open for reading gives tensors by name, and parts of them, whatever its format.

A reader gets the part that it wants out of the stored slices that meet it, and no other byte of them is read. Where
all of a slice is read its checksum is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from mspc.checkpoint.checksum import AT_ONCE, Running, can_compare, shown, started
from mspc.checkpoint.files import Files, read_header
from mspc.checkpoint.pieces import StoredSlice, box_of, chosen, extent, in_file, run_length, runs
from mspc.checkpoint.seal import SEAL
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import shown_path
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.sharding.pieces import Box

SHORT = 1 << 16
"""Bytes of a run below which a file is mapped into memory, and a slice copied from there as an array."""


@dataclass(frozen=True)
class TensorPieces:
    """A tensor of a checkpoint: its global type, the slices that are stored of it, and its layout, as text."""

    type: TensorType
    pieces: tuple[StoredSlice, ...]
    layout: str = ""


@dataclass
class Checkpoint:
    """An open checkpoint.

    name: what messages call it. tensors: by name. state: of the run that was saved. texts: entries that are no
    tensors. prefer: the file whose replicas this reader takes. ranks: that have written it, 0 where that is unknown.
    sequence: the number of the set among those of its folder. headers: of the files of a set, the checksum that the
    index has of their headers, "" for none. is_sealed: whether what describes the tensors has checksums of its own, or
    is not written by mspc; False for what mspc wrote before it had them, or where they cannot be computed.
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
        """What the header of a file of a set says about it. Raises MspcError where it is not as the index has it."""
        path, wanted = self.files.paths[number], self.headers[number] if self.headers else ""
        about = read_header(path)[0].about
        found = about.get(SEAL, "none")
        if wanted and found != wanted:
            raise MspcError(
                f"{shown_path(path)} is damaged: the checksum of its header is {found}, and the index has {wanted}"
            )
        return about

    def unchecked(self) -> list[str]:
        """The names of tensors with slices whose checksums cannot be compared: there are none, or of a kind that cannot
        be computed here."""
        return [name for name, s in self.tensors.items() if not all(can_compare(p.checksum) for p in s.pieces)]

    def read(self, name: str, slices: Sequence[slice] | None = None) -> Any:
        """A tensor, or the part that slices without steps name, as an array of its own.

        Raises:
            KeyError: there is no such tensor. MspcError: its bytes cannot be read, or are not those that were written.
        """
        stored = self.tensors[name]
        wanted = box_of(slices, stored.type.shape)
        parts = self._parts(name, wanted)
        array = np.empty(extent(wanted), stored.type.dtype.numpy)  # no larger than its files
        for piece, part in parts:
            self._fill(name, array, wanted, piece, part)
        return array

    def _parts(self, name: str, wanted: Box) -> list[tuple[StoredSlice, Box]]:
        try:
            return chosen(self.tensors[name].pieces, wanted, self.prefer)
        except ValueError as error:
            raise MspcError(f"{self.name}: tensor {name!r} is incomplete: {error}") from None

    def _fill(self, name: str, array: Any, wanted: Box, piece: StoredSlice, part: Box) -> None:
        itemsize = array.itemsize
        target = memoryview(array.reshape(-1).view(np.uint8)) if array.size else memoryview(b"")
        kind = piece.checksum.partition(":")[0]
        checks = self.verify and bool(piece.checksum) and part == piece.box
        running = started(kind) if checks else None
        length = run_length(part, piece.box, wanted)
        if length < part.size and length * itemsize < SHORT and len(piece.segments) == 1:
            self._copy(array, wanted, piece, part, running)
        else:
            for run in runs(part, piece.box, wanted, itemsize):
                self._read(piece, run.source, target[run.target : run.target + run.size], running)
        if running is not None and shown(kind, running) != piece.checksum:
            path = shown_path(self.files.paths[piece.file])
            raise MspcError(
                f"{path} is damaged: the checksum of tensor {name!r} is {shown(kind, running)}, and {piece.checksum} "
                "was written"
            )

    def _read(self, piece: StoredSlice, begin: int, target: memoryview, running: Running | None) -> None:
        at = 0
        for offset, size in in_file(piece.segments, begin, len(target)):
            for first in range(0, size, AT_ONCE):
                some = target[at + first : at + min(first + AT_ONCE, size)]
                self.files.read_into(piece.file, offset + first, some)
                if running is not None:
                    running.update(some)
            at += size
        if at != len(target):
            raise MspcError(f"{shown_path(self.files.paths[piece.file])} is damaged: a tensor ends before its shape")

    def _copy(self, array: Any, wanted: Box, piece: StoredSlice, part: Box, running: Running | None) -> None:
        """A part of short runs, from the file's pages; only the pages that it lies on are looked at."""
        offset, size = piece.segments[0]
        shape = extent(piece.box)
        stored = self.files.mapped(piece.file, offset, size)
        if running is not None:
            running.update(stored.data)
        here, there = part.within(piece.box), part.within(wanted)
        source = stored.view(array.dtype) if _aligned(stored, array.dtype) else stored.copy().view(array.dtype)
        array[_index(there)] = source.reshape(shape)[_index(here)]
        self.files.bytes_read += part.size * array.itemsize

    def verified(self) -> Iterator[tuple[str, str]]:
        """Reads everything; (name of a file or of a tensor, what is wrong with it, "" where nothing is) one after
        another: files of a set for their headers, then tensors."""
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


def _aligned(stored: Any, dtype: Any) -> bool:
    return stored.ctypes.data % dtype.itemsize == 0 or not stored.size


def _index(box: Box) -> tuple[slice, ...]:
    return tuple(map(slice, box.begin, box.end))
