"""Finds by which whole numbers the dimensions of programs may be divided so that they stay the same programs.

Every dimension of every value has a divisor, a product of unknowns. Operators say by their rules which dimensions are
the same, and of which others one is made (a reshape); slices, joins and collectives change a dimension's size and leave
its divisor. An unknown divides all sizes and all offsets of the dimensions that it alone is the divisor of.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from dataclasses import field
from typing import Any

from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass

Product = tuple[int, ...]
"""Unknowns by their numbers; the product of none is 1."""
WANTED = (3, 4, 2, 5)
"""How many parts shall be left of a dimension, by turns, so that dimensions differ where they may."""

SOME = 8
"""From so many slices of a dimension on a slice has no more elements than it must."""
CROWDED = 4
"""So many times what goes each way in the mean goes none."""
SPARE = 8
"""So many standard deviations above it, of few."""
MANY = 16
"""From so many slices of a dimension on a slice may be one element."""


@dataclass
class Divisors:
    """The unknowns. frozen: those that are 1. one_way: rows that are routed have room where all go one way."""

    one_way: bool = False
    frozen: set[int] = field(default_factory=set[int])
    _is: dict[int, Product] = field(default_factory=dict[int, Product])
    """Unknowns that are a product of others."""
    _open: list[tuple[Product, Product]] = field(default_factory=list["tuple[Product, Product]"])
    """Products of several unknowns that are to be the same number."""
    _numbers: list[tuple[Product, int]] = field(default_factory=list["tuple[Product, int]"])
    _least: list[tuple[Product, int, int]] = field(default_factory=list["tuple[Product, int, int]"])
    """Of a size how much has to be left at least."""
    _roomy: list[tuple[Product, int, Product, int, int]] = field(
        default_factory=list["tuple[Product, int, Product, int, int]"]
    )
    """Of two sizes, of which the first has to have room for what goes there of the second once both are divided."""
    _count: int = 0

    def new(self) -> Product:
        """An unknown of its own."""
        self._count += 1
        return (self._count - 1,)

    def resolved(self, product: Product) -> Product:
        """The product in unknowns that are no product of others, without those that are 1."""
        if len(product) == 1 and product[0] not in self._is:  # as of most dimensions
            return () if product[0] in self.frozen else product
        return self._followed(product)

    @iterative
    def _followed(self, product: Product) -> Generator[Any, Product, Product]:
        found: list[int] = []
        for unknown in product:
            if unknown in self._is:
                own = self._is[unknown] = yield self, self._is[unknown]
                found += own
            elif unknown not in self.frozen:
                found.append(unknown)
        return tuple(found)

    def freeze(self, product: Iterable[int]) -> None:
        """Let a product be 1."""
        self.frozen.update(self.resolved(tuple(product)))

    def equal(self, one: Product, other: Product) -> None:
        """Let two products be the same number. Where both are of several unknowns, `settle` decides."""
        one, other = _without_common_ends(self.resolved(one), self.resolved(other))
        if one == other:
            return
        if len(one) == 1 and one[0] not in other:
            self._is[one[0]] = other
        elif len(other) == 1 and other[0] not in one:
            self._is[other[0]] = one
        else:
            self._open.append((one, other))

    def settle(self) -> None:
        """Decide on products of several unknowns that are the same number, those first that others have decided on: as
        many unknowns are the same one by one; of different numbers of them all are 1."""
        while self._open:
            before, self._open = self._open, []
            for one, other in before:
                self.equal(one, other)
            if len(self._open) < len(before):
                continue
            alike = next((pair for pair in self._open if len(pair[0]) == len(pair[1])), None)
            one, other = alike or self._open[0]
            self._open.remove((one, other))
            if alike is None:
                self.freeze((*one, *other))
            else:
                for a, b in zip(one, other, strict=True):
                    self.equal((a,), (b,))

    def divides(self, product: Product, number: int) -> None:
        """Let a product divide a number."""
        if number:
            self._numbers.append((product, number))

    def leaves(self, product: Product, number: int, least: int) -> None:
        """Let at least so much of a size be left."""
        self._least.append((product, number, least))

    def has_room(self, product: Product, number: int, other: Product, of: int, ways: int = 1) -> None:
        """Let what is left of a size have room for what goes there of what is left of another, if not by its own size:
        for all, or for many times what goes each way where all ways are alike."""
        self._roomy.append((product, number, other, of, ways))

    def values(self) -> dict[int, int]:
        """A number for every unknown: as large as may be with some parts left of each dimension."""
        self.settle()
        numbers: dict[int, int] = {}
        largest: dict[int, int] = {}
        several: list[tuple[Product, int]] = []
        for product, number in set(self._numbers):
            own = self.resolved(product)
            if len(own) == 1:
                numbers[own[0]] = math.gcd(numbers.get(own[0], 0), number)
                largest[own[0]] = max(largest.get(own[0], 0), number)
            elif own:
                several.append((own, number))
        found: dict[int, int] = {}
        for place, (unknown, number) in enumerate(sorted(numbers.items())):
            slices = largest[unknown] // number
            found[unknown] = number if slices >= MANY else number // _parts(number, place, slices >= SOME)
        for own, number in several:  # whatever numbers the unknowns have alone, together they divide this, too
            while number % math.prod(found.get(v, 1) for v in own):
                worst = max(own, key=lambda v: found.get(v, 1))
                found[worst] = _lesser(found.get(worst, 1))
        for product, number, least in self._least:
            self._lessen(product, found, number // least)
        for product, number, other, of, ways in self._roomy:
            rows = of // self.value(other, found)
            self._lessen(product, found, number // (rows if self.one_way else _room_for(rows, ways)))
        return found

    def _lessen(self, product: Product, found: dict[int, int], most: int) -> None:
        """Let a product be no more than a number, by lesser ones of its unknowns."""
        own = self.resolved(product)
        while own and math.prod(found.get(v, 1) for v in own) > max(most, 1):
            worst = max(own, key=lambda v: found.get(v, 1))
            found[worst] = _lesser(found[worst])

    def value(self, product: Product, values: dict[int, int]) -> int:
        """The number of a product."""
        return math.prod(values.get(unknown, 1) for unknown in self.resolved(product))


def _without_common_ends(one: Product, other: Product) -> tuple[Product, Product]:
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    return one, other


def _parts(number: int, place: int, few: bool) -> int:
    """How many parts of a number are left: a divisor of it that is small, and not 1 where another one is. few: 2 are
    as good as more."""
    wanted = (2, 3) if few else WANTED[place % len(WANTED) :] + WANTED[: place % len(WANTED)]
    for parts in wanted:
        if number % parts == 0:
            return parts
    return next((parts for parts in range(2, min(number, 4096) + 1) if number % parts == 0), number)


def _room_for(rows: int, ways: int) -> int:
    """The room that is left for rows that go one of some ways each: few do not go as evenly as many."""
    even = -(-rows // ways)
    return min(rows, max(CROWDED * even, even + SPARE * (math.isqrt(even) + 1)))


def _lesser(number: int) -> int:
    """The largest number below a number that divides it; 1 for 1."""
    for by in range(2, math.isqrt(number) + 1):
        if number % by == 0:
            return number // by
    return 1
