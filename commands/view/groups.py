"""Groups of ranks are told by the strides by which their members lie, which give every rank's group."""

from __future__ import annotations

import math
from collections.abc import Sequence

Strides = tuple[tuple[int, int], ...]
"""(size, stride) of every axis of a group, the slowest first."""


def strides_of_axes(mesh: Sequence[int], axes: Sequence[int]) -> Strides:
    """The strides of a group along some axes of a mesh."""
    return tuple((mesh[a], math.prod(mesh[a + 1 :])) for a in axes)


def strides_of_members(members: Sequence[int]) -> Strides | None:
    """The strides of a group by its members, None where they lie by no such rule.

    The first run of equal steps is the innermost axis; the runs' first members are a group again.
    """
    if len(members) <= 1:
        return ()
    step = members[1] - members[0]
    size = 2
    while size < len(members) and members[size] - members[size - 1] == step:
        size += 1
    if step <= 0 or len(members) % size:
        return None
    heads = members[::size]
    if any(members[i] != heads[i // size] + i % size * step for i in range(len(members))):
        return None
    outer = strides_of_members(heads)
    return None if outer is None else (*outer, (size, step))


def members_of(strides: Strides, rank: int) -> tuple[int, ...]:
    """The group of a rank by the strides of its axes."""
    base = rank - sum(rank // stride % size * stride for size, stride in strides)
    members = [base]
    for size, stride in strides:
        members = [m + i * stride for m in members for i in range(size)]
    return tuple(members)
