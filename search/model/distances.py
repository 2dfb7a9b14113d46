"""Bytes of redistributions between all pairs of layouts, per byte of the tensor, as counted by the redistribution
planner.

A complete value costs a rank the bytes that it receives: its new slice without the part that it already has. On average
over the ranks, as many bytes are sent as received (see `passes.lib.redistribution`). A partial value is reduced first:
sliced if there are replicas, reduce-scattered along dimensions or all-reduced, then redistributed. With ring
algorithms, a reduce-scatter of n ranks sends (n - 1) / n of a rank's bytes, an all-reduce twice as many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Axes, Layout, common_mesh, on_mesh

EXACT = 64
"""Maximum number of ranks for which every rank's slice is computed."""
MAX_BLOCK_ELEMENTS = 1 << 24
"""Maximum number of elements of an intermediate array."""
CACHED_MATRICES = 16
"""Number of matrices that are cached for later problems with the same layouts."""
TIE = 1e-9
"""Weight of the later redistribution that decides between reductions that send equally many bytes, as in the
planner."""


@dataclass(frozen=True)
class Hosts:
    """Ranks on several hosts, `ranks` consecutive ranks on each. network: price of a byte that a rank's network card
    sends to another host; a byte within a host costs 1."""

    ranks: int
    network: float

    def ring(self, mesh: tuple[int, ...], axes: Sequence[int]) -> float:
        """Return the price per byte of a ring along mesh axes; rings use the cards of all their ranks on a host."""
        outer = self.outer(mesh)
        if all(a >= outer for a in axes):
            return 1.0
        return max(1.0, self.network / math.prod(mesh[a] for a in axes if a >= outer))

    def pairs(self, mesh: tuple[int, ...], axes: Sequence[int]) -> float:
        """Return the price per byte of an all-to-all along mesh axes, in which every rank uses its own card."""
        outer, ranks = self.outer(mesh), math.prod(mesh[a] for a in axes)
        near = math.prod(mesh[a] for a in axes if a >= outer)
        leaving = (ranks - near) / max(1, ranks - 1)
        return max(leaving * self.network, 1 - leaving)

    def outer(self, mesh: tuple[int, ...]) -> int:
        """Return how many leading axes of a mesh connect hosts."""
        return next((i for i in range(len(mesh)) if math.prod(mesh[i:]) <= self.ranks), len(mesh))

    def missing(self, sources: list[Layout], targets: list[Layout], mesh: tuple[int, ...]) -> Any:
        """Return [source, target]: share of the tensor that a host's ranks lack together and fetch through all their
        cards, times its price."""
        outer = self.outer(mesh)
        between, inside = mesh[:outer], math.prod(mesh[outer:])
        of_hosts = [_of_hosts(layout, mesh, outer) for layout in (*sources, *targets)]
        found = _missing(of_hosts[: len(sources)], of_hosts[len(sources) :], between or (1,))
        return found * self.network / inside


def _of_hosts(layout: Layout, mesh: tuple[int, ...], outer: int) -> Layout:
    """Return the layout of a tensor over hosts, each with the slices of all its ranks. If the layout's own mesh does
    not fit, every host is assumed to have the whole tensor."""
    finer = common_mesh(mesh, layout.mesh)
    if finer != mesh:
        return Layout.of(mesh[:outer] or (1,), [()] * len(layout.dims))
    return Layout.of(mesh[:outer] or (1,), [[a for a in axes if a < outer] for axes in on_mesh(layout, mesh)[0]])


class LayoutTable:
    """Numbered layouts of tensors of equal rank on the same ranks. mesh: partial values are reduced along its axes.
    hosts: None if all ranks are on one host."""

    def __init__(self, mesh: tuple[int, ...], hosts: Hosts | None = None) -> None:
        self.mesh, self.hosts = mesh, hosts
        self.layouts: list[Layout] = []
        self._numbers: dict[Layout, int] = {}
        self._matrix: Any = None

    def number(self, layout: Layout) -> int:
        """Return the number of a layout, adding it if it is new."""
        found = self._numbers.get(layout)
        if found is None:
            found = self._numbers[layout] = len(self.layouts)
            self.layouts.append(layout)
            self._matrix = None
        return found

    def distances(self) -> Any:
        """Return [source, target]: mean bytes that a rank sends, as a share of the global tensor; infinite if the
        target is partial and differs from the source."""
        if self._matrix is None or len(self._matrix) != len(self.layouts):
            self._matrix = _distances(tuple(self.layouts), self.mesh, self.hosts)
        return self._matrix


@lru_cache(maxsize=CACHED_MATRICES)
def _distances(layouts: tuple[Layout, ...], mesh: tuple[int, ...], hosts: Hosts | None) -> Any:
    """Return the matrix of `LayoutTable.distances`, read-only because the problems of a network share it."""
    count = len(layouts)
    found = np.full((count, count), np.inf)
    targets = [i for i, layout in enumerate(layouts) if not layout.partial]
    ways: list[tuple[int, _Reduced]] = []
    for i, layout in enumerate(layouts):
        reduced = _reductions(layout, mesh, hosts) if layout.partial else [_Reduced(0.0, 0.0, layout)]
        ways.extend((i, each) for each in reduced)
    behind, wanted = list(dict.fromkeys(each.layout for _, each in ways)), [layouts[i] for i in targets]
    missing = dear = _missing(behind, wanted, mesh)
    if hosts is not None:
        dear = np.maximum(missing, hosts.missing(behind, wanted, mesh))
    row_of = {layout: row for row, layout in enumerate(behind)}
    rows = np.array([row_of[each.layout] for _, each in ways])
    sent = np.array([each.sent for _, each in ways])[:, None] + missing[rows] * (1 + TIE)
    price = np.array([each.price for _, each in ways])[:, None] + dear[rows]
    own = np.array([i for i, _ in ways])
    first = np.flatnonzero(np.diff(own, prepend=-1))
    for i, begin, end in zip(own[first], first, (*first[1:], len(own)), strict=True):
        best = sent[begin:end].argmin(axis=0)
        found[i, targets] = price[begin:end][best, np.arange(len(targets))]
    found[np.arange(count), np.arange(count)] = 0.0
    found.flags.writeable = False
    return found


@dataclass(frozen=True)
class _Reduced:
    """One way to reduce a partial layout. sent: share of the tensor that a rank sends. price: the same with bytes
    between hosts at their price. layout: after the reduction."""

    sent: float
    price: float
    layout: Layout


def _reductions(layout: Layout, mesh: tuple[int, ...], hosts: Hosts | None) -> list[_Reduced]:
    """Return the ways to reduce a partial layout: replicas may take a slice each first, and every partial axis is
    reduce-scattered along a dimension or all-reduced."""
    mesh = common_mesh(mesh, layout.mesh) or layout.mesh
    old, parts = on_mesh(layout, mesh)
    used = {*parts, *(a for axes in old for a in axes)}
    free, dimensions = [a for a in range(len(mesh)) if a not in used], range(len(old))
    found: dict[Layout, _Reduced] = {}
    for sliced in product((*dimensions, -1), repeat=len(free)):
        for scattered in product((*dimensions, -1), repeat=len(parts)):
            dims = [[*axes, *(a for a, d in zip(free, sliced, strict=True) if d == to)]
                    for to, axes in enumerate(old)]  # fmt: skip
            held, sent, price = 1 / math.prod(mesh[a] for axes in dims for a in axes), 0.0, 0.0
            for to in (*dimensions, -1):
                axes = [a for a, d in zip(parts, scattered, strict=True) if d == to]
                size = math.prod(mesh[a] for a in axes)
                share = held * (1 - 1 / size) * (2 if to < 0 else 1)
                sent, price = sent + share, price + share * (1.0 if hosts is None else hosts.ring(mesh, axes))
                if to >= 0:
                    dims[to] += axes
                    held /= size
            behind = Layout.of(mesh, dims)
            if behind not in found or sent < found[behind].sent:
                found[behind] = _Reduced(sent, price, behind)
    return list(found.values())


def _missing(sources: list[Layout], targets: list[Layout], mesh: tuple[int, ...]) -> Any:
    """Return [source, target]: mean share of a tensor that a rank of the target lacks.

    For many ranks the mean is computed as a product over the dimensions, as if the shards of two axes were independent.
    This is exact unless axes change places.
    """
    if targets[0].ranks > EXACT:
        return np.maximum(_sizes(targets)[None] - _common(sources, targets, mesh), 0.0)
    (begin, end), (first, last) = _intervals(sources), _intervals(targets)
    size = _sizes(targets)
    found = np.empty((len(sources), len(targets)))
    step = max(1, MAX_BLOCK_ELEMENTS // max(1, first.size))
    for low in range(0, len(sources), step):
        part = slice(low, low + step)
        common = np.minimum(end[part, None], last[None]) - np.maximum(begin[part, None], first[None])
        found[part] = size[None] - np.prod(np.maximum(common, 0.0), axis=3).mean(axis=2)
    return np.where(found < 1e-12, 0.0, found)


def _sizes(layouts: list[Layout]) -> Any:
    return np.array([1 / math.prod(layout.strategy) for layout in layouts])


def _common(sources: list[Layout], targets: list[Layout], mesh: tuple[int, ...]) -> Any:
    """Return [source, target]: mean share of a tensor that a rank has in both layouts. In every dimension, the
    intersection is the smaller slice if one contains the other. Otherwise slices are assumed to overlap at random
    within the leading axes that shard both."""
    codes: dict[tuple[tuple[int, ...], Axes], int] = {}
    rows = [[codes.setdefault(_on(layout, mesh, d), len(codes)) for d in range(len(layout.dims))]
            for layout in (*sources, *targets)]  # fmt: skip
    table = np.array([[_of_dimension(one, other) for other in codes] for one in codes])
    found = np.ones((len(sources), len(targets)))
    for d in range(len(targets[0].dims)):
        column = np.array([row[d] for row in rows])
        found *= table[np.ix_(column[: len(sources)], column[len(sources) :])]
    return found


def _on(layout: Layout, mesh: tuple[int, ...], dimension: int) -> tuple[tuple[int, ...], Axes]:
    """Return (mesh, axes that shard a dimension on it); the mesh is that of the search if the layout fits it."""
    finer = common_mesh(mesh, layout.mesh)
    if finer is None:
        return layout.mesh, layout.dims[dimension]
    return finer, on_mesh(layout, finer)[0][dimension]


def _of_dimension(one: tuple[tuple[int, ...], Axes], other: tuple[tuple[int, ...], Axes]) -> float:
    (mesh, first), (other_mesh, second) = one, other
    shards, other_shards = math.prod(mesh[a] for a in first), math.prod(other_mesh[a] for a in second)
    alike = 0
    if mesh == other_mesh:
        while alike < min(len(first), len(second)) and first[alike] == second[alike]:
            alike += 1
    if alike in (len(first), len(second)):
        return 1 / max(shards, other_shards)
    return math.prod(mesh[a] for a in first[:alike]) / (shards * other_shards)


def _intervals(layouts: list[Layout]) -> tuple[Any, Any]:
    """Return (begin, end) of every rank's slice of every dimension, [layout, rank, dimension], as shares of the
    dimension."""
    ranks, dimensions = layouts[0].ranks, len(layouts[0].dims)
    begin = np.zeros((len(layouts), ranks, dimensions))
    end = np.ones((len(layouts), ranks, dimensions))
    for i, layout in enumerate(layouts):
        coordinates = np.unravel_index(np.arange(ranks), layout.mesh)
        for d, axes in enumerate(layout.dims):
            index, shards = np.zeros(ranks), 1
            for a in axes:
                index = index * layout.mesh[a] + coordinates[a]
                shards *= layout.mesh[a]
            begin[i, :, d] = index / shards
            end[i, :, d] = (index + 1) / shards
    return begin, end
