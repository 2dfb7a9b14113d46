"""Slices of global arrays for all ranks of a kind at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ir.layout import Layout
from mspc.verify.scale.kinds import RankKind
from mspc.verify.scale.spread import narrowed

Array = Any


class Slices:
    """The slices that the ranks of a kind hold of global arrays, by layout; what is equal for many arrays is found
    once."""

    def __init__(self, kind: RankKind) -> None:
        self.kind = kind
        self._places: dict[Layout, tuple[Array, list[tuple[int, ...]]]] = {}

    def of(self, array: Array, layout: Layout | None) -> Array:
        """The slices, with leading dimensions of size 1 where they are the same."""
        depth = self.kind.depth
        if layout is None or not any(layout.dims):
            return np.array(array).reshape((1,) * depth + np.shape(array))
        which, places = self._found(layout)
        local = layout.local_shape(array.shape)
        parts = [
            array[tuple(slice(i * n, (i + 1) * n) for i, n in zip(place, local, strict=True))] for place in places
        ]
        return np.array(np.stack(parts)[which])

    def lead(self, layout: Layout | None) -> tuple[int, ...]:
        """The leading dimensions of the slices."""
        if layout is None or not any(layout.dims):
            return (1,) * self.kind.depth
        return self._found(layout)[0].shape

    def _found(self, layout: Layout) -> tuple[Array, list[tuple[int, ...]]]:
        """(for every place in the mesh, of size 1 where it does not matter, the number of its slice, the slices)."""
        if layout not in self._places:
            known: dict[tuple[int, ...], int] = {}
            numbers = [known.setdefault(layout.slice_index(rank), len(known)) for rank in self.kind.ranks]
            which = narrowed(np.array(numbers).reshape(self.kind.mesh), self.kind.depth)
            self._places[layout] = which, list(known)
        return self._places[layout]
