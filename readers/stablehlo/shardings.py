"""Shardings in a text: Shardy's attributes on a mesh of named axes, and the device lists of GSPMD."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Layout, NamedLayout, common_mesh, on_mesh
from mspc.readers.stablehlo.module import HloModule, SymbolReference, Words

Axes = Sequence[tuple[str, int]]
_DEVICES = re.compile(
    r"devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))"
    r"(?: last_tile_dims=\{([\w, ]+)\}| (last_tile_dim_replicate))?"
)
_REMARKS = re.compile(r" (?:shard_(?:as|like) \d+|metadata=\{.*\})")


def sharding_in(attributes: Mapping[str, Any]) -> Any:
    """Return the sharding of an argument or a result as it is written, None if there is none."""
    return attributes.get("sdy.sharding", attributes.get("mhlo.sharding"))


def layout_of(
    module: HloModule, sharding: Any, rank: int, leading: Sequence[str] = (), axes: Axes = ()
) -> NamedLayout | None:  # fmt: skip
    """Return the layout of a sharding; None if it leaves all dimensions open. leading: axes of dimensions before its
    own, of the mesh with these axes. Raise MspcError for an unknown form."""
    if isinstance(sharding, str):
        own = _of_devices(module, sharding, rank)
        return own if own is None or not leading else _on_mesh(
            axes, [*([name] for name in leading), *finer_axes(own.to_layout(), axes)], module.file)  # fmt: skip
    first = sharding.entries[0] if isinstance(sharding, Words) and sharding.entries else None
    if not isinstance(first, SymbolReference | Words):
        raise MspcError(f"{module.file}: {sharding!r:.80} is no sharding")
    if isinstance(first, Words):  # a sharding for each result
        return layout_of(module, first, rank, leading)
    if first.name not in module.meshes:
        raise MspcError(f"{module.file}: there is no mesh @{first.name}")
    dims = sharding.entries[1] if len(sharding.entries) > 1 else []
    if not isinstance(dims, list) or len(dims) != rank:
        raise MspcError(f"{module.file}: a sharding of {len(dims)} dimensions is given to a tensor of {rank}")
    if all(not [axis for axis in each if axis != "?"] and "?" in each for each in dims) and dims:
        return None
    named = [[name] for name in leading] + [[axis for axis in each if axis != "?"] for each in dims]
    return _on_mesh(module.meshes[first.name], named, module.file)


def _on_mesh(axes: Axes, dims: Sequence[Sequence[Any]], file: str) -> NamedLayout:
    """Return the layout of dimensions over axes and sub-axes (name, product of the parts before, size)."""
    sizes = dict(axes)
    bounds: dict[str, set[int]] = {name: {1, size} for name, size in axes}
    for axis in (axis for each in dims for axis in each):
        name, before, size = axis if isinstance(axis, tuple) else (axis, 1, sizes.get(axis, 0))
        if name not in sizes or not size or sizes[name] % (before * size):
            raise MspcError(f"{file}: a sharding names {axis!r:.60}, which is no axis of its mesh")
        bounds[name] |= {before, before * size}
    parts: list[tuple[str, int, int]] = []
    for name, _ in axes:
        ends = sorted(bounds[name])
        if any(b % a for a, b in itertools.pairwise(ends)):
            raise MspcError(f"{file}: sub-axes of {name!r} overlap")
        parts += [(name, a, b // a) for a, b in itertools.pairwise(ends)] or [(name, 1, 1)]
    last, entries = len(parts) - 1, list[Any]()
    for each in dims:
        numbers: list[int] = []
        for axis in each:
            name, before, size = axis if isinstance(axis, tuple) else (axis, 1, sizes[axis])
            numbers += [last - k for k, (own, begin, n) in enumerate(parts)
                        if own == name and begin >= before and begin * n <= before * size]  # fmt: skip
        entries.append(tuple(numbers) if len(numbers) > 1 else numbers[0] if numbers else -1)
    names = tuple(name if begin == 1 and n == sizes[name] else f"{name}_{begin}" for name, begin, n in parts)
    return NamedLayout(tuple(n for _, _, n in parts), names, tuple(entries))


def _of_devices(module: HloModule, text: str, rank: int) -> NamedLayout | None:
    """Return the layout of `{devices=[2,1,4]<=[8] last_tile_dim_replicate}`."""
    found = tiles_of(module, text, rank)
    if found is not None:
        return replace(found[0], tensor_map=found[0].tensor_map[:rank])
    return NamedLayout((max(1, module.partitions),), ("all",), (-1,) * rank) if "replicated" in text else None


def tiles_of(module: HloModule, text: str, rank: int) -> tuple[NamedLayout, list[str]] | None:
    """Return the layout of a list of devices, with a dimension for each subgroup after those of the tensor, and the
    kinds of the subgroups; None if the text lists none. Raise MspcError for another text, or if the order of the
    devices is that of no mesh."""
    own = _REMARKS.sub("", " ".join(text.split()))
    own = own[1:-1] if own.startswith("{{") and own.count("devices") < 2 else own  # a tuple with one result
    if own in ("{replicated}", "{manual}", "{unknown}", ""):
        return None
    single, match = re.fullmatch(r"\{maximal device=(\d+)\}", own), _DEVICES.fullmatch(own[1:-1])
    if single and int(single[1]) < max(1, module.partitions):
        return None
    if match is None:
        raise MspcError(f"{module.file}: {text!r:.80} is no sharding that mspc reads")
    tiles = [int(n) for n in match[1].split(",")]
    count = math.prod(tiles)
    groups = match[5].replace(" ", "").split(",") if match[5] else ["replicated"] if match[6] else []
    shape = [int(n) for n in (match[2] or "").split(",") if n]
    order = [int(n) for n in match[3].split(",")] if match[3] else list(range(len(shape)))
    if match[4]:
        shape, order = _mesh_order([int(n) for n in match[4].split(",")], tiles[-1] if match[6] else 1)
        if not shape:
            raise MspcError(f"{module.file}: {text!r:.80} lists devices otherwise than the axes of a mesh do")
    fits = math.prod(shape) == count and sorted(order) == list(range(len(shape))) and len(tiles) - len(groups) == rank
    if not fits or module.partitions not in (0, count):
        raise MspcError(f"{module.file}: {text!r:.80} does not fit {count} devices and {rank} dimensions")
    if not {*groups} <= {"replicated", "manual"}:
        raise MspcError(f"{module.file}: {text!r:.80} has a subgroup that mspc does not read")
    return _tiled(tiles, shape, order, text, module.file), groups


def _mesh_order(devices: Sequence[int], replicas: int) -> tuple[list[int], list[int]]:
    """Return the sizes of the mesh that lists its devices in this order, and the order of its axes; none if there is no
    such mesh. replicas: of consecutive devices, whose order has no meaning."""
    devices = [n for at in range(0, len(devices), replicas) for n in sorted(devices[at : at + replicas])]
    axes: list[tuple[int, int]] = []  # (stride, size), the innermost first
    every = [0]
    while len(every) < len(devices):
        done, stride, size = len(every), devices[len(every)], 1
        while size * done < len(devices) and devices[size * done] == size * stride:
            size += 1
        every = [stride * k + n for k in range(size) for n in every]
        axes.append((stride, size))
    nested = sorted(axes, reverse=True)
    if every != list(devices) or sorted(every) != list(range(len(devices))):
        return [], []
    return [size for _, size in nested], [nested.index(axis) for axis in reversed(axes)]


def _tiled(tiles: Sequence[int], shape: Sequence[int], order: Sequence[int], text: str, file: str) -> NamedLayout:
    """Return the layout of tiles over the axes of a mesh, taken in an order; axes are divided if a tile needs a
    part."""
    waiting = [(f"axis{axis}", 1, shape[axis]) for axis in order if shape[axis] > 1]
    dims: list[list[tuple[str, int, int]]] = []
    for tile in tiles:
        dims.append([])
        while tile > 1:
            name, before, size = waiting.pop(0)
            common = math.gcd(tile, size)
            if common == 1:
                raise MspcError(f"{file}: the tiles of {text!r:.80} are no products of its axes")
            dims[-1].append((name, before, common))
            tile //= common
            if size > common:
                waiting.insert(0, (name, before * common, size // common))
    return _on_mesh([(f"axis{axis}", size) for axis, size in enumerate(shape)], dims, file)


def finest_mesh(meshes: Iterable[tuple[int, ...]], ranks: int) -> tuple[int, ...]:
    """Return the coarsest mesh that refines some meshes of all ranks. Raise MspcError if there is none."""
    found = (ranks,)
    for mesh in meshes:
        if (joint := common_mesh(found, mesh)) is None:
            raise MspcError(f"shardings over meshes of {found} and {mesh} devices lie on no common mesh")
        found = joint
    return found


def finer_axes(layout: Layout, axes: Axes) -> list[list[str]]:
    """Return the axes of a finer mesh that shard each dimension of a layout."""
    dims, _ = on_mesh(layout, tuple(size for _, size in axes))
    return [[axes[k][0] for k in dim if axes[k][1] > 1] for dim in dims]
