"""What is said of an operator's sizes: which of its numbers lie along which dimensions, and which of these are one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, NamedTuple

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType

Types = Sequence[TensorType]


class Dim(NamedTuple):
    """A dimension of an operand, or of a result."""

    of_result: bool
    tensor: int
    dimension: int


class Number(NamedTuple):
    """A number in a field, the whole of it or an entry of tuples in each other. along: the dimension of which it is a
    size, a place or a distance; last: it is the last place there; over: the dimensions of which it makes that one, by
    repeating them."""

    field: str
    entry: tuple[int, ...]
    along: Dim
    value: int
    last: bool = False
    over: tuple[Dim, ...] = ()


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
    least: list[tuple[Dim, int, int]] = field(default_factory=list["tuple[Dim, int, int]"])
    """A dimension, a size along it, and how much of that must be left at least."""
    room: list[tuple[Dim, int, Dim, int, int]] = field(default_factory=list["tuple[Dim, int, Dim, int, int]"])
    """A dimension and a size along it, of which no less must be left than what goes there of another's, which is routed
    so many ways."""
    sizes: list[tuple[Dim, int]] = field(default_factory=list["tuple[Dim, int]"])
    """Sizes along dimensions that are in no field."""


def in_dim(tensor: int, dimension: int) -> Dim:
    return Dim(False, tensor, dimension)


def out_dim(dimension: int, tensor: int = 0) -> Dim:
    return Dim(True, tensor, dimension)


def whole_numbers(op: Any, along: Dim, *names: str) -> list[Number]:
    return [Number(name, WHOLE, along, getattr(op, name)) for name in names]


def shape_numbers(op: Any, name: str, dims: Sequence[Dim]) -> list[Number]:
    """The entries of a field that are the sizes of these dimensions."""
    return [Number(name, (i,), dim, n) for i, (dim, n) in enumerate(zip(dims, getattr(op, name), strict=True)) if n > 0]


def out_dims(results: Types) -> list[Dim]:
    return [out_dim(d) for d in range(len(results[0].shape))]
