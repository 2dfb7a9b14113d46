"""Index maps: how operators that move elements describe the source of each element of a result.

A result consists of pieces. Within a piece, the position in an operand is, along each of its dimensions, an affine
function of the result's coordinates: `Place(4, ((1, -1),))` is 4 minus the coordinate along dimension 1. Slices,
concatenations, transposes, zero padding, reversals and repetition are of this form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mspc.ir.late_dataclass import dataclass

if TYPE_CHECKING:
    from mspc.ops.cuda.moves import Move

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Coordinate:
    """An affine coordinate: `offset` plus step * coordinate for every (dimension, step) in `terms`. Dimensions ascend,
    and steps are not 0."""

    offset: int = 0
    terms: tuple[tuple[int, int], ...] = ()

    def of(self, places: Sequence[Coordinate]) -> Coordinate:
        """Return the composition: its terms refer to dimensions whose coordinates are `places`."""
        found: dict[int, int] = {}
        offset = self.offset
        for d, step in self.terms:
            offset += step * places[d].offset
            for inner, more in places[d].terms:
                found[inner] = found.get(inner, 0) + step * more
        return Coordinate(offset, tuple(sorted((d, step) for d, step in found.items() if step)))

    def bounds(self, dims: Shape) -> tuple[int, int]:
        """Return the least and the largest value over all coordinates of a space of these dimensions."""
        reached = [step * (dims[d] - 1) for d, step in self.terms]
        return self.offset + sum(n for n in reached if n < 0), self.offset + sum(n for n in reached if n > 0)

    def always_in(self, begin: int, end: int, dims: Shape) -> bool:
        """Whether every value over such a space is in [begin, end)."""
        low, high = self.bounds(dims)
        return begin <= low and high < end

    def never_in(self, begin: int, end: int, dims: Shape) -> bool:
        """Whether none is."""
        low, high = self.bounds(dims)
        return high < begin or end <= low

    def divided(self, behind: int, dims: Shape) -> tuple[Coordinate, Coordinate] | None:
        """Return (quotient, remainder) of the coordinate divided by `behind` if both are affine, else None."""
        outer = tuple((d, step // behind) for d, step in self.terms if step % behind == 0)
        inner = tuple((d, step) for d, step in self.terms if step % behind)
        rest = Coordinate(self.offset % behind, inner)
        low, high = rest.bounds(dims)
        return (Coordinate(self.offset // behind, outer), rest) if 0 <= low and high < behind else None


def along(dim: int, step: int = 1, offset: int = 0) -> Coordinate:
    """Return the coordinate along one dimension."""
    return Coordinate(offset, ((dim, step),))


@dataclass(frozen=True, slots=True)
class IndexBlock:
    """Source of some elements: those with begin <= coordinate < end for every (dimension, begin, end) in `where`.
    operand: number of the operand. source: position along each of its dimensions."""

    operand: int
    source: tuple[Coordinate, ...]
    where: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class IndexMap:
    """Source positions of an operator's elements. dims: the dimensions that positions refer to: the result's, possibly
    split further. pieces: an element belongs to the first matching piece. covers: every element belongs to one; others
    are zeros."""

    dims: Shape
    pieces: tuple[IndexBlock, ...]
    covers: bool = True


def turned_round(shape: Shape, axes: Sequence[int]) -> IndexMap:
    """Return the map of a tensor of this shape with the order of its elements reversed along `axes`."""
    source = tuple(along(d, -1, n - 1) if d in axes else along(d) for d, n in enumerate(shape))
    return IndexMap(shape, (IndexBlock(0, source),))


def padded(shape: Shape, margins: Sequence[tuple[int, int]]) -> IndexMap:
    """Return the map of a tensor of this shape, operand 0, with (before, after) zeros around it along every
    dimension."""
    dims = tuple(before + n + after for n, (before, after) in zip(shape, margins, strict=True))
    source = tuple(along(d, 1, -before) for d, (before, _) in enumerate(margins))
    where = tuple((d, before, before + n) for d, (n, (before, after)) in enumerate(zip(shape, margins, strict=True))
                  if before or after)  # fmt: skip
    return IndexMap(dims, (IndexBlock(0, source, where),), covers=not where)


def flattened(places: Sequence[Coordinate], shape: Shape) -> Coordinate:
    """Return the place in a tensor of this shape, counted through all its elements."""
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    return Coordinate(0, tuple(enumerate(strides))).of(places)


def reshaped(places: Sequence[Coordinate], shape: Shape, target: Shape, dims: Shape) -> list[Coordinate] | None:
    """Return the coordinates in a tensor of shape `target` of elements given by their coordinates in a tensor of
    `shape`, with the same elements in the same order; None if they are not affine. dims: of the space that coordinates
    refer to."""
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
        steps = [math.prod(n for n, _ in taken[i + 1 :]) for i in range(len(taken))]
        found.append(Coordinate(0, tuple(enumerate(steps))).of([place for _, place in taken]))
    return found


def copies_of(map: IndexMap, inputs: Sequence[Any], out: Any) -> list[Move]:
    """Return the copies between GPU arrays that fill `out` by a map whose pieces cover it."""
    from mspc.ops.cuda.moves import Move, strides_of  # late: only a GPU needs it

    found: list[Move] = []
    target = strides_of(map.dims)
    for piece in map.pieces:
        begins, sizes = [0] * len(map.dims), list(map.dims)
        for d, begin, end in piece.where:
            begins[d], sizes[d] = begin, end - begin
        x = inputs[piece.operand]
        place = flattened(piece.source, x.shape)
        steps = dict(place.terms)
        strides = tuple(steps.get(d, 0) for d in range(len(sizes)))
        first = place.offset + sum(n * step for n, step in zip(begins, strides, strict=True))
        start = sum(n * step for n, step in zip(begins, target, strict=True))
        found.append(Move(x, out, tuple(sizes), strides, target, first, start))
    return found
