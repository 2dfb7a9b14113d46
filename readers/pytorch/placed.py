"""Layouts of captured tensors, from DTensor's meshes and placements and from the sizes of slices."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Layout, coordinates
from mspc.ir.types import TensorType
from mspc.readers.pytorch.captured import PEER, CapturedStep

_SHARD = re.compile(r"(?:S|Shard)\((?:dim=)?(\d+)\)")
_STRIDED = re.compile(r"(?:_S|_StridedShard)\((?:dim=)?(\d+), (?:sf=|split_factor=)?\d+\)")
_PARTIAL = re.compile(r"(?:P|Partial)(?:\((\w*)\))?")
Axis = tuple[int, int]
"""(distance between the ranks of an axis, number of them)."""


def mesh_of(steps: Sequence[CapturedStep]) -> tuple[int, ...]:
    """Return the sizes of the mesh, row-major, on which all groups and placements lie. Raise MspcError if they overlap
    otherwise."""
    axes = [axes_in([p.mesh for p in step.placements.values()], step.groups.values()) for step in steps]
    try:
        return mesh_with({axis for each in axes for axis in each}, steps[0].ranks)
    except ValueError as error:
        raise MspcError(f"{steps[0].program.name}: {error}") from None


def mesh_with(axes: Iterable[Axis], ranks: int) -> tuple[int, ...]:
    """Return the sizes of the mesh that has all these axes. Raise ValueError if they overlap otherwise."""
    ends = sorted({end for stride, size in (*axes, (1, ranks)) for end in (stride, stride * size)})
    sizes: list[int] = []
    for low, high in pairwise(ends):
        if high % low:
            raise ValueError(f"groups of ranks {low} and {high} apart are no axes of one mesh")
        sizes.insert(0, high // low)
    return tuple(sizes) or (1,)


def axes_in(meshes: Iterable[Any], groups: Iterable[Sequence[int]]) -> Iterator[Axis]:
    """Yield the axes of meshes and of groups whose ranks are equally far apart."""
    for mesh in meshes:
        yield from mesh_axes(mesh)
    for group in groups:
        if len(group) > 1 and len({b - a for a, b in pairwise(group)}) == 1:
            yield group[1] - group[0], len(group)


def mesh_axes(mesh: Any) -> list[Axis]:
    """Return the axes of a mesh of ranks, nested lists."""
    found: list[Axis] = []
    while isinstance(mesh, list):
        stride = _first(mesh[1]) - _first(mesh[0]) if len(mesh) > 1 else 1
        found.append((stride, len(mesh)))
        mesh = mesh[0]
    return found


def _first(mesh: Any) -> int:
    while isinstance(mesh, list):
        mesh = mesh[0]
    return mesh


def _within(mesh: tuple[int, ...], axis: Axis) -> list[int]:
    """Return the numbers of the axes of the whole mesh that an axis consists of."""
    stride, size = axis
    ends = [math.prod(mesh[number + 1 :]) for number in range(len(mesh))]
    return [number for number, end in enumerate(ends) if stride <= end < stride * size]


def axes_of_messages(steps: Sequence[CapturedStep], mesh: tuple[int, ...]) -> frozenset[int]:
    """Return the axes of the mesh along which ranks send messages to each other, as the stages of a pipeline do."""
    found = set[int]()
    for step in steps:
        own = coordinates(mesh, step.rank)
        for node in step.program.graph.nodes:
            if (name := PEER.get(node.target)) is not None:
                given: dict[str, Any] = dict(node.arguments)
                peer = coordinates(mesh, step.groups[given["process_group"]][given[name]])
                found |= {axis for axis, (a, b) in enumerate(zip(own, peer, strict=True)) if a != b}
    return frozenset(found)


def layout(
    step: CapturedStep, mesh: tuple[int, ...], name: str, own: Sequence[int], whole: Sequence[int],
    stages: Collection[int] = (),
) -> Layout:  # fmt: skip
    """Return the layout of a tensor of a step. own: the shape of a rank's slice; whole: that on one device. stages:
    the axes of the mesh over which plain tensors are not divided. Raise MspcError if the placement contradicts the
    shapes."""
    place = step.placements.get(name)
    if place is None or place.mesh is None:
        return _by_sizes(step, mesh, name, own, whole, stages)
    if place.shape != tuple(whole):
        raise MspcError(f"{step.program.name}: {name} is {place.shape} on all ranks, and {tuple(whole)} on one device")
    dims: list[list[int]] = [[] for _ in whole]
    later: list[list[int]] = [[] for _ in whole]  # FSDP shards what tensor parallelism has sharded already
    partial: list[int] = []
    for axis, text in zip(mesh_axes(place.mesh), place.placements, strict=True):
        numbers = _within(mesh, axis)
        if (sharded := re.search(r"\d+", text)) is not None and int(sharded[0]) >= len(whole):
            raise MspcError(f"{step.program.name}: {name} of shape {tuple(whole)} has placement {text!r:.60}")
        if (found := _SHARD.fullmatch(text)) is not None:
            dims[int(found[1])] += numbers
        elif (found := _STRIDED.fullmatch(text)) is not None:
            later[int(found[1])] += numbers
        elif _PARTIAL.fullmatch(text) is not None:
            partial += numbers
        elif text not in ("R", "Replicate()"):
            raise MspcError(f"{step.program.name}: {name} has placement {text!r:.60}, which mspc does not know")
    made = Layout.of(mesh, [[*first, *then] for first, then in zip(dims, later, strict=True)], partial)
    right = tuple(each.stop - each.start for each in made.chunk_for(step.rank, whole))
    if right != tuple(own):
        raise MspcError(
            f"{step.program.name}: {name} has shape {tuple(own)}, and {', '.join(place.placements)} of "
            f"{tuple(whole)} is {right} on rank {step.rank}"
        )
    return made


def layouts_in(steps: Sequence[CapturedStep]) -> dict[str, tuple[Layout, TensorType]]:
    """Return the layout and the whole type of the tensors of all ranks that have one: of those that DTensor shards
    evenly, and of plain inputs, whose rows are those of all ranks one after the other."""
    found = dict[str, tuple[Layout, TensorType]]()
    ranks = len(steps)
    for each in steps[0].program.inputs:
        name, own = each.qualified, tuple(n for n in each.type.shape if isinstance(n, int)) if each.type else ()
        place = steps[0].placements[name]
        alike = (place.shape, mesh_axes(place.mesh), place.placements)
        others = [step.placements.get(name) for step in steps]
        if each.type is None or any(p is None or (p.shape, mesh_axes(p.mesh), p.placements) != alike for p in others):
            continue
        if place.mesh is None:
            if each.kind != "user" or not own:
                continue
            made, whole = Layout.of((ranks,), [(0,), *[()] * (len(own) - 1)]), (own[0] * ranks, *own[1:])
        else:
            try:
                made, whole = layout(steps[0], mesh_of(steps), name, own, place.shape), place.shape
            except MspcError:  # groups are no axes of one mesh, or placements are not known
                continue
        if not made.is_partial and made.divides(whole):
            found[name] = made, TensorType(each.type.dtype, whole)
    return found


def _by_sizes(
    step: CapturedStep, mesh: tuple[int, ...], name: str, own: Sequence[int], whole: Sequence[int],
    stages: Collection[int],
) -> Layout:  # fmt: skip
    """Return the layout of a plain tensor: rows are divided over the outermost axes of the mesh that give its size."""
    if len(own) != len(whole) or any(not n or m % n for n, m in zip(own, whole, strict=True)):
        raise MspcError(f"{step.program.name}: {name} has shape {tuple(own)}, which is no slice of {tuple(whole)}")
    dims: list[list[int]] = []
    free = [axis for axis in range(len(mesh)) if axis not in stages]
    for n, m in zip(own, whole, strict=True):
        parts, axes = m // n, []
        for axis in list(free):
            if parts % mesh[axis] == 0 and parts > 1:
                axes.append(axis)
                free.remove(axis)
                parts //= mesh[axis]
        if parts > 1:
            raise MspcError(f"{step.program.name}: {name} is divided into {m // n} parts, and the mesh is {mesh}")
        dims.append(axes)
    return Layout.of(mesh, dims)
