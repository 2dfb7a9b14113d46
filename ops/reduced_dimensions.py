"""Which dimensions of a kernel's space a reduction is over, whose operand may have another shape."""

from __future__ import annotations

from collections.abc import Sequence


def axes_of(dims: tuple[int, ...], shape: tuple[int, ...], axes: Sequence[int]) -> tuple[int, ...]:
    """The dimensions of a space that are reduced where `axes` of `shape` are, which has the same elements."""
    runs: list[tuple[int, int]] = []
    behind = 1
    for d in reversed(range(len(shape))):
        if d in axes or not axes:
            runs.append((behind, behind * shape[d]))
        behind *= shape[d]
    found: list[int] = []
    behind = 1
    for d in reversed(range(len(dims))):
        if any(begin <= behind < end for begin, end in runs):
            found.append(d)
        behind *= dims[d]
    return tuple(reversed(found))
