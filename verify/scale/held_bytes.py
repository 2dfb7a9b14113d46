"""Bytes of an arena: whose they are at a moment, who wrote them, and who has read them since."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator
from dataclasses import field

from mspc.ir.late_dataclass import dataclass

Access = tuple[int, str]
"""The place of a node in its program, and its stream."""


@dataclass
class OwnedBytes:
    """Bytes from `begin` to `end` that hold `owner`. readers: by stream the last that reads them."""

    begin: int
    end: int
    owner: Hashable
    writer: Access
    readers: dict[str, int] = field(default_factory=dict[str, int])

    def accesses(self) -> Iterator[Access]:
        """All that have touched them, of each stream the last."""
        yield self.writer
        for stream, index in self.readers.items():
            yield index, stream


class HeldBytes:
    """The pieces that are held, by their begins."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._pieces: list[OwnedBytes] = []

    def over(self, begin: int, end: int) -> list[OwnedBytes]:
        """The pieces that have some of these bytes."""
        first = max(bisect_right(self._begins, begin) - 1, 0)
        return [p for p in self._pieces[first : bisect_left(self._begins, end)] if p.begin < end and begin < p.end]

    def write(self, begin: int, end: int, owner: Hashable, writer: Access) -> None:
        """Let these bytes hold something else from now on; what is left of pieces that they were of is kept."""
        if begin >= end:
            return
        first = max(bisect_right(self._begins, begin) - 1, 0)
        last = bisect_left(self._begins, end)
        if first < last and self._pieces[first].end <= begin:
            first += 1
        left: list[OwnedBytes] = []
        for piece in self._pieces[first:last]:
            if piece.begin < begin:
                left.append(OwnedBytes(piece.begin, begin, piece.owner, piece.writer, dict(piece.readers)))
            if piece.end > end:
                left.append(OwnedBytes(end, piece.end, piece.owner, piece.writer, dict(piece.readers)))
        made = sorted([*left, OwnedBytes(begin, end, owner, writer)], key=lambda piece: piece.begin)
        self._pieces[first:last] = made
        self._begins[first:last] = [piece.begin for piece in made]
