"""The axes of ranks over which a compiled network is cut: its layers' and its batch's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from mspc.ir.graph import Parameter
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout


@dataclass(frozen=True)
class Axis:
    """Ranks over which something is cut: `size` of them, every `stride`-th."""

    stride: int
    size: int

    @property
    def end(self) -> int:
        return self.stride * self.size


def axes_of(layout: Layout, axes: Sequence[int]) -> list[Axis]:
    """The axes of a layout as ranks, those that lie beside each other as one."""
    found: list[Axis] = []
    for axis in axes:
        each = Axis(math.prod(layout.mesh[axis + 1 :]), layout.mesh[axis])
        if found and found[-1].stride == each.end:
            each = Axis(each.stride, found.pop().size * each.size)
        found.append(each)
    return found


def all_axes_of(layout: object) -> Iterator[Axis]:
    if isinstance(layout, Layout):
        for axes in layout.dims:
            yield from axes_of(layout, axes)


def tensor_axis(own: Sequence[Parameter], data: Axis | None) -> Axis | None:
    """What cuts most parameters, beside the axis of the batch."""
    counts: dict[Axis, int] = {}
    for parameter in own:
        for axis in all_axes_of(parameter.layout):
            if data is None or axis.end <= data.stride or data.end <= axis.stride:
                counts[axis] = counts.get(axis, 0) + 1
    return max(counts, key=lambda axis: counts[axis], default=None)


def states(trained: Sequence[Parameter]) -> Iterator[str]:
    """The names of parameters that belong to others, as `exp_avg.layers.0.weight` does."""
    names = {p.name for p in trained}
    for parameter in trained:
        rest = parameter.name.partition(".")[2]
        if rest in names:
            yield parameter.name


def sharing(own: Sequence[Parameter], trained: Sequence[Parameter], data: Axis | None) -> str:
    if data is None:
        return ""
    if any(data in all_axes_of(parameter.layout) for parameter in own):
        return "parameters"
    return "states" if any(data in all_axes_of(parameter.layout) for parameter in trained) else ""


def said(axis: Axis | None) -> str:
    return "none" if axis is None else f"{axis.size} ranks" + (f", every {axis.stride}th" if axis.stride > 1 else "")
