"""This module finds where the elements of a part of a tensor lie in the bytes of stored slices, by arithmetic alone.

A slice is stored row by row. The part of it that a reader wants is a box; its bytes are runs, each of elements that
follow each other both in the file and in the array that is filled.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.sharding.pieces import Box, common_part

MOST_BLOCKS = 1 << 22
"""Blocks of a tensor that are looked at one by one; no layout makes as many."""


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """A stored slice.

    box: its place in the global tensor. file: the number of its file. segments: (first byte, bytes) of its elements in
    the file, in order; one segment in most formats. checksum: of all of its bytes, "" for none.
    """

    box: Box
    file: int
    segments: tuple[tuple[int, int], ...]
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class ByteRun:
    """Bytes that are read together: where they begin in the stored slice, where in the array, and how many."""

    source: int
    target: int
    size: int


def box_of_shape(shape: Sequence[int]) -> Box:
    return Box((0,) * len(shape), tuple(shape))


def box_of(slices: Sequence[slice] | None, shape: Sequence[int]) -> Box:
    """The part of a tensor that an index of slices without steps names; None for all of it."""
    if slices is None:
        return box_of_shape(shape)
    ends = [s.indices(n) for s, n in zip(slices, shape, strict=True)]
    return Box(tuple(begin for begin, _, _ in ends), tuple(max(begin, end) for begin, end, _ in ends))


def box_at(layout: Layout | None, rank: int, shape: Sequence[int]) -> Box:
    """The slice that a rank holds of a tensor."""
    return box_of(None if layout is None else layout.slices_for(rank, shape), shape)


def extent(box: Box) -> tuple[int, ...]:
    """The shape of a box."""
    return tuple(end - begin for begin, end in zip(box.begin, box.end, strict=True))


def run_length(part: Box, stored: Box, target: Box) -> int:
    """Elements of every run of `part`, which lies in both boxes."""
    length = 1
    for n, s, t in zip(*(reversed(extent(box)) for box in (part, stored, target)), strict=True):
        length *= n
        if n != s or n != t:
            break
    return length


def runs(part: Box, stored: Box, target: Box, itemsize: int) -> Iterator[ByteRun]:
    """The runs of `part`, a box inside of the stored one and of the one that is filled, in the order of the file."""
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


def in_file(segments: Sequence[tuple[int, int]], begin: int, size: int) -> Iterator[tuple[int, int]]:
    """(first byte in the file, bytes) of `size` bytes of a stored slice from `begin` on."""
    for offset, length in segments:
        if begin < length and size:
            taken = min(size, length - begin)
            yield offset + begin, taken
            begin, size = 0, size - taken
        else:
            begin -= length


def chosen(pieces: Sequence[StoredSlice], wanted: Box, prefer: int) -> list[tuple[StoredSlice, Box]]:
    """The stored slices that make up `wanted`, each with the part that it gives; of replicas that of the file `prefer`,
    or else the first.

    Raises:
        ValueError: the slices leave a gap there, or some overlap.
    """
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
    """Whether these boxes fill `wanted`, each element once: by the blocks into which all their borders divide it."""
    cuts = [
        sorted({wanted.begin[d], wanted.end[d], *(p.begin[d] for p in parts), *(p.end[d] for p in parts)})
        for d in range(len(wanted.begin))
    ]
    shape = tuple(len(c) - 1 for c in cuts)
    if math.prod(shape) > MOST_BLOCKS:
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
