"""Layouts: the slice of a tensor that every rank holds. All passes describe sharding by layouts.

Ranks are numbered row-major over a mesh (device matrix): the last axis is the fastest. A layout maps every
tensor dimension to mesh axes, major to minor; axes that no dimension uses hold replicas, axes named in `partial`
hold partial values that a reduction must combine. Layouts have their coarsest form (axes of size 1 dropped, neighbours
that are always used together merged), so two layouts that place the same slices on the same ranks are equal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, cast

from mspc.ir.diagnostics import html_table
from mspc.ir.late_dataclass import dataclass

Axes = tuple[int, ...]
REDUCTIONS = ("sum", "mean", "max", "min", "prod", "all", "any")


@dataclass(frozen=True, slots=True)
class Layout:
    """The placement of one tensor on `ranks` ranks.

    mesh: sizes of the mesh axes, row-major; they multiply to the number of ranks.
    dims: for every tensor dimension the mesh axes that shard it, the first one the most significant.
    partial: mesh axes over which the ranks hold partial values to be combined, ascending.
    reduction: how the partial values combine, one of REDUCTIONS ("" if nothing is partial). "mean" is the sum
        divided by their number.

    Build with `Layout.of`, which brings any description to the coarsest form.
    """

    mesh: tuple[int, ...]
    dims: tuple[Axes, ...]
    partial: Axes = ()
    reduction: str = ""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        # Layouts are few and are the keys of many caches, so each is hashed once.
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
        """Return the layout in which every rank holds the global tensor, which has `rank_of_tensor` dimensions."""
        return _coarsest((ranks,), ((),) * rank_of_tensor, (), "")

    @staticmethod
    def from_strategy(strategy: Sequence[int], ranks: int) -> Layout:
        """Return the layout of a tensor with dimension d sharded into `strategy[d]` slices; left-over ranks hold
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
        """Whether every rank holds the global tensor and nothing is partial."""
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
        """Return the shape of one rank's slice of a tensor of the global `shape`."""
        return _local_shape(self.mesh, self.dims, tuple(shape))

    def divides(self, shape: Sequence[int]) -> bool:
        return all(n % shards == 0 for n, shards in zip(shape, self.strategy, strict=True))

    def coordinates(self, rank: int) -> tuple[int, ...]:
        return coordinates(self.mesh, rank)

    def slice_index(self, rank: int) -> tuple[int, ...]:
        """Return the index of the rank's slice in every dimension, from 0."""
        return slice_index(self.mesh, self.dims, rank)

    def slices_for(self, rank: int, shape: Sequence[int]) -> tuple[slice, ...]:
        """Return the rank's slice of a global array of `shape`, as an index."""
        local = self.local_shape(shape)
        return tuple(slice(i * n, (i + 1) * n) for i, n in zip(self.slice_index(rank), local, strict=True))

    def holds(self, shape: Sequence[int], local: Sequence[int], padded: bool = False) -> bool:
        """Return whether `local` is the shape of a slice of a global tensor of `shape`. padded: it may be of more."""
        held = tuple(n * shards for n, shards in zip(local, self.strategy, strict=True))
        return held == tuple(shape) or (padded and all(n <= m for n, m in zip(shape, held, strict=True)))

    def held_slices(self, rank: int, shape: Sequence[int], local: Sequence[int]) -> tuple[slice, ...]:
        """Return the rank's part of a global array of `shape` if every rank holds slices of the shape `local`, which
        may be padded at the end of the global array."""
        index = self.slice_index(rank)
        return tuple(slice(min(i * n, m), min((i + 1) * n, m)) for i, n, m in zip(index, local, shape, strict=True))

    def chunk_for(self, rank: int, shape: Sequence[int]) -> tuple[slice, ...]:
        """Return the rank's slice as PyTorch cuts it: one axis after the other cuts a size into pieces of the size
        rounded up, of which the last ones are shorter or empty if it does not divide the size."""
        place, found = coordinates(self.mesh, rank), list[slice]()
        for n, axes in zip(shape, self.dims, strict=True):
            begin, end = 0, n
            for a in axes:
                size = -(-(end - begin) // self.mesh[a])
                begin, end = min(begin + place[a] * size, end), min(begin + (place[a] + 1) * size, end)
            found.append(slice(begin, end))
        return tuple(found)

    def group(self, axes: Iterable[int], rank: int) -> tuple[int, ...]:
        """Return the ranks that differ from `rank` along `axes` only, in row-major order of `axes` as listed."""
        return group_of(self.mesh, tuple(axes), rank)

    def without_partial(self) -> Layout:
        """Return the placement after the reduction, replicated over the axes that were partial."""
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


def slice_index(mesh: tuple[int, ...], dims: Sequence[Axes], rank: int) -> tuple[int, ...]:
    """Return the index of a rank's slice in every dimension, sharded along these axes of the mesh, from 0."""
    place = coordinates(mesh, rank)
    found: list[int] = []
    for axes in dims:
        index = 0
        for a in axes:
            index = index * mesh[a] + place[a]
        found.append(index)
    return tuple(found)


@lru_cache(maxsize=65536)
def coordinates(mesh: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return the mixed-radix digits of `rank`; the last axis is the fastest."""
    place: list[int] = []
    for size in reversed(mesh):
        rank, digit = divmod(rank, size)
        place.append(digit)
    return tuple(reversed(place))


@lru_cache(maxsize=65536)
def group_of(mesh: tuple[int, ...], axes: Axes, rank: int) -> tuple[int, ...]:
    """Return the ranks equal to `rank` on every axis except `axes`; the first of `axes` varies slowest."""
    place = coordinates(mesh, rank)
    return _group_from(mesh, axes, rank - sum(place[a] * math.prod(mesh[a + 1 :]) for a in axes))


@lru_cache(maxsize=65536)
def _group_from(mesh: tuple[int, ...], axes: Axes, first: int) -> tuple[int, ...]:
    """Return the group with `first` at the beginning of every axis; cached once for all of its ranks."""
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
    """Return the coarsest mesh that refines both, or None if their axes cross (for example (3, 4) and (4, 3))."""
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
    """Return, for every axis of `mesh`, the axes of its refinement `fine` that make it up, major to minor."""
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
    """Return (dims, partial) of the layout on `fine`, a refinement of its mesh."""
    axes_of = axis_map(layout.mesh, fine)
    dims = tuple(tuple(f for a in axes for f in axes_of[a]) for axes in layout.dims)
    return dims, tuple(f for a in layout.partial for f in axes_of[a])


INTERLEAVED = "interleaved_parallel"
"""The name of an axis without ranks: every rank computes its slice in as many parts, one after the other."""


SHOWN_RANKS = 64
"""Most rows of a table in a notebook."""


@dataclass(frozen=True, slots=True)
class NamedLayout:
    """One tensor's placement in MindSpore's terms.

    device_matrix: sizes of the mesh axes, row-major. alias_name: their names.
    tensor_map: per tensor dimension an axis counted from the right (0 is the last), a tuple of them (the first the
        most significant), or -1 for a dimension that is not sharded.
    interleaved: size of the axis `INTERLEAVED` that the user named in addition. It changes no slice; the scheduler
        decides whether parts of a slice run one after the other.
    interleaved_at: the dimension with slices in these parts; -1 for none.
    """

    device_matrix: tuple[int, ...]
    alias_name: tuple[str, ...]
    tensor_map: tuple[int | tuple[int, ...], ...]
    interleaved: int = 1
    interleaved_at: int = -1

    @property
    def ranks(self) -> int:
        return math.prod(self.device_matrix)

    @property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        """Per tensor dimension the mesh axes counted from the left, major to minor."""
        last = len(self.device_matrix) - 1
        entries = [entry if isinstance(entry, tuple) else (entry,) for entry in self.tensor_map]
        return tuple(tuple(last - a for a in entry if a >= 0) for entry in entries)

    @property
    def strategy(self) -> tuple[int, ...]:
        """Number of slices per dimension."""
        return tuple(math.prod(self.device_matrix[a] for a in axes) for axes in self.axes)

    def to_layout(self) -> Layout:
        return Layout.of(self.device_matrix, self.axes)

    def _repr_html_(self) -> str:
        """Return a table for notebooks: the axes of every dimension, and the slice of every rank."""
        layout = self.to_layout()
        rows = [
            (rank, *(f"{at} of {count}" for at, count in zip(layout.slice_index(rank), self.strategy, strict=True)))
            for rank in range(min(self.ranks, SHOWN_RANKS))
        ]
        names = [", ".join(self.alias_name[a] for a in axes) or "replicated" for axes in self.axes]
        mesh = ", ".join(f"{name}={size}" for name, size in zip(self.alias_name, self.device_matrix, strict=True))
        return html_table(f"slices over {mesh}", ["rank", *(f"dimension {i}: {n}" for i, n in enumerate(names))], rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by MindSpore's names."""
        return {
            "device_matrix": self.device_matrix, "tensor_map": self.tensor_map,
            "interleaved_parallel": self.interleaved > 1, "alias_name": self.alias_name,
            "rank_list": list(range(self.ranks)),
        }  # fmt: skip

    def __str__(self) -> str:
        matrix = ", ".join(map(str, self.device_matrix))
        entries = ", ".join(f"({', '.join(map(str, e))})" if isinstance(e, tuple) else str(e) for e in self.tensor_map)
        return f"{{device_matrix: ({matrix}), tensor_map: ({entries}), alias_name: ({', '.join(self.alias_name)})}}"


Strategy = tuple[int, ...] | NamedLayout
"""The user's sharding of one tensor."""


def spread(strategy: Sequence[Any]) -> list[Any]:
    """Return one entry per tensor: the entry of a tuple of tensors, as Concat's, is replaced by its members."""
    found: list[Any] = []
    for entry in strategy:
        if isinstance(entry, tuple) and entry and isinstance(entry[0], (tuple, NamedLayout)):
            found += cast("tuple[Any, ...]", entry)
        else:
            found.append(entry)
    return found


def slice_counts(entry: Any) -> tuple[int, ...]:
    """Return the number of slices per dimension of a strategy's entry."""
    return entry.strategy if isinstance(entry, NamedLayout) else entry


def with_axes(entry: Any, dimension: int, axes: Axes = ()) -> Any:
    """Return an entry with one dimension along these axes, counted from the left, by default not sharded; numbers of
    slices only without axes."""
    if not isinstance(entry, NamedLayout):
        return tuple(1 if i == dimension else count for i, count in enumerate(entry))
    if dimension >= len(entry.axes):
        return entry
    last, tensor_map = len(entry.device_matrix) - 1, list(entry.tensor_map)
    tensor_map[dimension] = -1 if not axes else last - axes[0] if len(axes) == 1 else tuple(last - a for a in axes)
    return replace(entry, tensor_map=tuple(tensor_map))
