"""In which order elements stand along an axis."""

from __future__ import annotations

from typing import Any


def ascending(xp: Any, x: Any, axis: int) -> Any:
    """The places of the elements of x in ascending order along `axis`, equal ones in their order."""
    return xp.argsort(x, axis=axis, kind="stable")


def descending(xp: Any, x: Any, axis: int) -> Any:
    """The places of the elements of x in descending order along `axis`, equal ones in their order, as any element type
    has it: what is no number stands first, and no element is negated, which would not do for unsigned ones."""
    last = ascending(xp, xp.flip(x, axis), axis)
    return xp.flip(x.shape[axis] - 1 - last, axis)
