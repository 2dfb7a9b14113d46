"""Finds the cheapest way from one layout of a tensor to another: a pure function from two layouts to steps.

For values that are not partial the answer is direct. On the coarsest mesh that refines both layouts, dimensions
whose axes grow are sliced, dimensions whose axes shrink are gathered, and axes that leave the end of one dimension
for the end of another move in one all-to-all. If this works, every byte sent is one that its receiver lacked, with
the fewest messages; gathers take the minor-most axes of a dimension only, as the data would be out of order
otherwise. In all other cases the ranks exchange exactly the blocks that they lack; if these are many, dimensions
whose axes are in another order are gathered first. Nothing larger than the larger of the two slices exists in
between, as slices come first and gathers last (compare Rink et al., arXiv 2112.01075).

Partial values are reduced first. Several ways to reduce (to the same on every rank, or scattered along a dimension,
before or after slices) are costed with the data movement that they leave, and the cheapest is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Axes, Layout, common_mesh, on_mesh
from mspc.ir.types import FLOAT32, HALVES
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, LocalSlice, ReduceScatter
from mspc.ops.collective.exchange import Exchange, Regroup, regrouping
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Cast
from mspc.sharding.pieces import missing_elements

Dims = tuple[Axes, ...]
FEW = 32
"""Messages up to which an exchange of blocks is taken before two collectives and a transposition."""
_COMBINE = {**{op: op for op in ("sum", "max", "min", "prod")}, "mean": "sum", "all": "min", "any": "max"}
"""How a collective combines partial values; a mean is scaled after it, bools combine as numbers."""


@dataclass(frozen=True, slots=True)
class RedistributionStep:
    """One operator of a plan, in the form over mesh axes.

    layout: the placement after it. nbytes: mean bytes that a rank sends, under ring algorithms. messages:
    the most that any rank receives. scale: the factor by which the step's result is to be multiplied, 1.0
    but for means.
    """

    op: Op
    layout: Layout
    nbytes: float = 0.0
    messages: int = 0
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class RedistributionPlan:
    """Steps in order, with the sums of their bytes and messages."""

    steps: tuple[RedistributionStep, ...]
    nbytes: float
    messages: int

    @property
    def collectives(self) -> int:
        """Collectives of all steps: a `Regroup` is two."""
        return sum((step.messages > 0) + isinstance(step.op, Regroup) for step in self.steps)


@lru_cache(maxsize=16384)
def plan(source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> RedistributionPlan:
    """Return the cheapest steps that bring a tensor of the global `shape` from `source` to `target`.

    Both layouts must divide the shape. The source may be partial; the target may stay partial over some of the same
    axes. Bytes count first, then messages, then collectives. Raise MspcError if the layouts have unlike numbers of
    ranks or dimensions, or the target is partial if the source is not.
    """
    if source == target:
        return RedistributionPlan((), 0.0, 0)
    if source.ranks != target.ranks or not len(source.dims) == len(target.dims) == len(shape):
        raise MspcError(f"there is no way from layout {source} to {target} for a tensor of shape {shape}")
    if target.partial and source.reduction != target.reduction:
        raise MspcError(f"layout {target} is partial where {source} is not")
    if not source.partial and not target.partial:
        return _total(_move(source, target, shape, itemsize))
    mesh = common_mesh(source.mesh, target.mesh)
    remaining: Axes = ()
    if mesh is not None:
        remaining = on_mesh(target, mesh)[1]
        parts = on_mesh(source, mesh)[1]
        if set(parts) == set(remaining):
            return _total(_move(source, target, shape, itemsize))
    elif target.partial and source.size_of(source.partial) == target.size_of(target.partial):
        return _total(_move(source, target, shape, itemsize))
    else:
        mesh, parts = source.mesh, source.partial
    if not set(remaining) <= set(parts) or (target.partial and not remaining):
        raise MspcError(f"layout {target} is partial where {source} is not")
    return _reduce(source, target, mesh, tuple(a for a in parts if a not in remaining), remaining, shape, itemsize)


def cost(source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> float:
    """Mean bytes that a rank sends on the cheapest way; see `plan`."""
    return 0.0 if source == target else plan(source, target, shape, itemsize).nbytes


def _total(steps: Sequence[RedistributionStep]) -> RedistributionPlan:
    return RedistributionPlan(tuple(steps), sum(s.nbytes for s in steps), sum(s.messages for s in steps))


def _move(source: Layout, target: Layout, shape: tuple[int, ...], itemsize: int) -> list[RedistributionStep]:
    """Return the steps between layouts with the same partial sums."""
    mesh = common_mesh(source.mesh, target.mesh)
    if mesh is not None:
        steps = _collectives(source, target, mesh, shape, itemsize)
        if steps is not None:
            return steps
    missing, messages = missing_elements(source, target, shape)
    if not missing:
        return [RedistributionStep(LocalSlice(source=source, target=target), target)]
    nbytes = missing * itemsize / source.ranks
    regroup = regrouping(source, target) if messages > FEW else None
    if regroup is not None:
        moved, gathered = (math.prod(regroup.mesh[a] for a in axes) for axes in (regroup.moved, regroup.gathered))
        return [RedistributionStep(Regroup(source=source, target=target), target, nbytes, moved + gathered - 2)]
    gathered = _gathered_first(source, target, mesh, shape, itemsize) if mesh is not None and messages > FEW else None
    return gathered or [RedistributionStep(Exchange(source=source, target=target), target, nbytes, messages)]


def _gathered_first(
    source: Layout, target: Layout, mesh: tuple[int, ...], shape: tuple[int, ...], itemsize: int
) -> list[RedistributionStep] | None:
    """Return gathers of the dimensions whose axes the target has in another order, and the collectives after them; None
    if the gathered slice is larger than those of both layouts, or if there are none."""
    old, parts = on_mesh(source, mesh)
    dims: list[Axes] = []
    for before, after in zip(old, on_mesh(target, mesh)[0], strict=True):
        same = min(len(before), len(after))
        begin = next((i for i in range(same) if before[i] != after[i]), len(before))
        dims.append(before[:begin])
    middle = Layout.of(mesh, dims, parts, source.reduction)
    sizes = [math.prod(layout.local_shape(shape)) for layout in (source, target, middle)]
    ways = [_collectives(*pair, mesh, shape, itemsize) for pair in ((source, middle), (middle, target))]
    if sizes[2] > max(sizes[:2]) or None in ways:
        return None
    return [step for steps in ways for step in steps or ()]


def _collectives(
    source: Layout, target: Layout, mesh: tuple[int, ...], shape: tuple[int, ...], itemsize: int
) -> list[RedistributionStep] | None:
    """Return slices, one all-to-all, gathers, in this order; None if they would send more than is missing.

    A rank keeps 1/m of its slice in an all-to-all of m ranks and all of it in a gather, so a sequence that sends no
    byte in vain has at most one all-to-all, which comes before the gathers.
    """
    old, parts = on_mesh(source, mesh)
    new, new_parts = on_mesh(target, mesh)
    if parts != new_parts:
        return None
    gained: list[Axes] = []
    lost: list[Axes] = []
    for before, after in zip(old, new, strict=True):
        shorter = min(len(before), len(after))
        if before[:shorter] != after[:shorter]:
            return None
        gained.append(after[shorter:])
        lost.append(before[shorter:])
    leaving = {a: d for d, axes in enumerate(lost) for a in axes}
    moved_to = {d: tuple(a for a in axes if a in leaving) for d, axes in enumerate(gained)}
    moved_to = {d: axes for d, axes in moved_to.items() if axes}
    if len(moved_to) > 1:
        return None
    layout = source
    dims = list(old)
    steps: list[RedistributionStep] = []

    def place(op: Op, nbytes: float, messages: int) -> None:
        nonlocal layout
        layout = Layout.of(mesh, dims, parts, source.reduction)
        steps.append(RedistributionStep(op, layout, nbytes, messages))

    for split_dim, moved in moved_to.items():
        concat_dim = leaving[moved[0]]
        if gained[split_dim][-len(moved) :] != moved or lost[concat_dim][-len(moved) :] != moved:
            return None
    for d, axes in enumerate(gained):
        dims[d] += axes[: len(axes) - len(moved_to.get(d, ()))]
    if tuple(dims) != old:
        sliced = Layout.of(mesh, dims, parts, source.reduction)
        place(LocalSlice(source=source, target=sliced), 0.0, 0)
    for split_dim, moved in moved_to.items():
        concat_dim = leaving[moved[0]]
        dims[concat_dim] = dims[concat_dim][: -len(moved)]
        dims[split_dim] += moved
        group, axes, size = _group(mesh, moved)
        exchange = AlltoAll(split_count=size, split_dim=split_dim, concat_dim=concat_dim, mesh=group, axes=axes)
        place(exchange, exchange.sent_bytes(math.prod(layout.local_shape(shape)) * itemsize, size), size - 1)
    for d in reversed(range(len(dims))):
        rest = dims[d][len(new[d]) :]
        if not rest:
            continue
        dims[d] = new[d]
        group, axes, size = _group(mesh, rest)
        gather = AllGather(axis=d, mesh=group, axes=axes)
        place(gather, gather.sent_bytes(math.prod(layout.local_shape(shape)) * itemsize, size), size - 1)
    return steps


def _group(mesh: tuple[int, ...], axes: Axes) -> tuple[tuple[int, ...], Axes, int]:
    """Return (mesh, axes, number of ranks) of a group, on the coarsest mesh that can name it."""
    coarse = Layout.of(mesh, (axes,))
    return coarse.mesh, coarse.dims[0], coarse.size_of(coarse.dims[0])


class _Reduction(NamedTuple):
    """One way to reduce: axes sliced and axes scattered, per dimension, then axes that an all-reduce sums over."""

    sliced: Dims
    scattered: Dims
    reduced: Axes


def _reduce(
    source: Layout, target: Layout, mesh: tuple[int, ...], parts: Axes, remaining: Axes, shape: tuple[int, ...],
    itemsize: int,
) -> RedistributionPlan:  # fmt: skip
    """Return the cheapest of the ways to reduce `parts`, each followed by the remaining redistribution; one that ends
    in hundreds of small blocks only if there is no other."""
    best: tuple[tuple[bool, float, int, int], RedistributionPlan] | None = None
    for reduction in _reductions(source, target, mesh, parts, shape):
        steps = _reducing_steps(source, mesh, reduction, parts, remaining, shape, itemsize)
        moves = plan(steps[-1].layout, target, shape, itemsize)
        found = _total((*steps, *moves.steps))
        scattered = any(isinstance(step.op, Exchange) and step.messages > FEW for step in found.steps)
        key = (scattered, round(found.nbytes, 3), found.messages, found.collectives)
        if best is None or key < best[0]:
            best = key, found
    assert best is not None, f"no way to reduce {source}"
    return best[1]


def _reductions(
    source: Layout, target: Layout, mesh: tuple[int, ...], parts: Axes, shape: tuple[int, ...]
) -> list[_Reduction]:
    """Yield the ways to reduce that are worth costing.

    Scattering into the target's dimension of the axes is the start of all but the last few; axes that the target does
    not shard are all-reduced or scattered along one dimension. If the source has replicas, each may reduce its own
    share and gather after: fewer bytes with more than two partial values.
    """
    old, old_parts = on_mesh(source, mesh)
    new: Dims = on_mesh(target, mesh)[0] if common_mesh(source.mesh, target.mesh) is not None else old
    used = {a for axes in old for a in axes} | set(old_parts)
    free = tuple(a for a in range(len(mesh)) if a not in used)
    nothing: Dims = ((),) * len(old)
    sliced: list[Axes] = []
    scattered: list[Axes] = []
    for before, after in zip(old, new, strict=True):
        rest = after[len(before) :] if after[: len(before)] == before else ()
        begin = 0
        while begin < len(rest) and rest[begin] in free:
            begin += 1
        end = begin
        while end < len(rest) and rest[end] in parts:
            end += 1
        sliced.append(rest[:begin])
        scattered.append(rest[begin:end])
    placed = {a for axes in (*sliced, *scattered) for a in axes}
    reduced = tuple(a for a in parts if a not in placed)
    spare = tuple(a for a in free if a not in placed)
    reductions = [_Reduction(tuple(sliced), tuple(scattered), reduced)]
    for d in range(len(old)):
        more = _at(tuple(scattered), d, reduced)
        reductions.append(_Reduction(tuple(sliced), more, ()))
        reductions.append(_Reduction(_at(tuple(sliced), d, spare), more, ()))
        reductions.append(_Reduction(_at(tuple(sliced), d, spare), tuple(scattered), reduced))
        reductions.append(_Reduction(_at(nothing, d, free), _at(nothing, d, parts), ()))
        reductions.append(_Reduction(nothing, _at(nothing, d, parts), ()))
    fits = [
        reduction
        for reduction in dict.fromkeys(reductions)
        if Layout.of(
            mesh, [sum(axes, ()) for axes in zip(old, reduction.sliced, reduction.scattered, strict=True)]
        ).divides(shape)
    ]
    return fits or [_Reduction(nothing, nothing, parts)]


def _at(dims: Dims, d: int, axes: Axes) -> Dims:
    return (*dims[:d], dims[d] + axes, *dims[d + 1 :])


def _reducing_steps(
    source: Layout, mesh: tuple[int, ...], reduction: _Reduction, parts: Axes, remaining: Axes,
    shape: tuple[int, ...], itemsize: int,
) -> list[RedistributionStep]:  # fmt: skip
    old = on_mesh(source, mesh)[0]
    dims = [axes + more for axes, more in zip(old, reduction.sliced, strict=True)]
    open_parts = set(parts)
    op = _COMBINE[source.reduction]
    steps: list[RedistributionStep] = []
    layout = source

    def placed() -> Layout:
        return Layout.of(mesh, dims, (*remaining, *sorted(open_parts)), source.reduction)

    if any(reduction.sliced):
        layout = placed()
        steps.append(RedistributionStep(LocalSlice(source=source, target=layout), layout))
    for d, axes in enumerate(reduction.scattered):
        if not axes:
            continue
        group, group_axes, size = _group(mesh, axes)
        sent = ReduceScatter.sent_bytes(math.prod(layout.local_shape(shape)) * itemsize, size)
        dims[d] += axes
        open_parts -= set(axes)
        layout = placed()
        scatter = ReduceScatter(op=op, axis=d, mesh=group, axes=group_axes)
        steps.append(RedistributionStep(scatter, layout, sent, size - 1))
    if reduction.reduced:
        group, group_axes, size = _group(mesh, reduction.reduced)
        sent = AllReduce.sent_bytes(math.prod(layout.local_shape(shape)) * itemsize, size)
        open_parts -= set(reduction.reduced)
        layout = placed()
        steps.append(RedistributionStep(AllReduce(op=op, mesh=group, axes=group_axes), layout, sent, 2 * (size - 1)))
    if source.reduction == "mean":
        steps[-1] = replace(steps[-1], scale=1.0 / math.prod(mesh[a] for a in parts))
    return steps


def emit_collective(b: Builder, op: Op, value: Value, layout: Layout | None, name: str) -> tuple[Node, Node]:
    """Emit a collective, between casts if it adds up halves and `force_fp32_communication` is set. Return it, and the
    result in the value's element type. layout: the value's."""
    dtype = value.tensor_type.dtype
    adds = getattr(op, "op", "") == "sum"
    if not adds or dtype not in HALVES or not b.graph.attrs.get("force_fp32_communication"):
        node = b.emit(op, value, name=name)
        return node, node
    wide = b.emit(Cast(FLOAT32), value)
    wide.layout = layout
    node = b.emit(op, wide, name=name)
    return node, b.emit(Cast(dtype), node, name=name)
