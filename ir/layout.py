"""A layout says which slice of a tensor every rank holds. All passes describe sharding by layouts.

Ranks are numbered row-major over a mesh (device matrix): the last axis is the fastest. A layout maps every
tensor dimension to mesh axes, major to minor; axes that no dimension uses hold replicas, axes named in `partial`
hold partial values that a reduction must combine. Layouts have their coarsest form (axes of size 1 dropped, neighbours
that always go together merged), so two layouts that place the same slices on the same ranks are equal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

from mspc.ir.late_dataclass import dataclass

Axes = tuple[int, ...]
REDUCTIONS = ("sum", "mean", "max", "min", "prod", "all", "any")


@dataclass(frozen=True, slots=True)
class Layout:
    """The placement of one tensor on `ranks` ranks.

    mesh: sizes of the mesh axes, row-major; their product is the number of ranks.
    dims: for every tensor dimension the mesh axes that shard it, the first one the most significant.
    partial: mesh axes over which the ranks hold partial values to be combined, ascending.
    reduction: how the partial values combine, one of REDUCTIONS ("" when nothing is partial). "mean" is the sum
        divided by their number.

    Build with `Layout.of`, which brings any description to the coarsest form.
    """

    mesh: tuple[int, ...]
    dims: tuple[Axes, ...]
    partial: Axes = ()
    reduction: str = ""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        # Layouts are the keys of all that is remembered about them, and few, so each is hashed once.
        if not self._hash:
            object.__setattr__(self, "_hash", hash((self.mesh, self.dims, self.partial, self.reduction)) or 1)
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Layout, (self.mesh, self.dims, self.partial, self.reduction)

    @staticmethod
    def of(
        mesh: Sequence[int], dims: Iterable[Sequence[int]], partial: Iterable[int] = (), reduction: str = "sum"
    ) -> Layout:
        return _coarsest(tuple(mesh), tuple(tuple(d) for d in dims), tuple(sorted(partial)), reduction)

    @staticmethod
    def replicated(ranks: int, rank_of_tensor: int) -> Layout:
        """Every rank holds the global tensor."""
        return _coarsest((ranks,), ((),) * rank_of_tensor, (), "")

    @staticmethod
    def from_strategy(strategy: Sequence[int], ranks: int) -> Layout:
        """The layout of a tensor whose dimension d is sharded into `strategy[d]` slices; left-over ranks hold
        replicas, and their axis is the fastest (MindSpore's repeated calculation)."""
        shards = math.prod(strategy)
        return Layout.of((*strategy, ranks // shards), [(d,) for d in range(len(strategy))])

    @property
    def ranks(self) -> int:
        return math.prod(self.mesh)

    @property
    def is_partial(self) -> bool:
        return bool(self.partial)

    @property
    def is_replicated(self) -> bool:
        """Every rank holds the global tensor, and nothing of it is partial."""
        return not self.partial and not any(self.dims)

    @property
    def unused(self) -> Axes:
        """Axes along which the ranks hold replicas."""
        used = {a for d in self.dims for a in d} | set(self.partial)
        return tuple(a for a in range(len(self.mesh)) if a not in used)

    @property
    def strategy(self) -> tuple[int, ...]:
        """Number of slices of every dimension."""
        return _strategy(self.mesh, self.dims)

    def size_of(self, axes: Iterable[int]) -> int:
        return math.prod(self.mesh[a] for a in axes)

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of one rank's slice of a tensor of the global `shape`."""
        return _local_shape(self.mesh, self.dims, tuple(shape))

    def divides(self, shape: Sequence[int]) -> bool:
        return all(n % shards == 0 for n, shards in zip(shape, self.strategy, strict=True))

    def coordinates(self, rank: int) -> tuple[int, ...]:
        return coordinates(self.mesh, rank)

    def slice_index(self, rank: int) -> tuple[int, ...]:
        """Which slice of every dimension the rank holds, counted from 0."""
        place = coordinates(self.mesh, rank)
        found: list[int] = []
        for axes in self.dims:
            index = 0
            for a in axes:
                index = index * self.mesh[a] + place[a]
            found.append(index)
        return tuple(found)

    def slices_for(self, rank: int, shape: Sequence[int]) -> tuple[slice, ...]:
        """The rank's slice of a global array of `shape`, as an index."""
        local = self.local_shape(shape)
        return tuple(slice(i * n, (i + 1) * n) for i, n in zip(self.slice_index(rank), local, strict=True))

    def group(self, axes: Iterable[int], rank: int) -> tuple[int, ...]:
        """The ranks that differ from `rank` along `axes` only, in row-major order of `axes` as listed."""
        return group_of(self.mesh, tuple(axes), rank)

    def without_partial(self) -> Layout:
        """The same placement after the reduction, replicated over the axes that were partial."""
        return Layout.of(self.mesh, self.dims) if self.partial else self

    def __str__(self) -> str:
        dims = ", ".join(".".join(map(str, axes)) if axes else "-" for axes in self.dims)
        text = f"({', '.join(map(str, self.mesh))}) [{dims}]"
        if self.partial:
            text += f" {self.reduction}[{', '.join(map(str, self.partial))}]"
        return text


@lru_cache(maxsize=65536)
def _strategy(mesh: tuple[int, ...], dims: tuple[Axes, ...]) -> tuple[int, ...]:
    return tuple(math.prod(mesh[a] for a in axes) for axes in dims)


@lru_cache(maxsize=65536)
def _local_shape(mesh: tuple[int, ...], dims: tuple[Axes, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n // shards for n, shards in zip(shape, _strategy(mesh, dims), strict=True))


@lru_cache(maxsize=65536)
def coordinates(mesh: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Mixed-radix digits of `rank`, the last axis the fastest."""
    place: list[int] = []
    for size in reversed(mesh):
        rank, digit = divmod(rank, size)
        place.append(digit)
    return tuple(reversed(place))


@lru_cache(maxsize=65536)
def group_of(mesh: tuple[int, ...], axes: Axes, rank: int) -> tuple[int, ...]:
    """Ranks equal to `rank` on every axis but `axes`; the first of `axes` varies slowest."""
    place = coordinates(mesh, rank)
    return _group_from(mesh, axes, rank - sum(place[a] * math.prod(mesh[a + 1 :]) for a in axes))


@lru_cache(maxsize=65536)
def _group_from(mesh: tuple[int, ...], axes: Axes, first: int) -> tuple[int, ...]:
    """The group of which `first` is at the beginning of every axis: made once for all of its ranks."""
    members = [first]
    for a in axes:
        stride = math.prod(mesh[a + 1 :])
        members = [m + i * stride for m in members for i in range(mesh[a])]
    return tuple(members)


@lru_cache(maxsize=65536)
def _coarsest(mesh: tuple[int, ...], dims: tuple[Axes, ...], partial: Axes, reduction: str) -> Layout:
    roles: list[tuple[str, int, int]] = [("", 0, 0)] * len(mesh)
    for d, axes in enumerate(dims):
        for place, a in enumerate(axes):
            roles[a] = ("dim", d, place)
    for a in partial:
        roles[a] = ("partial", 0, 0)
    remaining = [a for a, size in enumerate(mesh) if size > 1]
    order = {a: i for d in dims for i, a in enumerate(x for x in d if mesh[x] > 1)}
    new_mesh: list[int] = []
    new_index: dict[int, int] = {}
    previous = -1
    for a in remaining:
        if previous >= 0 and _go_together(roles[previous], roles[a], order.get(previous, 0), order.get(a, 0)):
            new_mesh[-1] *= mesh[a]
        else:
            new_mesh.append(mesh[a])
            new_index[a] = len(new_mesh) - 1
        previous = a
    if not new_mesh:
        return Layout((1,), ((),) * len(dims))
    new_dims = tuple(tuple(new_index[a] for a in axes if a in new_index) for axes in dims)
    new_partial = tuple(new_index[a] for a in partial if a in new_index)
    return Layout(tuple(new_mesh), new_dims, new_partial, reduction if new_partial else "")


def _go_together(left: tuple[str, int, int], right: tuple[str, int, int], i: int, j: int) -> bool:
    if left[0] != right[0]:
        return False
    return left[0] != "dim" or (left[1] == right[1] and j == i + 1)


@lru_cache(maxsize=65536)
def common_mesh(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...] | None:
    """The coarsest mesh that refines both, or None where their axes cross (for example (3, 4) and (4, 3))."""
    cuts = sorted(_cuts(left) | _cuts(right))
    sizes: list[int] = []
    for small, large in itertools.pairwise(cuts):
        if large % small:
            return None
        sizes.append(large // small)
    return tuple(reversed(sizes)) or (1,)


def _cuts(mesh: tuple[int, ...]) -> set[int]:
    cuts = {1}
    product = 1
    for size in reversed(mesh):
        product *= size
        cuts.add(product)
    return cuts


@lru_cache(maxsize=65536)
def axis_map(mesh: tuple[int, ...], fine: tuple[int, ...]) -> tuple[Axes, ...]:
    """For every axis of `mesh` the axes of its refinement `fine` that make it up, major to minor."""
    found: list[Axes] = []
    i = 0
    for size in mesh:
        axes: list[int] = []
        product = 1
        while product < size:
            product *= fine[i]
            axes.append(i)
            i += 1
        found.append(tuple(axes))
    return tuple(found)


@lru_cache(maxsize=65536)
def on_mesh(layout: Layout, fine: tuple[int, ...]) -> tuple[tuple[Axes, ...], Axes]:
    """(dims, partial) of the layout written on `fine`, a refinement of its mesh."""
    axes_of = axis_map(layout.mesh, fine)
    dims = tuple(tuple(f for a in axes for f in axes_of[a]) for axes in layout.dims)
    return dims, tuple(f for a in layout.partial for f in axes_of[a])
