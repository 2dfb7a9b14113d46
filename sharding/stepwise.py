"""Changes of layout as MindSpore lists them: the steps of one rank, by their names and integers.

mspc itself redistributes tensors by `passes.communication.redistribution_plan`, which sends fewer bytes. These lists
are the results of `mindspore.parallel._tensor`, by the rules of MindSpore's tensor redistribution: bring both
layouts to one mesh and to one shape, then slice, exchange and gather dimension by dimension, in ascending order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import coordinates, group_of

Step = tuple[str, list[int]]
"""`("Reshape", shape)`, `("AllConcat", [*ranks, dimension])` or `("StridedSlice", [*begin, *end, *strides])`."""
NONE = -1


@dataclass(frozen=True)
class PlacedTensor:
    """A tensor and its mesh in the terms of MindSpore's lists of steps.

    mesh: sizes of the mesh axes, row-major. axes: the mesh axis that shards each dimension, or `NONE`.
    shape: of the global tensor.
    """

    mesh: tuple[int, ...]
    axes: tuple[int, ...]
    shape: tuple[int, ...]

    @staticmethod
    def of(mesh: Sequence[int], tensor_map: Sequence[int], shape: Sequence[int]) -> PlacedTensor:
        """Return the placement for MindSpore's numbers, which count mesh axes from the last one.

        Raises:
            MspcError: mesh, tensor map and shape do not fit together.
        """
        sizes, dims = tuple(map(int, mesh)), tuple(map(int, shape))
        if len(tensor_map) != len(dims):
            raise MspcError(f"the tensor map {tuple(tensor_map)} is not of the {len(dims)} dimensions of {dims}")
        axes: list[int] = []
        for number, size in zip(map(int, tensor_map), dims, strict=True):
            axis = NONE if number == NONE else len(sizes) - 1 - number
            if not NONE <= number < len(sizes) or (axis != NONE and axis in axes):
                raise MspcError(f"the tensor map {tuple(tensor_map)} does not fit the device matrix {sizes}")
            if axis != NONE and size % sizes[axis]:
                raise MspcError(f"a dimension of size {size} cannot be sharded {sizes[axis]} ways; the shape is {dims}")
            axes.append(axis)
        remaining = {axis: i for i, axis in enumerate(axis for axis, size in enumerate(sizes) if size > 1)}
        return PlacedTensor(tuple(s for s in sizes if s > 1), tuple(remaining.get(axis, NONE) for axis in axes), dims)

    @property
    def local(self) -> tuple[int, ...]:
        """Shape of one rank's slice."""
        return tuple(n if a == NONE else n // self.mesh[a] for n, a in zip(self.shape, self.axes, strict=True))

    def without_ones(self) -> PlacedTensor:
        """Return the placement without dimensions of size 1."""
        remaining = [i for i, size in enumerate(self.shape) if size != 1]
        return PlacedTensor(self.mesh, tuple(self.axes[i] for i in remaining), tuple(self.shape[i] for i in remaining))


def steps_between(source: PlacedTensor, target: PlacedTensor, ranks: Sequence[int], rank: int) -> list[Step]:
    """Return the steps that turn `rank`'s slice of `source` into its slice of `target`; `ranks` are those of the mesh.

    Raises:
        MspcError: the tensors have different numbers of elements or of ranks, or a step cannot be taken.
    """
    if math.prod(source.shape) != math.prod(target.shape):
        raise MspcError(f"a tensor of shape {source.shape} cannot become one of shape {target.shape}")
    for placed in (source, target):
        if math.prod(placed.mesh) != len(ranks):
            raise MspcError(f"a mesh of {math.prod(placed.mesh)} ranks does not fit the {len(ranks)} ranks of the list")
    if rank not in ranks:
        raise MspcError(f"rank {rank} is not among {tuple(ranks)}")
    if source == target:
        return []
    common = _on_one_mesh(source.without_ones(), target.without_ones())
    if common is None:
        return _by_gathering_all(source, target, ranks, rank)
    walk = _RankWalk(common[0], ranks, rank)
    walk.steps = _reshape(source.local, walk.local)
    walk.run(common[1].axes)
    return walk.steps + _reshape(tuple(walk.local), target.local)


def _reshape(before: Sequence[int], after: Sequence[int]) -> list[Step]:
    return [] if tuple(before) == tuple(after) else [("Reshape", list(after))]


def _by_gathering_all(source: PlacedTensor, target: PlacedTensor, ranks: Sequence[int], rank: int) -> list[Step]:
    """Return the steps that gather the whole tensor and then slice it, for layouts without a common mesh and shape."""
    gather = _RankWalk(source, ranks, rank)
    gather.run((NONE,) * len(source.shape))
    slicing = _RankWalk(PlacedTensor(target.mesh, (NONE,) * len(target.shape), target.shape), ranks, rank)
    slicing.run(target.axes)
    return gather.steps + _reshape(source.shape, target.shape) + slicing.steps


class _RankWalk:
    """Steps of one rank on one mesh, and the placement after them."""

    def __init__(self, start: PlacedTensor, ranks: Sequence[int], rank: int) -> None:
        self.mesh, self.ranks = start.mesh, ranks
        self.place = ranks.index(rank)
        self.axes = list(start.axes)
        self.local = list(start.local)
        self.steps: list[Step] = []

    def run(self, wanted: Sequence[int]) -> None:
        left = [d for d, (now, then) in enumerate(zip(self.axes, wanted, strict=True)) if now != then]
        while left:
            before = len(self.steps)
            while self._slice(left, wanted) or self._exchange(left, wanted):
                pass
            for d in [d for d in left if self.axes[d] != NONE and self.axes[d] not in wanted]:
                self._gather(d, left, wanted)
            if len(self.steps) == before:
                self._gather(left[0], left, wanted)  # dimensions wait for each other in a cycle

    def _slice(self, left: list[int], wanted: Sequence[int]) -> bool:
        held = {self.axes[d] for d in left}
        ready = [d for d in left if self.axes[d] == NONE and wanted[d] not in held]
        for d in ready:
            self._take_slice(d, wanted[d])
            left.remove(d)
        return bool(ready)

    def _exchange(self, left: list[int], wanted: Sequence[int]) -> bool:
        """Gather dimensions that hold an axis and shard those that need it. Return whether any was done."""
        before = len(left)
        for d in tuple(left):
            holder = next((other for other in left if self.axes[other] == wanted[d]), None)
            if d in left and self.axes[d] == NONE and holder is not None:
                self._gather(holder, left, wanted)
                self._take_slice(d, wanted[d])
                left.remove(d)
        return len(left) < before

    def _gather(self, d: int, left: list[int], wanted: Sequence[int]) -> None:
        axis = self.axes[d]
        group = [self.ranks[place] for place in group_of(self.mesh, (axis,), self.place)]
        self.steps.append(("AllConcat", [*group, d]))
        self.local[d] *= self.mesh[axis]
        self.axes[d] = NONE
        if wanted[d] == NONE:
            left.remove(d)

    def _take_slice(self, d: int, axis: int) -> None:
        parts, part = self.mesh[axis], coordinates(self.mesh, self.place)[axis]
        if self.local[d] % parts:
            raise MspcError(f"dimension {d} of a slice of shape {tuple(self.local)} cannot be sharded {parts} ways")
        size = self.local[d] // parts
        begin, end = [0] * len(self.local), list(self.local)
        begin[d], end[d] = part * size, (part + 1) * size
        self.steps.append(("StridedSlice", [*begin, *end, *[1] * len(self.local)]))
        self.local[d], self.axes[d] = size, axis


def _on_one_mesh(left: PlacedTensor, right: PlacedTensor) -> tuple[PlacedTensor, PlacedTensor] | None:
    """Return both on the coarsest mesh and in the coarsest shape that refine theirs, or None if there are none."""
    while True:
        mesh = _refinement(left.mesh, right.mesh)
        if mesh is None:
            return None
        finer = [_with_mesh(placed, mesh) for placed in (left, right)]
        if finer[0] is None or finer[1] is None:
            return None
        left, right = finer[0], finer[1]
        shape = _refinement(left.shape, right.shape)
        if shape is None:
            return None
        needed = [_mesh_for(placed, shape) for placed in (left, right)]
        if needed[0] is None or needed[1] is None:
            return None
        if needed[0] == needed[1] == mesh:
            return _with_shape(left, shape), _with_shape(right, shape)
        split = _refinement(needed[0], needed[1])
        if split is None:
            return None
        again = [_with_mesh(placed, split) for placed in (left, right)]
        if again[0] is None or again[1] is None:
            return None
        left, right = again[0], again[1]


def _refinement(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the coarsest sizes such that products of neighbours give both inputs, or None if a boundary splits a
    factor."""
    borders = sorted({1, *itertools.accumulate(left, int.__mul__), *itertools.accumulate(right, int.__mul__)})
    if any(after % before for before, after in itertools.pairwise(borders)):
        return None
    return tuple(after // before for before, after in itertools.pairwise(borders))


def _parts(sizes: Sequence[int], fine: Sequence[int]) -> list[list[int]]:
    """Return, for each of `sizes`, the indices in `fine` of its factors."""
    found: list[list[int]] = []
    place = 0
    for size in sizes:
        own: list[int] = []
        while math.prod(fine[i] for i in own) < size:
            own.append(place)
            place += 1
        found.append(own)
    return found


def _with_mesh(placed: PlacedTensor, mesh: tuple[int, ...]) -> PlacedTensor | None:
    """Return the placement on a finer mesh, or None if a size does not divide. A dimension sharded along an axis of
    several factors becomes several dimensions."""
    parts = _parts(placed.mesh, mesh)
    axes: list[int] = []
    shape: list[int] = []
    for size, axis in zip(placed.shape, placed.axes, strict=True):
        own = [NONE] if axis == NONE else parts[axis]
        lead = [mesh[i] for i in own[:-1]]
        if size % math.prod(lead):
            return None
        axes += own
        shape += [*lead, size // math.prod(lead)]
    return PlacedTensor(mesh, tuple(axes), tuple(shape))


def _mesh_for(placed: PlacedTensor, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the mesh on which the axis of each dimension fits the dimension's first factor in `shape`, or None."""
    mesh: list[tuple[int, ...]] = [(size,) for size in placed.mesh]
    for own, axis in zip(_parts(placed.shape, shape), placed.axes, strict=True):
        if axis == NONE or not own:
            continue
        first, size = shape[own[0]], placed.mesh[axis]
        if first % size and size % first:
            return None
        mesh[axis] = (first, size // first) if size > first else (size,)
    return tuple(itertools.chain.from_iterable(mesh))


def _with_shape(placed: PlacedTensor, shape: tuple[int, ...]) -> PlacedTensor:
    """Return the placement in a finer shape, with each dimension's axis on its first factor."""
    axes = [NONE] * len(shape)
    for own, axis in zip(_parts(placed.shape, shape), placed.axes, strict=True):
        if own:
            axes[own[0]] = axis
    return PlacedTensor(placed.mesh, tuple(axes), shape)
