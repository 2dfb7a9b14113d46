"""Exchanges between two layouts on any two meshes: the boxes of a tensor that each rank sends to each other rank.

A source layout divides the tensor into a grid of blocks; every rank holds one block, and a block on several ranks has
replicas. The missing part of a rank's new slice is one box of each other block that intersects it, so that a rank
receives at most one box from any other. Partial values count as one more dimension, sharded by the partial axes.

All functions use integer arithmetic with mixed radices over the two meshes. The time for one rank's exchange is
proportional to the number of slices that intersect its block and its new slice, not to the square of the number of
ranks.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Axes, Layout, slice_index

Index = tuple[int, ...]
_EXACT = 512
"""Maximum number of readers of a block for which the sending replicas are assigned jointly, by distance and load."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box of the tensor: half-open range [begin, end) per dimension."""

    begin: Index
    end: Index

    @property
    def size(self) -> int:
        return math.prod(e - b for b, e in zip(self.begin, self.end, strict=True))

    def within(self, other: Box) -> Box:
        """Return the box in coordinates relative to the start of `other`."""
        shift = other.begin
        return Box(tuple(map(operator.sub, self.begin, shift)), tuple(map(operator.sub, self.end, shift)))


@dataclass(frozen=True, slots=True)
class RankExchange:
    """One rank's part of an exchange; boxes are in global coordinates.

    old, new: the boxes of the rank before and after. stays: the intersection of both, or None. sends, receives: (other
    rank, box), by ascending rank.
    """

    old: Box
    new: Box
    stays: Box | None
    sends: tuple[tuple[int, Box], ...]
    receives: tuple[tuple[int, Box], ...]


@dataclass(frozen=True, slots=True)
class _Grid:
    """A layout as a grid of equal blocks. dims[d]: mesh axes that shard dimension d of `shape`. block: shape of a
    block. strides: distance in rank numbers between neighbours along every axis. unused: axes that shard nothing, along
    which `replicas` ranks hold the same block."""

    mesh: tuple[int, ...]
    dims: tuple[Axes, ...]
    shape: tuple[int, ...]
    block: tuple[int, ...]
    strides: tuple[int, ...]
    unused: Axes
    replicas: int

    @staticmethod
    def of(mesh: tuple[int, ...], dims: tuple[Axes, ...], shape: tuple[int, ...]) -> _Grid:
        block = tuple(n // math.prod(mesh[a] for a in axes) for n, axes in zip(shape, dims, strict=True))
        strides = tuple(math.prod(mesh[a + 1 :]) for a in range(len(mesh)))
        unused = tuple(a for a in range(len(mesh)) if all(a not in axes for axes in dims))
        return _Grid(mesh, dims, shape, block, strides, unused, math.prod(mesh[a] for a in unused))

    def index(self, rank: int) -> Index:
        return slice_index(self.mesh, self.dims, rank)

    def box(self, index: Index) -> Box:
        begin = tuple(map(operator.mul, index, self.block))
        return Box(begin, tuple(map(operator.add, begin, self.block)))

    def intersecting(self, box: Box) -> list[range]:
        """Return, per dimension, the indices of the blocks that intersect `box`."""
        bounds = zip(box.begin, box.end, self.block, strict=True)
        return [range(b // n, (e - 1) // n + 1) for b, e, n in bounds]

    def holders(self, index: Index) -> tuple[int, ...]:
        ranks = [self._first_holder(index)]
        for a in self.unused:
            ranks = [r + i * self.strides[a] for r in ranks for i in range(self.mesh[a])]
        return tuple(ranks)

    def holder(self, index: Index, replica: int) -> int:
        """Return the rank at position `replica` among the ranks with block `index`."""
        rank = self._first_holder(index)
        for a in reversed(self.unused):
            replica, digit = divmod(replica, self.mesh[a])
            rank += digit * self.strides[a]
        return rank

    def replica(self, rank: int) -> int:
        found = 0
        for a in self.unused:
            found = found * self.mesh[a] + rank // self.strides[a] % self.mesh[a]
        return found

    def _first_holder(self, index: Index) -> int:
        rank = 0
        for i, axes in zip(index, self.dims, strict=True):
            for a in reversed(axes):
                i, digit = divmod(i, self.mesh[a])
                rank += digit * self.strides[a]
        return rank


@lru_cache(maxsize=4096)
def _grids(source: Layout, target: Layout, shape: tuple[int, ...]) -> tuple[_Grid, _Grid]:
    """Return both layouts as grids of one shape; partial values become a last dimension."""
    parts = source.size_of(source.partial)
    assert parts == target.size_of(target.partial), f"{source} and {target} are partial in unlike ways"
    if parts == 1:
        return _Grid.of(source.mesh, source.dims, shape), _Grid.of(target.mesh, target.dims, shape)
    shape = (*shape, parts)
    return (
        _Grid.of(source.mesh, (*source.dims, source.partial), shape),
        _Grid.of(target.mesh, (*target.dims, target.partial), shape),
    )


def rank_exchange(source: Layout, target: Layout, shape: tuple[int, ...], rank: int) -> RankExchange:
    """Return the boxes that `rank` keeps, sends and receives when a tensor of the global `shape` is redistributed from
    `source` to `target`.

    Every missing element is received once. Readers of a block are spread over its replicas; the nearest replica with
    free capacity serves a reader. Both layouts must have the same number of ranks and, if they are partial, of partial
    values.
    """
    before, after = _grids(source, target, shape)
    mine, new_index = before.index(rank), after.index(rank)
    old, new = before.box(mine), after.box(new_index)
    receives: list[tuple[int, Box]] = []
    for block in itertools.product(*before.intersecting(new)):
        if block != mine:
            receives.append((_sender(before, after, block, rank), common_part(before.box(block), new)))
    sends = [(r, common_part(old, after.box(after.index(r)))) for r in _served_by(before, after, mine, rank)]
    stays = common_part(old, new)
    dims = len(shape)
    return RankExchange(
        _first(old, dims),
        _first(new, dims),
        _first(stays, dims) if stays.size else None,
        tuple(sorted(((r, _first(b, dims)) for r, b in sends), key=lambda piece: piece[0])),
        tuple(sorted(((r, _first(b, dims)) for r, b in receives), key=lambda piece: piece[0])),
    )


def common_part(left: Box, right: Box) -> Box:
    """Return the intersection of two boxes: a box of size 0 if they do not overlap."""
    begin = tuple(map(max, left.begin, right.begin))
    return Box(begin, tuple(map(max, begin, map(min, left.end, right.end))))


def _first(box: Box, dims: int) -> Box:
    return box if len(box.begin) == dims else Box(box.begin[:dims], box.end[:dims])


def _readers(before: _Grid, after: _Grid, block: Index) -> Iterator[int]:
    """Yield all ranks whose new slices intersect a block, including its holders, by new slice and then by rank."""
    for index in itertools.product(*after.intersecting(before.box(block))):
        yield from after.holders(index)


def _readers_count(before: _Grid, after: _Grid, block: Index) -> int:
    return math.prod(map(len, after.intersecting(before.box(block)))) * after.replicas


def _sender(before: _Grid, after: _Grid, block: Index, reader: int) -> int:
    """Return the holder of `block` that sends `reader` its box."""
    if before.replicas == 1:
        return before.holder(block, 0)
    if _readers_count(before, after, block) <= _EXACT:
        return _senders(before, after, block)[reader]
    place = 0
    for i, r in zip(after.index(reader), after.intersecting(before.box(block)), strict=True):
        place = place * len(r) + i - r.start
    return before.holder(block, (place * after.replicas + after.replica(reader)) % before.replicas)


def _served_by(before: _Grid, after: _Grid, block: Index, sender: int) -> Iterator[int]:
    """Yield the readers that receive their box of `block` from its holder `sender`; see `_sender`.

    More than `_EXACT` readers are assigned to the holders round-robin.
    """
    replicas = before.replicas
    if replicas > 1 and _readers_count(before, after, block) <= _EXACT:
        yield from (reader for reader, by in _senders(before, after, block).items() if by == sender)
        return
    turn = before.replica(sender)
    for reader in itertools.islice(_readers(before, after, block), turn, None, replicas):
        if before.index(reader) != block:
            yield reader


@lru_cache(maxsize=16384)
def _senders(before: _Grid, after: _Grid, block: Index) -> dict[int, int]:
    """Map every reader that lacks `block` to the holder that sends it: the nearest with free capacity.

    Ranks are near if their numbers differ in low bits only: they share a host of 2, 4, 8, ... ranks.
    """
    holders = before.holders(block)
    readers = sorted(rank for rank in _readers(before, after, block) if before.index(rank) != block)
    room = dict.fromkeys(holders, -(-len(readers) // len(holders)))
    found: dict[int, int] = {}
    for reader in readers:
        sender = min(room, key=reader.__xor__)
        found[reader] = sender
        room[sender] -= 1
        if not room[sender]:
            del room[sender]
    return found


def missing_elements(source: Layout, target: Layout, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (missing elements, messages) of a redistribution.

    Missing elements: elements of their new slices that the ranks do not hold yet, summed over all ranks. Any sequence
    of collectives sends at least this many; an exchange sends exactly this many. Messages: the maximum number of blocks
    from which one rank needs a box.
    """
    if 0 in shape:
        return 0, 0
    before, after = _grids(source, target, shape)
    ranks = source.ranks
    held: Any = 1
    blocks: Any = 1
    for d, n in enumerate(before.shape):
        if not before.dims[d] and not after.dims[d]:
            held = held * n
            continue
        a, b = before.block[d], after.block[d]
        old = _indices(before.mesh, before.dims[d]) * a
        new = _indices(after.mesh, after.dims[d]) * b
        held = held * np.maximum(np.minimum(old + a, new + b) - np.maximum(old, new), 0)
        blocks = blocks * ((new + b - 1) // a - new // a + 1)
    missing = ranks * math.prod(after.block) - _total(held, ranks)
    if not missing:
        return 0, 0
    return missing, int(np.max(blocks - (held > 0)))


def _total(values: Any, ranks: int) -> int:
    return int(values.sum()) if isinstance(values, np.ndarray) else int(values) * ranks


@lru_cache(maxsize=4096)
def _indices(mesh: tuple[int, ...], axes: Axes) -> Any:
    """Return an array with every rank's index along a dimension sharded by `axes`."""
    ranks = np.arange(math.prod(mesh))
    found = np.zeros_like(ranks)
    for a in axes:
        found = found * mesh[a] + ranks // math.prod(mesh[a + 1 :]) % mesh[a]
    return found


def spans_one_dimension(boxes: Sequence[Box], global_box: Box) -> int | None:
    """Return the only dimension along which `boxes` differ from `global_box`, or None if there is not exactly one."""
    dims = range(len(global_box.begin))
    unlike = [d for d in dims if any((b.begin[d], b.end[d]) != (global_box.begin[d], global_box.end[d]) for b in boxes)]
    return unlike[0] if len(unlike) == 1 else None
