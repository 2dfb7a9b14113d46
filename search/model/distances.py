"""Computes the bytes of redistributions for all pairs of layouts at once, as the planner counts them, per tensor byte.

A finished value costs a rank what it must receive, its new slice without what it holds of it: in the mean over the
ranks as many bytes are sent as received, and the planner sends no other (see `redistribution_plan`). A partial value
is reduced first: sliced where there are replicas, scattered along dimensions or all-reduced (ring algorithms: a
reduce-scatter of n ranks sends (n - 1) / n of what a rank holds, an all-reduce twice that), then redistributed.
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
"""Ranks up to which every rank's slice is looked at."""
AT_ONCE = 1 << 24
"""Numbers of an intermediate array."""
REMEMBERED = 16
"""Matrices that are remembered for the next problem of the same layouts."""
TIE = 1e-9
"""Of reductions that send the same, that which redistributes least afterwards is taken, as by the planner."""


@dataclass(frozen=True)
class Hosts:
    """Ranks that are of several hosts, the first `ranks` of the first, and so on. network: what a byte costs that a
    rank's card sends to another host, where one inside of a host costs 1."""

    ranks: int
    network: float

    def ring(self, mesh: tuple[int, ...], axes: Sequence[int]) -> float:
        """What a byte of a ring along mesh axes costs; rings run through the cards of all its ranks on a host."""
        outer = self.outer(mesh)
        if all(a >= outer for a in axes):
            return 1.0
        return max(1.0, self.network / math.prod(mesh[a] for a in axes if a >= outer))

    def pairs(self, mesh: tuple[int, ...], axes: Sequence[int]) -> float:
        """What a byte costs that a rank sends along mesh axes, to all others in equal parts, each through its card."""
        outer, ranks = self.outer(mesh), math.prod(mesh[a] for a in axes)
        near = math.prod(mesh[a] for a in axes if a >= outer)
        leaving = (ranks - near) / max(1, ranks - 1)
        return max(leaving * self.network, 1 - leaving)

    def outer(self, mesh: tuple[int, ...]) -> int:
        """How many axes of a mesh go from host to host, the first ones."""
        return next((i for i in range(len(mesh)) if math.prod(mesh[i:]) <= self.ranks), len(mesh))

    def missing(self, sources: list[Layout], targets: list[Layout], mesh: tuple[int, ...]) -> Any:
        """[source, target]: what the ranks of a host lack together and fetch through all their cards, by its price."""
        outer = self.outer(mesh)
        between, inside = mesh[:outer], math.prod(mesh[outer:])
        of_hosts = [_of_hosts(layout, mesh, outer) for layout in (*sources, *targets)]
        found = _missing(of_hosts[: len(sources)], of_hosts[len(sources) :], between or (1,))
        return found * self.network / inside


def _of_hosts(layout: Layout, mesh: tuple[int, ...], outer: int) -> Layout:
    """What hosts hold of a tensor, each all that its ranks have; taken to be all of it where the layout is on a mesh of
    its own."""
    finer = common_mesh(mesh, layout.mesh)
    if finer != mesh:
        return Layout.of(mesh[:outer] or (1,), [()] * len(layout.dims))
    return Layout.of(mesh[:outer] or (1,), [[a for a in axes if a < outer] for axes in on_mesh(layout, mesh)[0]])


class LayoutTable:
    """Layouts of tensors of one number of dimensions on the same ranks, by a number each. mesh: along its axes partial
    values are reduced. hosts: None where all ranks are of one."""

    def __init__(self, mesh: tuple[int, ...], hosts: Hosts | None = None) -> None:
        self.mesh, self.hosts = mesh, hosts
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
        """[source, target]: bytes that a rank sends in the mean, as a share of the global tensor's; infinite where the
        target is partial and the source lies otherwise."""
        if self._matrix is None or len(self._matrix) != len(self.layouts):
            self._matrix = _distances(tuple(self.layouts), self.mesh, self.hosts)
        return self._matrix


@lru_cache(maxsize=REMEMBERED)
def _distances(layouts: tuple[Layout, ...], mesh: tuple[int, ...], hosts: Hosts | None) -> Any:
    """The matrix of `Places.distances`, which nobody may write to: problems of one network have the same."""
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
    """A way to reduce a partial layout. sent: the share of the tensor that a rank sends. price: the same with what goes
    between hosts at its price. layout: behind it."""

    sent: float
    price: float
    layout: Layout


def _reductions(layout: Layout, mesh: tuple[int, ...], hosts: Hosts | None) -> list[_Reduced]:
    """Ways to reduce a partial layout: replicas may take a slice each first, and every partial axis is scattered along
    a dimension or all-reduced."""
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
    """[source, target]: the share of a tensor that a rank of the target lacks, in the mean over the ranks.

    Of many ranks the mean is a product over the dimensions, as if what two axes shard were independent of the rest: so
    it is but where axes change places.
    """
    if targets[0].ranks > EXACT:
        return np.maximum(_sizes(targets)[None] - _common(sources, targets, mesh), 0.0)
    (begin, end), (first, last) = _intervals(sources), _intervals(targets)
    size = _sizes(targets)
    found = np.empty((len(sources), len(targets)))
    step = max(1, AT_ONCE // max(1, first.size))
    for low in range(0, len(sources), step):
        part = slice(low, low + step)
        common = np.minimum(end[part, None], last[None]) - np.maximum(begin[part, None], first[None])
        found[part] = size[None] - np.prod(np.maximum(common, 0.0), axis=3).mean(axis=2)
    return np.where(found < 1e-12, 0.0, found)


def _sizes(layouts: list[Layout]) -> Any:
    return np.array([1 / math.prod(layout.strategy) for layout in layouts])


def _common(sources: list[Layout], targets: list[Layout], mesh: tuple[int, ...]) -> Any:
    """[source, target]: the mean share of a tensor that a rank has of both: of every dimension the smaller slice where
    one holds the other, else what slices that lie at random have in common behind the axes that shard both first."""
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
    """(a mesh, the axes on it that shard a dimension); the mesh of the search where the layout fits it."""
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
    """(begin, end) of every rank's slice of every dimension, [layout, rank, dimension], as shares of the dimension."""
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
