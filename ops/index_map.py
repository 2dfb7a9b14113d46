"""How operators that move elements say where each element of a result comes from.

A result is made of pieces. Within a piece the place in an operand is, along each of its dimensions, a sum of steps
along the dimensions of the result: `Place(4, ((1, -1),))` is 4 minus the coordinate along dimension 1. Slices, joins,
transposes, margins of zeros, reversals and repetition all are of this kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mspc.ir.late_dataclass import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A coordinate: `offset`, and for every (dimension, step) in `terms` so many steps of a coordinate there.

    Dimensions ascend, and none has step 0.
    """

    offset: int = 0
    terms: tuple[tuple[int, int], ...] = ()

    def of(self, places: Sequence[Coordinate]) -> Coordinate:
        """The same coordinate where those that it is made of are these places themselves."""
        found: dict[int, int] = {}
        offset = self.offset
        for d, step in self.terms:
            offset += step * places[d].offset
            for inner, more in places[d].terms:
                found[inner] = found.get(inner, 0) + step * more
        return Coordinate(offset, tuple(sorted((d, step) for d, step in found.items() if step)))

    def bounds(self, dims: Shape) -> tuple[int, int]:
        """The least and the largest value, where coordinates run over a space of these dimensions."""
        reached = [step * (dims[d] - 1) for d, step in self.terms]
        return self.offset + sum(n for n in reached if n < 0), self.offset + sum(n for n in reached if n > 0)

    def always_in(self, begin: int, end: int, dims: Shape) -> bool:
        """Whether every value, over such a space, is from `begin` on and before `end`."""
        low, high = self.bounds(dims)
        return begin <= low and high < end

    def never_in(self, begin: int, end: int, dims: Shape) -> bool:
        """Whether none is."""
        low, high = self.bounds(dims)
        return high < begin or end <= low

    def divided(self, behind: int, dims: Shape) -> tuple[Coordinate, Coordinate] | None:
        """(quotient, rest) of the coordinate by `behind`, where both are such sums; None if they are not."""
        outer = tuple((d, step // behind) for d, step in self.terms if step % behind == 0)
        inner = tuple((d, step) for d, step in self.terms if step % behind)
        rest = Coordinate(self.offset % behind, inner)
        low, high = rest.bounds(dims)
        return (Coordinate(self.offset // behind, outer), rest) if 0 <= low and high < behind else None


def along(dim: int, step: int = 1, offset: int = 0) -> Coordinate:
    """The coordinate along one dimension."""
    return Coordinate(offset, ((dim, step),))


@dataclass(frozen=True, slots=True)
class IndexBlock:
    """Where elements of operand number `operand` are: for every (dimension, begin, end) in `where` the result's
    coordinate is at `begin` or after it, and before `end`. source: the place along each dimension of the operand."""

    operand: int
    source: tuple[Coordinate, ...]
    where: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class IndexMap:
    """The places of an operator's elements.

    dims: the dimensions that places speak of: the result's, each of which may be divided further. pieces: an element is
    of the first one that has its place. covers: whether every place is in one; zeros are elsewhere.
    """

    dims: Shape
    pieces: tuple[IndexBlock, ...]
    covers: bool = True


def turned_round(shape: Shape, axes: Sequence[int]) -> IndexMap:
    """A tensor of this shape with the order of its elements turned round along `axes`."""
    source = tuple(along(d, -1, n - 1) if d in axes else along(d) for d, n in enumerate(shape))
    return IndexMap(shape, (IndexBlock(0, source),))


def padded(shape: Shape, margins: Sequence[tuple[int, int]]) -> IndexMap:
    """A tensor of this shape as operand 0 with (before, after) zeros around it along every dimension."""
    dims = tuple(before + n + after for n, (before, after) in zip(shape, margins, strict=True))
    source = tuple(along(d, 1, -before) for d, (before, _) in enumerate(margins))
    where = tuple((d, before, before + n) for d, (n, (before, after)) in enumerate(zip(shape, margins, strict=True))
                  if before or after)  # fmt: skip
    return IndexMap(dims, (IndexBlock(0, source, where),), covers=not where)


def flattened(places: Sequence[Coordinate], shape: Shape) -> Coordinate:
    """The place in a tensor of this shape, counted through all its elements."""
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    return Coordinate(0, tuple(enumerate(strides))).of(places)


def reshaped(places: Sequence[Coordinate], shape: Shape, target: Shape, dims: Shape) -> list[Coordinate] | None:
    """The coordinates in a tensor of shape `target` of what lies at these places in one of `shape`, which has the same
    elements in the same order; None if they are no sums of steps. dims: of the space that places speak of."""
    left = [(n, place) for n, place in zip(shape, places, strict=True) if n != 1]
    found: list[Coordinate] = []
    for wanted in target:
        size, taken = 1, list[tuple[int, Coordinate]]()
        while size < wanted:
            n, place = left.pop(0)
            if wanted % (size * n):
                most = wanted // size
                parts = place.divided(n // most, dims) if n % most == 0 else None
                if parts is None:
                    return None
                left.insert(0, (n // most, parts[1]))
                n, place = most, parts[0]
            size *= n
            taken.append((n, place))
        found.append(_joined(taken))
    return found


def _joined(parts: Sequence[tuple[int, Coordinate]]) -> Coordinate:
    """The coordinate along a dimension that is made of several, which have so many elements."""
    steps = [math.prod(n for n, _ in parts[i + 1 :]) for i in range(len(parts))]
    return Coordinate(0, tuple(enumerate(steps))).of([place for _, place in parts])
