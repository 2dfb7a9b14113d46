"""Shapes of results for operators that scripts write, as in MindSpore's private `ops._utils`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from mspc.mindspore_api.errors import ApiValueError


def get_broadcast_shape(
    x_shape: Sequence[int], y_shape: Sequence[int], prim_name: str, arg_name1: str = "x", arg_name2: str = "y"
) -> list[int]:
    """Return the shape that two shapes broadcast to, a list. Raise ValueError if there is none."""
    found: list[int] = []
    for mine, theirs in zip_longest(reversed(x_shape), reversed(y_shape), fillvalue=1):
        if mine != theirs and 1 not in (mine, theirs):
            raise ApiValueError(
                f"For '{prim_name}', {arg_name1} of shape {tuple(x_shape)} and {arg_name2} of shape {tuple(y_shape)} "
                "do not broadcast"
            )
        found.append(theirs if mine == 1 else mine)
    return found[::-1]


def get_concat_offset(
    x_shp: Sequence[Sequence[int]], x_type: Any, axis: int, prim_name: str
) -> tuple[list[int], int, int]:
    """Return the offset of each tensor in their concatenation along `axis`, the length of that dimension, and its
    index, whatever x_type. Raise ValueError if their shapes differ in other dimensions."""
    first = tuple(x_shp[0])
    place = axis % len(first)
    offsets: list[int] = []
    total = 0
    for shape in map(tuple, x_shp):
        if (*shape[:place], *shape[place + 1 :]) != (*first[:place], *first[place + 1 :]):
            raise ApiValueError(f"For '{prim_name}', shapes {first} and {shape} differ beside dimension {place}")
        offsets.append(total)
        total += shape[place]
    return offsets, total, place
