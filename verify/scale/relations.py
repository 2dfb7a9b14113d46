"""Says what values of ranks are of one device's: slices, copies, or parts of sums.

A value of a rank is found among the pieces of one device's value by a product with a random vector, which tells pieces
apart; so no layout that a pass has chosen is trusted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.verify.scale.kinds import RankKind
from mspc.verify.scale.pieces import Pieces
from mspc.verify.scale.spread import widened

Array = Any
CLOSE = 1e-9
"""How close values are, relative to them, that are thought to be multiples of each other."""


@dataclass(frozen=True)
class Relation:
    """What a value of all ranks of a kind is. summed: dimensions of the ranks' mesh along which it has to be added up
    first. how: "sum", or "mean" where the sum has to be divided by the number of ranks. ranks: how many have a part of
    one sum. equal: these parts are equal. places: the number of the piece that every rank has, where it can be told."""

    summed: tuple[int, ...] = ()
    how: str = "sum"
    ranks: int = 1
    equal: bool = False
    places: Mapping[int, int] = field(default_factory=dict[int, int])

    @property
    def words(self) -> str:
        """A part of what it is; "" for a slice or a copy."""
        return f"a part of a {self.how} over {self.ranks} ranks" if self.summed else ""


def relation(value: Array, whole: Array, kind: RankKind, is_mean: bool = False) -> Relation | None:
    """What a value with leading dimensions is of a whole value; None: nothing that is known. is_mean: whether its
    operator takes means, which of parts are parts of a mean."""
    pieces = Pieces.of(whole, value.shape[kind.depth :])
    if pieces is None:
        return None
    wide_axes = [axis for axis, n in enumerate(kind.mesh) if n > 1]
    for count in range(len(wide_axes) + 1):
        for axes in itertools.combinations(wide_axes, count):
            ranks = math.prod(kind.mesh[axis] for axis in axes)
            total = added(value, kind, axes)
            ways = {"sum": total}
            if is_mean and axes:
                ways["mean"] = total / ranks
            for how, made in ways.items():
                products = pieces.product(made, kind.depth)
                if pieces.has(products).all() and pieces.are_placed(products):
                    equal = bool(axes) and all(value.shape[axis] == 1 for axis in axes)
                    return Relation(axes, how, ranks, equal, _places(pieces, products, kind))
    return None


def added(value: Array, kind: RankKind, axes: Sequence[int]) -> Array:
    """A value added up along some dimensions of the ranks' mesh."""
    lead = tuple(kind.mesh[a] if a in axes else value.shape[a] for a in range(kind.depth))
    return widened(value, lead).sum(tuple(axes), keepdims=True) if axes else value


def ranks_along(kind: RankKind, axes: Sequence[int]) -> list[int]:
    """The ranks along some dimensions of the mesh, with the first one."""
    found = [0]
    step = 1
    for axis in reversed(range(len(kind.mesh))):
        if axis in axes:
            found = [place + step * i for i in range(kind.mesh[axis]) for place in found]
        step *= kind.mesh[axis]
    return [kind.ranks[place] for place in sorted(found)]


def _places(pieces: Pieces, products: Array, kind: RankKind) -> dict[int, int]:
    if pieces.count == 1 or not pieces.differ:
        return {}
    numbers = np.broadcast_to(pieces.numbers(products), kind.mesh).reshape(-1).tolist()
    return dict(zip(kind.ranks, numbers, strict=True))


def scaled(value: Array, whole: Array, kind: RankKind) -> float | None:
    """The number by which a value is too large on all ranks that have a wrong one; None where there is no such number.
    """
    pieces = Pieces.of(whole, value.shape[kind.depth :])
    if pieces is None:
        return None
    products = pieces.product(value, kind.depth)
    right = pieces.has(products)
    if right.all():
        return None
    first = float(products[~right].flat[0])
    for factor in (first / w for w in pieces.sums[:64] if abs(w) > 1e-3 * pieces.size and math.isfinite(first)):
        near = round(factor) if abs(factor) >= 1 else 1 / round(1 / factor) if factor else 0
        if near not in (0, 1) and abs(factor - near) < 1e-6 * abs(near):
            if (right | pieces.has(pieces.product(value / near, kind.depth))).all():
                return float(near)
    return None


def likeness(value: Array, wanted: Array, kind: RankKind) -> str:
    """What a value would have to be added up or multiplied for to be what is wanted of every rank, in words; "" where
    nothing is found. Both have leading dimensions."""
    wide_axes = [axis for axis, n in enumerate(kind.mesh) if n > 1]
    for count in range(1, len(wide_axes) + 1):
        for axes in itertools.combinations(wide_axes, count):
            if np.allclose(added(value, kind, axes), wanted, CLOSE, 0):
                return f"it is a part of a sum over {math.prod(kind.mesh[axis] for axis in axes)} ranks"
    with np.errstate(all="ignore"):
        factors = np.asarray(value / wanted)
        factor = float(factors[np.isfinite(factors)].flat[0]) if np.isfinite(factors).any() else 0.0
    if factor and abs(factor - 1) > CLOSE and np.allclose(value, factor * wanted, CLOSE, 0):
        return f"it is the right value times {times(factor, kind)}"
    return ""


def times(factor: float, kind: RankKind) -> str:
    """A factor in words, with what may make it where it is the number of ranks along some dimensions."""
    ratio = max(abs(factor), 1 / abs(factor))
    said = f"{factor:g}" if abs(factor) >= 1 else f"1/{1 / factor:g}"
    sizes = {math.prod(axes) for n in range(len(kind.mesh)) for axes in itertools.combinations(kind.mesh, n + 1)}
    if factor < 0 or round(ratio) not in sizes:
        return said
    over = f"over {round(ratio)} ranks"
    return f"{said}: " + (
        f"a sum {over} is taken twice, or a mean is none" if factor > 1 else
        f"a mean {over} is taken twice, or a sum is none"
    )  # fmt: skip


def wrong_ranks(value: Array, whole: Array, kind: RankKind) -> tuple[int, ...]:
    """The ranks that have no piece of a value; all where each has one, and not that of its place."""
    pieces = Pieces.of(whole, value.shape[kind.depth :])
    assert pieces is not None
    right = np.broadcast_to(pieces.has(pieces.product(value, kind.depth)), kind.mesh).reshape(-1)
    return tuple(rank for rank, has in zip(kind.ranks, right, strict=True) if not has) or kind.ranks
