"""An all-to-all and a gather, whose data arrive out of order, are put in order by each rank on its own.

Where one dimension loses axes and only some of them, not the minor ones, shard another dimension afterwards, no
sequence of ordered collectives reaches the floor. An exchange of slices does, with a message for every rank that holds
one: thousands on thousands of ranks. Two collectives and a local transposition send the same bytes in far fewer
messages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mspc.ir.builder import Builder
from mspc.ir.graph import Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Axes, Layout, common_mesh, group_of, on_mesh
from mspc.ops.collective.collectives import AllGather, AlltoAll, LayoutChange
from mspc.ops.op import Op, RankPlacement
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import Reshape


@dataclass(frozen=True, slots=True)
class Regrouping:
    """The two collectives of a change of layout. lost: axes that stop sharding dimension `concat_dim`, major to minor.
    moved: those of them that shard `split_dim` afterwards, in that order. gathered: the others."""

    mesh: tuple[int, ...]
    concat_dim: int
    split_dim: int
    lost: Axes
    moved: Axes
    gathered: Axes


def regrouping(source: Layout, target: Layout) -> Regrouping | None:
    """How to go from `source` to `target` by one all-to-all and one gather, or None."""
    mesh = common_mesh(source.mesh, target.mesh)
    if mesh is None or source.partial or target.partial:
        return None
    old, _ = on_mesh(source, mesh)
    new, _ = on_mesh(target, mesh)
    losing = [d for d, (a, b) in enumerate(zip(old, new, strict=True)) if len(a) > len(b) and a[: len(b)] == b]
    gaining = [d for d, (a, b) in enumerate(zip(old, new, strict=True)) if len(b) > len(a) and b[: len(a)] == a]
    same = sum(a == b for a, b in zip(old, new, strict=True))
    if len(losing) != 1 or len(gaining) != 1 or same != len(old) - 2:
        return None
    (i,), (j,) = losing, gaining
    lost, moved = old[i][len(new[i]) :], new[j][len(old[j]) :]
    if not set(moved) < set(lost):
        return None
    return Regrouping(mesh, i, j, lost, moved, tuple(a for a in lost if a not in moved))


class Regroup(LayoutChange):
    """A change of layout by one AlltoAll and one AllGather, then a transposition on each rank."""

    def localize(self, placement: RankPlacement) -> Op:
        raise AssertionError("it expands to several operators")

    def expand(self, b: Builder, placement: RankPlacement, inputs: Sequence[Value]) -> Value | None:
        plan = regrouping(self.source, self.target)
        assert plan is not None, f"{self.source} does not go to {self.target} by one all-to-all and one gather"
        (x,) = inputs
        rows = x.shape[plan.concat_dim]

        def group(axes: Axes) -> tuple[int, ...]:
            return group_of(plan.mesh, axes, placement.rank)

        count = math.prod(plan.mesh[a] for a in plan.moved)
        exchange = AlltoAll(split_count=count, split_dim=plan.split_dim, concat_dim=plan.concat_dim)
        exchanged = b.emit(exchange.with_ranks(group(plan.moved)), x)
        all_gathered = b.emit(AllGather(axis=plan.concat_dim).with_ranks(group(plan.gathered)), exchanged)
        arrived = (*plan.gathered, *plan.moved)
        if arrived == plan.lost:
            return all_gathered
        before, after = all_gathered.shape[: plan.concat_dim], all_gathered.shape[plan.concat_dim + 1 :]
        apart = b.emit(Reshape((*before, *(plan.mesh[a] for a in arrived), rows, *after)), all_gathered)
        first = len(before)
        order = [*range(first), *(first + arrived.index(a) for a in plan.lost)]
        order += range(first + len(arrived), len(apart.shape))
        return b.emit(Reshape(all_gathered.shape), b.emit(Transpose(perm=tuple(order)), apart))
