"""Bytes between layouts, for all pairs at once: what the planner of redistributions counts, as shares of the tensor.

A finished value costs a rank what it must receive, its new slice without what it holds of it: in the mean over the
ranks as many bytes are sent as received, and the planner sends no other (see `redistribution_plan`). A partial value
is reduced first: sliced where there are replicas, scattered along dimensions or reduced whole (ring algorithms: a
reduce-scatter of n ranks sends (n - 1) / n of what a rank holds, an all-reduce twice that), then moved.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from mspc.ir.layout import Layout, common_mesh, on_mesh

AT_ONCE = 1 << 24
"""Numbers of an intermediate array."""


class Places:
    """Layouts of tensors of one number of dimensions on the same ranks, by a number each. mesh: along its axes partial
    values are reduced."""

    def __init__(self, mesh: tuple[int, ...]) -> None:
        self.mesh = mesh
        self.layouts: list[Layout] = []
        self._numbers: dict[Layout, int] = {}
        self._matrix: Any = None

    def number(self, layout: Layout) -> int:
        """The number of a layout, which is noted if it is new."""
        found = self._numbers.get(layout)
        if found is None:
            found = self._numbers[layout] = len(self.layouts)
            self.layouts.append(layout)
            self._matrix = None
        return found

    def distances(self) -> Any:
        """[source, target]: bytes that a rank sends in the mean, as a share of the whole tensor's; infinite where the
        target is partial and the source lies otherwise."""
        if self._matrix is None or len(self._matrix) != len(self.layouts):
            self._matrix = self._computed()
        return self._matrix

    def _computed(self) -> Any:
        count = len(self.layouts)
        found = np.full((count, count), np.inf)
        targets = [i for i, layout in enumerate(self.layouts) if not layout.partial]
        sources: list[tuple[int, float, Layout]] = []
        for i, layout in enumerate(self.layouts):
            if not layout.partial:
                sources.append((i, 0.0, layout))
                continue
            sources.extend((i, share, reduced) for share, reduced in _reductions(layout, self.mesh))
        missing = _missing([s[2] for s in sources], [self.layouts[i] for i in targets])
        for row, (i, first, _) in zip(missing, sources, strict=True):
            found[i, targets] = np.minimum(found[i, targets], first + row)
        found[np.arange(count), np.arange(count)] = 0.0
        return found


def _reductions(layout: Layout, mesh: tuple[int, ...]) -> list[tuple[float, Layout]]:
    """Ways to reduce a partial layout, (share of the tensor that a rank sends, layout behind it): replicas may take a
    slice each first, and every partial axis is scattered along a dimension or reduced whole."""
    mesh = common_mesh(mesh, layout.mesh) or layout.mesh
    old, parts = on_mesh(layout, mesh)
    used = {*parts, *(a for axes in old for a in axes)}
    free, dimensions = [a for a in range(len(mesh)) if a not in used], range(len(old))
    found: dict[Layout, float] = {}
    for sliced in product((*dimensions, -1), repeat=len(free)):
        for scattered in product((*dimensions, -1), repeat=len(parts)):
            dims = [[*axes, *(a for a, d in zip(free, sliced, strict=True) if d == to)]
                    for to, axes in enumerate(old)]  # fmt: skip
            held, sent = 1 / math.prod(mesh[a] for axes in dims for a in axes), 0.0
            for to in (*dimensions, -1):
                axes = [a for a, d in zip(parts, scattered, strict=True) if d == to]
                size = math.prod(mesh[a] for a in axes)
                share = held * (1 - 1 / size)
                if to < 0:
                    sent += 2 * share
                else:
                    dims[to] += axes
                    sent, held = sent + share, held / size
            behind = Layout.of(mesh, dims)
            found[behind] = min(sent, found.get(behind, sent))
    return [(sent, behind) for behind, sent in found.items()]


def _missing(sources: list[Layout], targets: list[Layout]) -> Any:
    """[source, target]: the share of a tensor that a rank of the target lacks, in the mean over the ranks."""
    (begin, end), (first, last) = _intervals(sources), _intervals(targets)
    size = np.prod(last - first, axis=2).mean(axis=1)
    found = np.empty((len(sources), len(targets)))
    step = max(1, AT_ONCE // max(1, first.size))
    for low in range(0, len(sources), step):
        part = slice(low, low + step)
        common = np.minimum(end[part, None], last[None]) - np.maximum(begin[part, None], first[None])
        found[part] = size[None] - np.prod(np.maximum(common, 0.0), axis=3).mean(axis=2)
    return np.where(found < 1e-12, 0.0, found)


def _intervals(layouts: list[Layout]) -> tuple[Any, Any]:
    """(begin, end) of every rank's slice of every dimension, [layout, rank, dimension], as shares of the dimension."""
    ranks, dimensions = layouts[0].ranks, len(layouts[0].dims)
    begin = np.zeros((len(layouts), ranks, dimensions))
    end = np.ones((len(layouts), ranks, dimensions))
    for i, layout in enumerate(layouts):
        coordinates = np.unravel_index(np.arange(ranks), layout.mesh)
        for d, axes in enumerate(layout.dims):
            index, cut = np.zeros(ranks), 1
            for a in axes:
                index = index * layout.mesh[a] + coordinates[a]
                cut *= layout.mesh[a]
            begin[i, :, d] = index / cut
            end[i, :, d] = (index + 1) / cut
    return begin, end
