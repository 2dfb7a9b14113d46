"""Puts smaller numbers into the fields of an operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mspc.verify.scale.said_of_sizes import Dim, Number


def resized(op: Any, numbers: Sequence[Number], divisor: Callable[[Dim], int]) -> Any:
    """The operator with its numbers for dimensions that are divided. Raises ValueError where one does not divide."""
    changed: dict[str, Any] = {}
    for number in numbers:
        by = divisor(number.along) // math.prod(map(divisor, number.over))
        if by == 1 and not number.last:
            continue
        if number.value % by:
            raise ValueError(f"{op.name}: {number.field} {number.value} does not divide by {by}")
        value = number.value // by - number.last
        changed[number.field] = _replaced(changed.get(number.field, getattr(op, number.field)), number.entry, value)
    return replace(op, **changed) if changed else op


def _replaced(given: Any, entry: tuple[int, ...], value: int) -> Any:
    if not entry:
        return value
    first, *rest = entry
    return (*given[:first], _replaced(given[first], tuple(rest), value), *given[first + 1 :])
