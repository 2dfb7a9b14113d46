"""This module finds where a rank's slice lies of the random numbers that are drawn for the rows of the global batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Protocol, Self, TypeGuard

from mspc.ops.op import Op

Shape = tuple[int, ...]


def place_of_rows(
    shape: Sequence[int], rows: Sequence[int], rank: int, ranks: int
) -> tuple[Shape, Shape, Shape]:
    """(global shape, where the rank's slice begins, the slice's shape) of a tensor in which every rank has its own
    rows.

    Args:
        shape: of a rank's tensor. rows: (dimension, outer): the dimension holds `outer` equal parts, each of which
        begins with rows of the batch, so that one device has those of all ranks there. With more than one part the
        dimension becomes two, (outer, rest), in all that is returned.
    """
    dimension, outer = rows
    size = shape[dimension]
    parts = (outer,) if outer > 1 else ()
    rest = size // outer
    ahead, behind = tuple(shape[:dimension]), tuple(shape[dimension + 1 :])
    return (
        (*ahead, *parts, rest * ranks, *behind),
        (*(0 for _ in (*ahead, *parts)), rest * rank, *(0 for _ in behind)),
        (*ahead, *parts, rest, *behind),
    )


class Drawing(Protocol):
    """What passes see of an operator that draws numbers by their places in its results.

    draws_by_place: whether it does, which may depend on its attributes.
    """

    @property
    def rows(self) -> tuple[int, ...]: ...
    @property
    def draws_by_place(self) -> bool: ...
    def over_rows(self, dimension: int, outer: int) -> Op: ...


class DrawnByPlace(Op, abstract=True):
    """An operator that draws numbers by their places in its results.

    Fields of subclasses: rows, () or where every rank has rows of its own, see `place_of_rows`.
    """

    rows: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def draws_by_place(self) -> bool:
        """See `Drawing`."""
        return True

    def over_rows(self, dimension: int, outer: int) -> Self:
        """The operator where along a dimension of its results every rank has rows of its own."""
        return replace(self, rows=(dimension, outer))


def draws_by_place(op: object) -> TypeGuard[Drawing]:
    """Whether an operator draws numbers by their places."""
    return bool(getattr(op, "draws_by_place", False))
