"""The pieces of a whole value, told apart by their products with a random vector."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

Array = Any
CLOSE = 1e-9
"""How far a product with a random vector may be off, relative to the size of what is multiplied."""
MOST_PIECES = 4096
FAR = 1e3
"""Numbers that are so many times the usual size, and so many times 1, as those that hide scores, count as no larger,
lest they hide the others."""


class Pieces:
    """The pieces of one shape of which a whole value is made. whole: with a leading dimension, of the places of ranks
    that have rows of their own. own: the shape."""

    def __init__(self, whole: Array, own: tuple[int, ...]) -> None:
        local = (1, *own)
        counts = [total // n for n, total in zip(local, whole.shape, strict=True)]
        split = whole.reshape([n for pair in zip(counts, local, strict=True) for n in pair])
        order = [2 * i for i in range(len(local))] + [2 * i + 1 for i in range(len(local))]
        rows = np.asarray(split.transpose(order).reshape(math.prod(counts), -1), np.float64)
        self.count, self.length = rows.shape
        self._most = FAR * max(_usual(rows), 1.0)
        rows = self._bounded(rows)
        self._vector = np.random.default_rng(self.count).standard_normal(self.length)
        with np.errstate(all="ignore"):
            self.sums = rows @ self._vector
        """The products of all pieces, in the order of the whole value's dimensions."""
        self.size = float(np.max(np.abs(rows), initial=0.0)) * math.sqrt(max(self.length, 1)) or 1.0

    @staticmethod
    def of(whole: Array, own: tuple[int, ...]) -> Pieces | None:
        """The pieces; None where a value is not made of such."""
        local = (1, *own)
        if len(local) != whole.ndim or any(not n or total % n for n, total in zip(local, whole.shape, strict=True)):
            return None
        count = math.prod(total // n for n, total in zip(local, whole.shape, strict=True))
        return Pieces(whole, own) if count <= MOST_PIECES else None

    def product(self, value: Array, depth: int) -> Array:
        """The products of what ranks have, with `depth` leading dimensions."""
        with np.errstate(all="ignore"):
            return self._bounded(value.reshape(*value.shape[:depth], -1)) @ self._vector

    def _bounded(self, array: Array) -> Array:
        return np.clip(array, -self._most, self._most)

    @cached_property
    def _ordered(self) -> Array:
        return np.sort(self.sums)

    def has(self, products: Array) -> Array:
        """Of all products whether they are some piece's."""
        ordered = self._ordered
        at = np.searchsorted(ordered, products)
        low, high = ordered[np.clip(at - 1, 0, len(ordered) - 1)], ordered[np.clip(at, 0, len(ordered) - 1)]
        return np.minimum(np.abs(products - low), np.abs(products - high)) <= CLOSE * self.size

    @cached_property
    def differ(self) -> bool:
        """Whether no two pieces are equal."""
        return len(self._ordered) == 1 or bool(np.min(np.diff(self._ordered)) > 2 * CLOSE * self.size)

    def numbers(self, products: Array) -> Array:
        """The numbers of the pieces that have these products."""
        return np.argmin(np.abs(products.reshape(-1, 1) - self.sums), 1).reshape(products.shape)

    def are_placed(self, products: Array) -> bool:
        """Whether ranks have the pieces as slices of a mesh: along each of its dimensions all the same, or each
        another. Pieces that are equal tell nothing."""
        if not self.differ:
            return True
        numbers = self.numbers(products)
        axes = [axis for axis in range(products.ndim) if not (numbers == np.take(numbers, [0], axis)).all()]
        return len(np.unique(numbers)) == math.prod(products.shape[axis] for axis in axes)


def _usual(rows: Array) -> float:
    """The size of the middle one of all numbers that are not 0."""
    sizes = np.abs(rows[np.isfinite(rows) & (rows != 0)])
    return float(np.median(sizes)) if sizes.size else 1.0


