"""Converts between the shardings of parameters in strategy files and layouts.

A further sharding of dimension 0 by the parallel optimizer goes over the replicas that are nearest to each other: the
fastest of the axes that shard nothing, one of them split where it must be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Axes, Layout
from mspc.plans.files.strategy_file import ParameterCut


def layout_of(name: str, sharding: ParameterCut) -> Layout:
    """The layout that a strategy file gives a parameter.

    Raises:
        MspcError: the slices are unequal, or the optimizer's sharding is not possible.
    """
    if sharding.split_shape or sharding.field_size:
        raise MspcError(f"parameter {name!r} is sharded into unequal slices, which mspc does not read", kind=ValueError)
    last = len(sharding.device_matrix) - 1
    dims = [tuple(last - axis for axis in axes) for axes in sharding.tensor_map]
    if not sharding.optimizer_step or not sharding.optimizer_size or not dims:
        return Layout.of(sharding.device_matrix, dims)
    further = shard_further(sharding.device_matrix, dims, sharding.optimizer_size)
    if further is None:
        raise MspcError(
            f"parameter {name!r} is sharded into {sharding.optimizer_size} slices by the optimizer, which its device "
            f"matrix {list(sharding.device_matrix)} does not allow", kind=ValueError,
        )  # fmt: skip
    return further


def shard_further(mesh: Sequence[int], dims: Sequence[Axes], size: int) -> Layout | None:
    """The layout with dimension 0 sharded over `size` more ranks, -1 for as many as there are replicas; None where that
    cannot be."""
    mesh, dims = tuple(mesh), list(dims)
    used = {axis for axes in dims for axis in axes}
    free = [a for a in range(len(mesh)) if a not in used and mesh[a] > 1]
    left = math.prod(mesh[a] for a in free) if size == -1 else size
    taken: list[int] = []
    for a in reversed(free):
        if left == 1:
            break
        if left % mesh[a] == 0:
            left //= mesh[a]
            taken.insert(0, a)
            continue
        if mesh[a] % left:
            return None
        mesh = (*mesh[:a], mesh[a] // left, left, *mesh[a + 1 :])
        dims = [tuple(x + (x > a) for x in axes) for axes in dims]
        taken = [a + 1, *(x + 1 for x in taken)]
        left = 1
    if left != 1:
        return None
    return Layout.of(mesh, [(*dims[0], *taken), *dims[1:]])


def sharding_of(layout: Layout) -> ParameterCut:
    """The sharding that a strategy file states for a layout: one axis for every dimension, and a further sharding by
    the optimizer, where the layout can be stated so, else with several axes for a dimension."""
    mesh, dims = layout.mesh or (1,), layout.dims
    several = [d for d, axes in enumerate(dims) if len(axes) > 1]
    if several == [0]:
        base, rest = Layout.of(mesh, [dims[0][:1], *dims[1:]]), dims[0][1:]
        size = layout.size_of(rest)
        if shard_further(base.mesh, base.dims, size) == layout:
            step = math.prod(mesh[rest[-1] + 1 :])
            return ParameterCut(base.mesh, _maps(base.mesh, base.dims), step, size)
    return ParameterCut(tuple(mesh), _maps(mesh, dims))


def _maps(mesh: Sequence[int], dims: Sequence[Axes]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(len(mesh) - 1 - axis for axis in axes) for axes in dims)
