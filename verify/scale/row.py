"""What is said of an operator's whole numbers and dimensions as sizes become smaller."""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

from mspc.ir.late_dataclass import dataclass


class Dim(NamedTuple):
    """A dimension of an operand, or of a result."""

    of_result: bool
    tensor: int
    dimension: int


class Number(NamedTuple):
    """A number in a field, the whole of it or an entry of tuples in each other. along: the dimension of which it is a
    size, a place or a distance; last: it is the last place there."""

    field: str
    entry: tuple[int, ...]
    along: Dim
    value: int
    last: bool = False


WHOLE: tuple[int, ...] = ()
"""The entry of a field that is one number."""


@dataclass
class Row:
    """What is said of an operator. same: dimensions that are one though their sizes differ. frozen: those that keep
    their sizes. by_rule: the rest is as its rule says."""

    numbers: list[Number] = field(default_factory=list[Number])
    same: list[tuple[Dim, Dim]] = field(default_factory=list[tuple[Dim, Dim]])
    frozen: list[Dim] = field(default_factory=list[Dim])
    by_rule: bool = True
    halves: list[Dim] = field(default_factory=list[Dim])
    """Dimensions of which an even number of places must be left."""
