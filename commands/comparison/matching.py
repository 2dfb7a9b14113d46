"""Entries of two lists are matched by several keys, the most telling first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from mspc.ir.late_dataclass import dataclass

Pair = tuple[Any, Any]
"""An entry and its counterpart; None in the place of what has none."""


@dataclass(frozen=True)
class MatchingRound:
    """Entries with equal keys are the same. equal: only those that say the same, too."""

    key: Callable[[Any], Hashable]
    equal: bool = False


def paired(
    first: Iterable[Any], second: Iterable[Any], stages: Sequence[MatchingRound], said: Callable[[Any], Hashable]
) -> list[Pair]:
    """Every entry of both lists once, in the order of the first and then of the second.

    Args:
        first, second: the entries. stages: tried one after the other on what is left; entries of equal keys are taken
        in their order. said: what of an entry may differ between the two.
    """
    left, right = list(first), list(second)
    of_left: dict[int, int] = {}
    of_right: dict[int, int] = {}
    for stage in stages:
        open_right: dict[Hashable, deque[int]] = {}
        for place, entry in enumerate(right):
            if place not in of_right:
                open_right.setdefault(_key(stage, entry, said), deque()).append(place)
        for place, entry in enumerate(left):
            known = open_right.get(_key(stage, entry, said)) if place not in of_left else None
            if known:
                found = known.popleft()
                of_left[place], of_right[found] = found, place
    pairs: list[Pair] = [(entry, right[of_left[i]] if i in of_left else None) for i, entry in enumerate(left)]
    return pairs + [(None, entry) for i, entry in enumerate(right) if i not in of_right]


def _key(stage: MatchingRound, entry: Any, said: Callable[[Any], Hashable]) -> Hashable:
    return (stage.key(entry), said(entry) if stage.equal else None)
