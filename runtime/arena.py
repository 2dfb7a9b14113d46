"""Assignment of arena offsets to blocks by live range: large blocks first, each in the tightest gap between the blocks
that are live at the same time. If the size is far from the lower bound, other orders are tried, each repeated with the
blocks that exceeded the bound moved to the front.

Input:  sizes and live ranges of blocks; some of them tied together at fixed distances. Output: an offset for every
block and the size of the arena.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType

GOOD_RATIO = 1.01
"""Ratio to the lower bound up to which an arena is accepted without trying other orders."""
FEW = 400
"""Number of blocks up to which every order is tried completely. For more blocks, alignment gaps count towards the
bound, an order stops once it cannot improve the best one, and only blocks seen so far are moved to the front."""

MAX_REPAIRS = 2
"""Maximum number of retries of an order with the blocks beyond the bound moved to the front."""
MAX_REPAIRED = 2000
"""Maximum number of blocks for which orders are repaired; the time of placement is quadratic in it."""

Array = Any


@dataclass
class MemoryBlock:
    """Memory that several values use one after the other.

    nbytes: size. reserved: bytes that nothing else may use while the block is live. start: index of the node that
    writes it first. on_side: that node runs on the second stream. free: index from which a node of the main stream may
    write to the memory. free_on_side: the same for the second stream. on_host: in host memory. tied: (group, distance
    from the group's start) for adjacent blocks.
    """

    nbytes: int
    start: int
    on_side: bool = False
    last: int = -1
    free: int = 0
    free_on_side: int = 0
    reserved: int = 0
    on_host: bool = False
    tied: tuple[int, int] | None = None
    offset: int = 0

    @property
    def life(self) -> tuple[int, ...]:
        """Key of the live range, equal for blocks with the same one."""
        return self.start, self.on_side, self.last, self.free, self.free_on_side


@dataclass
class ResultMemory:
    """Memory of one result of one node, which others may alias. accesses: ascending indices of nodes that read or write
    it; len(nodes) for the end of the step. pitch: see `Allocation`. parameter: the parameter whose memory it uses, or
    None. on_host: in host memory."""

    type: TensorType
    accesses: list[int]
    pitch: int = 0
    block: MemoryBlock | None = None
    parameter: Any = None
    on_host: bool = False

    @property
    def nbytes(self) -> int:
        shape = self.type.shape
        return self.type.nbytes // shape[-1] * self.pitch if self.pitch else self.type.nbytes


def _equal_lifetimes(several: Iterable[Iterable[ResultMemory]]) -> Iterator[list[MemoryBlock]]:
    """Yield, for each list of results, groups of two or more blocks with equal live ranges. A block belongs to the
    first list that contains it; tied blocks are excluded."""
    known: set[int] = set()
    for results in several:
        alike: dict[tuple[int, ...], list[MemoryBlock]] = {}
        for block in (result.block for result in results):
            if block is not None and block.tied is None and block.nbytes and id(block) not in known:
                known.add(id(block))
                alike.setdefault(block.life, []).append(block)
        yield from (blocks for blocks in alike.values() if len(blocks) > 1)


def assign_with_adjacent(
    blocks: Sequence[MemoryBlock], several: Iterable[Iterable[ResultMemory]], alignment: int
) -> int:  # fmt: skip
    """Set the offsets like `assign`, but place results of one list with equal live ranges next to each other, as one
    block, which takes less time. several: lists of results."""
    rows = [(replace(members[0]), members) for members in _equal_lifetimes(several)]
    for row, members in rows:
        row.nbytes = sum(_aligned(block.nbytes, alignment) for block in members)
    in_rows = {id(block) for _, members in rows for block in members}
    size = assign([*(block for block in blocks if id(block) not in in_rows), *(row for row, _ in rows)], alignment)
    for row, members in rows:
        for block in members:
            block.offset = row.offset
            row.offset += _aligned(block.nbytes, alignment)
    return size


def assign(blocks: Sequence[MemoryBlock], alignment: int) -> int:
    """Set the offsets of all blocks and return the size of the arena.

    Two blocks may share memory if one is free, for the stream of the other's first writer, when that writer runs.
    Offsets of groups, and of blocks that are not tied, are multiples of `alignment`.
    """
    alone = [b for b in blocks if b.tied is None and b.nbytes]
    groups: dict[int, list[MemoryBlock]] = {}
    for block in blocks:
        if block.tied is not None:
            groups.setdefault(block.tied[0], []).append(block)
    bound = peak_live_bytes(blocks)
    good = GOOD_RATIO * (bound if len(alone) <= FEW else peak_live_bytes(blocks, alignment))
    best: tuple[int, list[int]] | None = None
    # The members of a group are made one after the other: the early ones of a group do not overlap an earlier group if
    # that one is shifted upwards, so it is placed after it.
    late_first = sorted(groups.values(), key=lambda members: -min(m.start for m in members))
    tries = 1 + MAX_REPAIRS * (len(alone) <= MAX_REPAIRED)
    for order in ORDERS:
        ordered = sorted(alone, key=order)
        for _ in range(tries):
            placed = _Placed(alignment)
            for members in late_first:
                placed.add_group(members)
            beyond: set[int] = set()
            for block in ordered:
                placed.add(block)
                if block.offset + block.nbytes > bound:
                    beyond.add(id(block))
                if best is not None and placed.size >= best[0] and len(alone) > FEW:
                    break  # this order cannot improve on the best one
            if best is None or placed.size < best[0]:
                best = placed.size, [block.offset for block in blocks]
            if best[0] <= good:
                break
            ordered.sort(key=lambda block: id(block) not in beyond)
        if best[0] <= good:
            break
    assert best is not None
    for block, offset in zip(blocks, best[1], strict=True):
        block.offset = offset
    return best[0]


def peak_live_bytes(blocks: Sequence[MemoryBlock], alignment: int = 1) -> int:
    """Return the maximum live bytes while one node runs, a lower bound of the arena. alignment: sizes are rounded up to
    it."""
    change: dict[int, int] = {}
    for block in blocks:
        size = block.reserved or _aligned(block.nbytes, alignment)
        change[block.start] = change.get(block.start, 0) + size
        change[block.last + 1] = change.get(block.last + 1, 0) - size
    alive = most = 0
    for index in sorted(change):
        alive += change[index]
        most = max(most, alive)
    return most


ORDERS: tuple[Callable[[MemoryBlock], tuple[float, ...]], ...] = (
    lambda block: (-block.nbytes, block.start),
    lambda block: (-block.nbytes * (block.free - block.start), block.start),
    lambda block: (block.start - block.free, -block.nbytes, block.start),
    lambda block: (-math.sqrt(block.nbytes) * (block.free - block.start), block.start),
)
"""Orders in which blocks are placed: by size, by size times length of the live range, by length, and by length with
little weight on size."""


@dataclass
class _Placed:
    """Placed blocks, as columns sorted by offset."""

    alignment: int
    size: int = 0
    columns: Array = field(default_factory=lambda: np.zeros((6, 64), np.int64))
    count: int = 0

    def add(self, block: MemoryBlock) -> None:
        """Place a block in the tightest gap, or after all blocks that are live with it."""
        begins, ends = self._alive_with(block)
        size = _aligned(block.nbytes, self.alignment)
        if not len(begins):
            block.offset = 0
        else:
            # The free bytes after every block, up to the next one.
            tops = np.maximum.accumulate(ends)
            free = begins[1:] - tops[:-1]
            if begins[0] >= size:
                best, gap = 0, int(begins[0])
            else:
                best, gap = int(tops[-1]), 1 << 62
            if len(free):
                free[free < size] = 1 << 62
                place = int(free.argmin())
                if free[place] < gap:
                    best = int(tops[place])
            block.offset = best
        self._insert(block)

    def add_group(self, members: Sequence[MemoryBlock]) -> None:
        """Place blocks at fixed distances from one start, the lowest at which all of them are free."""
        base = self._lowest_for(members)
        for m in members:
            m.offset = base + (m.tied[1] if m.tied else 0)
            self._insert(m)

    def _lowest_for(self, members: Sequence[MemoryBlock]) -> int:
        """Return the lowest start of a group, 0 or the end of a block, at which no member overlaps a block live with
        it."""
        lows, highs = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for m in members:
            distance = m.tied[1] if m.tied else 0
            begins, ends = self._alive_with(m)
            lows.append(begins - distance - (m.reserved or m.nbytes))
            highs.append(ends - distance)
        # A start strictly between low and high of a block makes a member overlap that block.
        low, high = np.concatenate(lows), np.concatenate(highs)
        order = np.argsort(low)
        reach = np.maximum.accumulate(high[order])
        candidates = np.sort(np.append(self._aligned(np.maximum(high, 0)), 0))
        before = np.searchsorted(low[order], candidates, "left")
        meets = (before > 0) & (np.append(reach, 0)[before - 1] > candidates)
        return int(candidates[np.argmin(meets)])

    def _alive_with(self, block: MemoryBlock) -> tuple[Array, Array]:
        """Return (starts, ends) of the placed blocks that are live with `block`, by ascending start."""
        begins, ends, starts, free, free_on_side, on_side = self.columns[:, : self.count]
        alive = (free_on_side if block.on_side else free) > block.start
        if block.free == block.free_on_side:
            alive &= starts < block.free
        else:
            alive &= starts < np.where(on_side, block.free_on_side, block.free)
        (places,) = alive.nonzero()
        return begins.take(places), ends.take(places)

    def _insert(self, block: MemoryBlock) -> None:
        if self.count == self.columns.shape[1]:
            self.columns = np.concatenate([self.columns, np.zeros_like(self.columns)], axis=1)
        columns, count = self.columns, self.count
        end = block.offset + (block.reserved or block.nbytes)
        place = int(columns[0, :count].searchsorted(block.offset, "right"))
        if place < count:
            columns[:, place + 1 : count + 1] = columns[:, place:count]
        top = _aligned(end, self.alignment)
        columns[:, place] = (block.offset, top, block.start, block.free, block.free_on_side, block.on_side)
        self.count += 1
        self.size = max(self.size, end)

    def _aligned(self, size: Any) -> Any:
        return _aligned(size, self.alignment)


def _aligned(size: Any, alignment: int) -> Any:
    return -(-size // alignment) * alignment


def peak_bytes_by_class(
    cells: Sequence[ResultMemory], classes: Mapping[int, str], names: Sequence[str],
    others: Mapping[str, Sequence[MemoryBlock]],
) -> dict[str, int]:  # fmt: skip
    """Return the maximum live bytes of every class. A block belongs to the class of the latest result in it.

    classes: of results, by their numbers. others: blocks without results, by class.
    """
    alive: dict[str, list[MemoryBlock]] = {name: [*others.get(name, ())] for name in names}
    latest: dict[int, tuple[str, MemoryBlock]] = {}
    for number, cell in sorted(enumerate(cells), key=lambda item: item[1].accesses[0]):
        block = cell.block
        if block is None or cell.on_host:
            continue
        known = latest.get(id(block))
        if known is not None and known[0] == classes[number]:
            continue
        piece = MemoryBlock(block.nbytes, cell.accesses[0], last=block.last)
        if known is not None:
            known[1].last = piece.start - 1
        latest[id(block)] = classes[number], piece
        alive[classes[number]].append(piece)
    return {name: peak_live_bytes(pieces) for name, pieces in alive.items()}
