"""Memory orders of a value's elements that differ from its shape: an image with channels last, or with its channel
groups split.

An order describes the stored tensor, dimension by dimension. Operators declare how they work on such tensors
(`Op.reordered`), and the pass channels_last queries them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from mspc.ir.late_dataclass import dataclass

Shape = tuple[int, ...]


class DimensionPart(NamedTuple):
    """A dimension of the stored tensor: part `number` of dimension `dim` of the value, with `size` positions. A
    dimension of size 12 may have parts of sizes 3 and 4, with numbers 0 and 1: index 7 is then index 1 of one and index
    3 of the other."""

    dim: int
    number: int
    size: int


@dataclass(frozen=True, slots=True)
class MemoryOrder:
    """parts: dimensions of the stored tensor, in order. Those of size 1 may be parts of any dimension or of none, and a
    dimension of size 1 may have no part. rank: number of dimensions of the value."""

    parts: tuple[DimensionPart, ...]
    rank: int

    @classmethod
    def of(cls, shape: Shape, dims: Iterable[int] | None = None) -> MemoryOrder:
        """Return the order of a value of this shape whose dimensions are stored in the order `dims`, by default in
        their own."""
        return cls(
            tuple(DimensionPart(d, 0, shape[d]) for d in (range(len(shape)) if dims is None else dims)), len(shape)
        )

    @property
    def stored(self) -> Shape:
        """The shape of the stored tensor."""
        return tuple(part.size for part in self.parts)

    @property
    def shape(self) -> Shape:
        """The shape of the value."""
        return tuple(math.prod(part.size for part in self.of_dim(d)) for d in range(self.rank))

    @property
    def memory(self) -> tuple[DimensionPart, ...]:
        """Return a key that is equal for all orders with the same arrangement in memory: the fewest parts, none of size
        1."""
        runs: list[list[DimensionPart]] = []
        for part in (part for part in self.parts if part.size != 1):
            if runs and self._follows(runs[-1][-1], part):
                runs[-1].append(part)
            else:
                runs.append([part])
        first = sorted((run[0].dim, run[0].number) for run in runs)
        numbers = {key: i for _, group in groupby(first, key=lambda key: key[0]) for i, key in enumerate(group)}
        return tuple(
            DimensionPart(run[0].dim, numbers[run[0].dim, run[0].number], math.prod(part.size for part in run))
            for run in runs
        )

    @property
    def is_plain(self) -> bool:
        """Whether the elements are in the order of the value's own dimensions."""
        found = [(part.dim, part.number) for part in self.parts if part.size != 1]
        return found == sorted(found)

    def of_dim(self, dim: int) -> list[DimensionPart]:
        """Return the parts of a dimension, major first."""
        return sorted(part for part in self.parts if part.dim == dim)

    def _follows(self, part: DimensionPart, next: DimensionPart) -> bool:
        between = range(part.number + 1, next.number)
        return part.dim == next.dim and part.number < next.number and all(
            other.size == 1 for other in self.parts if other.dim == part.dim and other.number in between
        )  # fmt: skip

    @property
    def steps(self) -> Shape:
        """Return the distance of one place along every dimension of the stored tensor, in elements of the value in its
        own order."""
        found: dict[DimensionPart, int] = {}
        step = 1
        for dim in reversed(range(self.rank)):
            for part in reversed(self.of_dim(dim)):
                found[part] = step
                step *= part.size
        return tuple(found.get(part, 0) for part in self.parts)

    # How operators change it ------------------------------------------------------------------------------------

    def place(self, dim: int) -> int | None:
        """Return the dimension of the stored tensor that is dimension `dim` of the value; None if it has several
        parts."""
        found = [place for place, part in enumerate(self.parts) if part.dim == dim]
        return found[0] if len(found) == 1 else None

    def places(self, dims: Iterable[int]) -> Shape:
        """Return the dimensions of the stored tensor that make up these dimensions of the value."""
        wanted = set(dims)
        return tuple(place for place, part in enumerate(self.parts) if part.dim in wanted)

    def permuted(self, values: Sequence[Any]) -> tuple[Any, ...] | None:
        """Reorder `values`, one for every dimension of the value, to the stored tensor's dimensions; None if one has
        several parts."""
        dims = [part.dim for part in self.parts]
        return tuple(values[d] for d in dims) if len(dims) == self.rank else None

    def resized(self, dim: int, size: int) -> MemoryOrder:
        """Return the order of a value with another size along a dimension of one part."""
        return replace(self, parts=tuple(part._replace(size=size) if part.dim == dim else part for part in self.parts))

    def ones(self, dims: Iterable[int]) -> MemoryOrder:
        """Return the order of a value with one place along these dimensions."""
        wanted = set(dims)
        return replace(self, parts=tuple(p._replace(size=1) if p.dim in wanted else p for p in self.parts))

    def without(self, dims: Iterable[int]) -> MemoryOrder:
        """Return the order of a value without these dimensions."""
        gone = set(dims)
        left = [d for d in range(self.rank) if d not in gone]
        return MemoryOrder(tuple(p._replace(dim=left.index(p.dim)) for p in self.parts if p.dim not in gone), len(left))

    def transposed(self, perm: Sequence[int]) -> MemoryOrder:
        """Return the order of the value whose dimension d is dimension perm[d] of this one, in the same memory."""
        return MemoryOrder(tuple(part._replace(dim=perm.index(part.dim)) for part in self.parts), self.rank)

    def operand(self, shape: Shape) -> MemoryOrder | None:
        """Return the order of an operand of this shape that is broadcast to the value, aligned by its last dimensions;
        its stored tensor is broadcast to the stored value in the same way."""
        lead, own = self.rank - len(shape), self.shape
        if shape == own:
            return self
        if math.prod(shape) == 1:
            return MemoryOrder.of(shape)
        if lead < 0 or any(n not in (1, own[d + lead]) for d, n in enumerate(shape)):
            return None
        held = {d + lead for d, n in enumerate(shape) if n != 1}
        parts = [DimensionPart(p.dim - lead, p.number, p.size if p.dim in held else 1) for p in self.parts]
        while parts[0].size == 1:
            del parts[0]
        return MemoryOrder(tuple(parts), len(shape))

    def view(self, shape: Shape) -> MemoryOrder | None:
        """Return the order of the reshaped value in the same memory; None if the reshape divides dimensions inside a
        part."""
        if 0 in shape:
            return None
        waiting = [(part.size, part) for d in range(self.rank) for part in self.of_dim(d) if part.size != 1]
        cut: dict[DimensionPart, list[DimensionPart]] = {}
        for dim, size in enumerate(shape):
            number = 0
            while size != 1:
                if not waiting:
                    return None
                left, source = waiting.pop(0)
                taken = math.gcd(left, size)
                if taken != min(left, size):
                    return None
                if taken != left:
                    waiting.insert(0, (left // taken, source))
                cut.setdefault(source, []).append(DimensionPart(dim, number, taken))
                number, size = number + 1, size // taken
        parts = [piece for part in self.parts if part.size != 1 for piece in cut[part]]
        parts += [DimensionPart(d, 0, 1) for d, n in enumerate(shape) if n == 1]
        return MemoryOrder(tuple(parts), len(shape))

    def refined(self, other: MemoryOrder) -> tuple[MemoryOrder, MemoryOrder] | None:
        """Return both orders of one value with equal parts of every dimension, or None."""
        mine: list[DimensionPart] = []
        theirs: list[DimensionPart] = []
        for dim in range(self.rank):
            places = _divisions(self.of_dim(dim)) | _divisions(other.of_dim(dim))
            pairs = list(pairwise(sorted(places)))
            if any(b % a for a, b in pairs):
                return None
            sizes = [b // a for a, b in reversed(pairs)]
            for order, found in ((self, mine), (other, theirs)):
                numbers = iter(enumerate(sizes))
                for part in order.of_dim(dim):
                    left = part.size
                    while left != 1:
                        number, size = next(numbers)
                        found.append(DimensionPart(dim, number, size))
                        left //= size
        return self._in_parts(mine), other._in_parts(theirs)

    def _in_parts(self, finer: Sequence[DimensionPart]) -> MemoryOrder:
        """Return the same order with its dimensions in these parts."""
        waiting = {dim: list(group) for dim, group in groupby(finer, key=lambda part: part.dim)}
        taken: dict[DimensionPart, list[DimensionPart]] = {}
        for dim in range(self.rank):
            for part in self.of_dim(dim):
                left = part.size
                while left != 1:
                    taken.setdefault(part, []).append(waiting[dim].pop(0))
                    left //= taken[part][-1].size
        return MemoryOrder(tuple(piece for part in self.parts for piece in taken.get(part, [])), self.rank)


@dataclass(frozen=True, slots=True)
class Reordered:
    """How an operator works on operands in other orders. op: operator on the stored tensors; None if the result is a
    reshape of operand 0, so that nothing has to run. operands: orders in which it reads them. results: orders of its
    results. continues: readers of a result use its order; else the result is converted back to the order of its
    shape."""

    op: Any
    operands: tuple[MemoryOrder, ...]
    results: tuple[MemoryOrder, ...]
    continues: bool = True


def _divisions(parts: Sequence[DimensionPart]) -> set[int]:
    """Return the products of the sizes of a dimension's last parts: the positions at which it can be divided."""
    found, behind = {1}, 1
    for part in reversed(parts):
        behind *= part.size
        found.add(behind)
    return found
