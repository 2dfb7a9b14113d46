"""Shardings in a text: Shardy's attributes on a mesh of named axes, and the device lists of GSPMD."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Layout, NamedLayout
from mspc.readers.stablehlo.module import HloModule, SymbolReference, Words

Axes = Sequence[tuple[str, int]]
_DEVICES = re.compile(
    r"\{devices=\[([\d,]+)\](?:<=\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))(?:\s*last_tile_dims=\{([\w, ]+)\})?"
    r"(?:\s*(last_tile_dim_replicate))?[^}]*\}"
)
WHOLE = frozenset(("{replicated}", "{manual}", "{unknown}", ""))
"""Shardings that divide no dimension."""


def sharding_in(module: HloModule, attributes: Mapping[str, Any]) -> Any:
    """Return the sharding of an argument or a result as it is written, None if there is none."""
    found = attributes.get("sdy.sharding")
    return attributes.get("mhlo.sharding") if found is None else found


def layout_of(module: HloModule, sharding: Any, rank: int, leading: Sequence[str] = ()) -> NamedLayout | None:
    """Return the layout of a sharding; None if it leaves all dimensions open. leading: axes of dimensions before its
    own. Raise MspcError for an unknown form."""
    if isinstance(sharding, str):
        return _of_devices(module, sharding, rank)
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
    if text.replace(" ", "") in WHOLE or text.startswith("{maximal"):
        return NamedLayout((max(1, module.partitions),), ("all",), (-1,) * rank) if text == "{replicated}" else None
    match = _DEVICES.fullmatch(text.strip())
    if match is None:
        raise MspcError(f"{module.file}: {text!r:.80} is no sharding that mspc reads")
    tiles = [int(n) for n in match[1].split(",")]
    count = math.prod(tiles)
    if match[2]:
        shape = [int(n) for n in match[2].split(",")]
        order = [int(n) for n in match[3].split(",")] if match[3] else list(range(len(shape)))
    else:
        shape, order = [count], [0]
        if match[4] != ",".join(map(str, range(count))):
            raise MspcError(f"{module.file}: {text!r:.80} lists devices otherwise than by number")
    if math.prod(shape) != count or sorted(order) != list(range(len(shape))) or len(tiles) < rank:
        raise MspcError(f"{module.file}: {text!r:.80} does not fit {count} devices and {rank} dimensions")
    return _tiled(tiles[:rank], shape, order, text, module.file)


def _tiled(tiles: Sequence[int], shape: Sequence[int], order: Sequence[int], text: str, file: str) -> NamedLayout:
    """Return the layout of tiles over the axes of a mesh, taken in an order; axes are divided if a tile needs a
    part."""
    parts: list[list[int]] = [[] for _ in shape]  # sizes of the parts of each axis
    uses: list[list[tuple[int, int]]] = []
    waiting = [(axis, shape[axis]) for axis in order]
    for tile in tiles:
        own: list[tuple[int, int]] = []
        while tile > 1:
            axis, size = waiting.pop(0) if waiting else (-1, 0)
            common = math.gcd(tile, size)
            if axis < 0 or (common == 1 and size > 1):
                raise MspcError(f"{file}: the tiles of {text!r:.80} are no products of its axes")
            if size == 1:
                continue
            own.append((axis, len(parts[axis])))
            parts[axis].append(common)
            tile //= common
            if size > common:
                waiting.insert(0, (axis, size // common))
        uses.append(own)
    for axis, size in waiting:
        parts[axis].append(size)
    sizes = [n for axis in parts for n in axis or [1]]
    begins = [sum(len(each) or 1 for each in parts[:axis]) for axis in range(len(parts))]
    last, entries = len(sizes) - 1, list[Any]()
    for own in uses:
        numbers = [last - (begins[axis] + part) for axis, part in own]
        entries.append(tuple(numbers) if len(numbers) > 1 else numbers[0] if numbers else -1)
    return NamedLayout(tuple(sizes), tuple(f"axis{k}" for k in range(len(sizes))), tuple(entries))


def finer_axes(layout: Layout, sizes: Sequence[int], names: Sequence[str]) -> list[list[str]]:
    """Return the axes of a finer mesh that shard each dimension of a layout."""
    strides = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]
    found: list[list[str]] = []
    for dim in layout.dims:
        own: list[str] = []
        for axis in dim:
            begin = math.prod(layout.mesh[axis + 1 :])
            end = begin * layout.mesh[axis]
            own += [name for name, stride, n in zip(names, strides, sizes, strict=True)
                    if begin <= stride and stride * n <= end and n > 1]  # fmt: skip
        found.append(own)
    return found
