"""These CUDA kernels put rows and elements at places that integers name; of several for one place the last stays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mspc.ir.types import dtype_of
from mspc.ops.cuda.index import RowLookup, add_along, gather
from mspc.ops.cuda.move import MOVE, WORDS
from mspc.ops.cuda.row_sums import add_rows
from mspc.ops.cuda.source import constants, grid_of, index_type, lanes_of
from mspc.ops.device import Array, Device, Launch, c_type, in_order

_BLOCK = 256
_ALIGNMENT = 256
_MOST_FEW = 64
"""Updates up to which every one looks whether a later one is for its place."""
_MOST = 1 << 31
"""Places that 32 bits count."""

_PLACES = r"""
extern "C" __global__ void places_of_rows(const I* ids, int* places) {
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= COUNT) return;
    long long place = 0;
    bool inside = true;
    @NAMED@
    places[at] = inside ? (int)place : -1;
}
"""
_CLEAR = r"""
extern "C" __global__ void clear_marks(int* marks) {
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < PLACES) marks[at] = -1;
}
"""
_MARK = r"""
extern "C" __global__ void mark_places(const I* ids, int* marks) {
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= UPDATES) return;
    long long id = (long long)ids[at];
    if (WRAPS && id < 0) id += SIZE;
    if (id < 0 || id >= SIZE) return;
    const long long outer = at / INNER / COUNT;
    atomicMax(marks + (outer * SIZE + id) * INNER + at % INNER, (int)(at / INNER % COUNT));
}
"""
_WRITE = r"""
extern "C" __global__ void write_marked(const void* x, const void* updates, const int* marks, void* out) {
    const Index at = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= PACKS) return;
    const int mark = marks[at / ROW];
    const Index from = (at / ROW / INNER / SIZE * COUNT + (Index)mark) * INNER + at / ROW % INNER;
    ((W*)out)[at] = mark < 0 ? ((const W*)x)[at] : ((const W*)updates)[from * ROW + at % ROW];
}
"""
_FEW = r"""
__device__ __forceinline__ long long place_of(const I* ids, int number) {
    long long place = 0;
    @NAMED@
    return place;
}
extern "C" __global__ void write_few(const I* ids, const W* updates, W* out) {
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= COUNT * ROW) return;
    const int number = (int)(at / ROW);
    bool stays = true;
    const long long place = place_of(ids, number);
    for (int later = number + 1; later < COUNT; ++later) stays = stays && place_of(ids, later) != place;
    if (place < 0 || !stays) return;
    long long rest = at % ROW, target = place;
    @TARGET@
    out[target] = updates[at];
}
"""


def scatter_few(device: Device, dims: Sequence[int], begins: Sequence[int], sizes: Sequence[int], x: Array,
                indices: Array, updates: Array, out: Array) -> Launch | None:  # fmt: skip
    """Launch that puts few slices, which indices[..., k] name in the dimensions `dims`, into a copy of x, or into x
    itself where that is `out`. None for many."""
    shape, count = x.shape, math.prod(indices.shape[:-1])
    rest = [d for d in range(len(shape)) if d not in dims]
    row, item = math.prod(shape[d] for d in rest), dtype_of(x.dtype).itemsize
    if not math.prod(shape) or not count or count > _MOST_FEW:
        return None
    lanes = lanes_of(item, shape[-1], x, updates, out) if rest and rest[-1] == len(shape) - 1 else 1
    packs = (*shape[:-1], shape[-1] // lanes)
    steps = [math.prod(packs[d + 1 :]) for d in range(len(shape))]
    named: list[str] = []
    for k, d in enumerate(dims):
        size, begin = sizes[k] if sizes else shape[d], begins[k] if begins else 0
        named.append(
            f"{{ long long id = (long long)ids[number * {len(dims)} + {k}]; if (id < 0) id += {size}ll; "
            f"id -= {begin}ll; "
            f"if (id < 0 || id >= {shape[d]}ll) return -1; place += id * {steps[d]}ll; }}"
        )
    target = [f"target += rest % {packs[d]}ll * {steps[d]}ll; rest /= {packs[d]}ll;" for d in reversed(rest)]
    source = MOVE + f"typedef {c_type(dtype_of(indices.dtype))} I;\ntypedef {WORDS[item * lanes]} W;\n"
    source += constants(COUNT=count, ROW=row // lanes)
    source += _FEW.replace("@NAMED@", "\n    ".join(named)).replace("@TARGET@", "\n    ".join(target))
    kernel = device.kernel(source, "write_few")
    grid = grid_of(-(-(count * row // lanes) // _BLOCK))

    def launch() -> None:
        if not device.same(x, out):
            device.copy(x, out)
        kernel(grid, _BLOCK, [indices, updates, out])

    return launch


def gather_nd(device: Device, shape: Sequence[int], begins: Sequence[int], sizes: Sequence[int], x: Array,
              indices: Array, out: Array) -> Launch | None:  # fmt: skip
    """Launch of the rows of x at indices[..., k]; x is a slice of `sizes` that begins at `begins` in its first
    dimensions."""
    rows, inner, count = _lookup(shape, indices)
    if not math.prod(out.shape) or max(rows, count) >= _MOST:
        return None
    places = device.scratch(4 * count).view(np.int32)
    found = gather(device, "gather_nd", RowLookup(1, 1, rows, inner, count), x, places, out)
    return in_order(_places(device, shape, begins, sizes, indices, places), found)


def scatter_nd(device: Device, shape: Sequence[int], begins: Sequence[int], sizes: Sequence[int], x: Array,
               indices: Array, updates: Array, out: Array, adds: bool) -> Launch | None:  # fmt: skip
    """Launch that puts rows into a copy of x, or adds them there; see `gather_nd`."""
    rows, inner, count = _lookup(shape, indices)
    if not math.prod(out.shape) or not count or not inner or max(rows, count) >= _MOST:
        return None
    held = -(-4 * count // _ALIGNMENT) * _ALIGNMENT
    memory = device.scratch(held + (0 if adds else 4 * rows))
    places = memory[: 4 * count].view(np.int32)
    found = _places(device, shape, begins, sizes, indices, places)
    if adds:
        lookup = RowLookup(1, 1, rows, inner, count)
        return in_order(found, add_rows(device, "scatter_add", lookup, updates, places, out, x, held))
    marks = memory[held:].view(np.int32)
    return in_order(found, _marked(device, (1, rows, count, 1), inner, x, places, False, updates, out, marks))


def scatter_along(device: Device, sizes: tuple[int, int, int, int], x: Array, ids: Array, updates: Array, out: Array,
                  adds: bool) -> Launch | None:  # fmt: skip
    """Launch of out[o, ids[o, p, i], i] = updates[o, p, i] in a copy of x. sizes: (outer, places, updates, inner)."""
    outer, size, count, inner = sizes
    if not math.prod(out.shape) or not math.prod(updates.shape) or max(outer * size * inner, count) >= _MOST:
        return None
    if adds:
        return add_along(device, "scatter_along", outer, size, count, inner, ids, updates, out, x)
    marks = device.scratch(4 * outer * size * inner).view(np.int32)
    return _marked(device, sizes, 1, x, ids, True, updates, out, marks)


def _lookup(shape: Sequence[int], indices: Array) -> tuple[int, int, int]:
    """(rows that can be named, elements of a row, rows that are)."""
    named = indices.shape[-1]
    return math.prod(shape[:named]), math.prod(shape[named:]), math.prod(indices.shape[:-1])


def _places(device: Device, shape: Sequence[int], begins: Sequence[int], sizes: Sequence[int], indices: Array,
            places: Array) -> Launch:  # fmt: skip
    """Launch of the row that each index names, -1 for one of another slice."""
    named, count = indices.shape[-1], math.prod(indices.shape[:-1])
    lines: list[str] = []
    for d in range(named):
        size, begin = (sizes or shape)[d], begins[d] if begins else 0
        lines.append(
            f"{{ long long id = (long long)ids[at * {named} + {d}]; if (id < 0) id += {size}ll; id -= {begin}ll; "
            f"inside = inside && id >= 0 && id < {shape[d]}ll; place = place * {shape[d]}ll + id; }}"
        )
    source = f"typedef {c_type(dtype_of(indices.dtype))} I;\n" + constants(COUNT=count)
    kernel = device.kernel(source + _PLACES.replace("@NAMED@", "\n    ".join(lines)), "places_of_rows")
    grid = grid_of(-(-count // _BLOCK))
    return lambda: kernel(grid, _BLOCK, [indices, places])


def _marked(device: Device, sizes: tuple[int, int, int, int], row: int, x: Array, ids: Array, wraps: bool,
            updates: Array, out: Array, marks: Array) -> Launch:  # fmt: skip
    """Launches that note for every place the last update, and copy that or what was there. row: elements of a place."""
    outer, size, count, inner = sizes
    given, places = outer * count * inner, outer * size * inner
    item = dtype_of(x.dtype).itemsize
    lanes = lanes_of(item, row, x, updates, out)
    packs = places * row // lanes
    head = f"typedef {c_type(dtype_of(ids.dtype))} I;\n"
    head += constants(UPDATES=given, SIZE=size, COUNT=count, INNER=inner, WRAPS=wraps)
    clear = device.kernel(constants(PLACES=places) + _CLEAR, "clear_marks")
    mark = device.kernel(head + _MARK, "mark_places")
    source = MOVE + f"typedef {WORDS[item * lanes]} W;\ntypedef {index_type(max(given, places) * row)} Index;\n"
    source += constants(PACKS=packs, ROW=row // lanes, SIZE=size, COUNT=count, INNER=inner) + _WRITE
    write = device.kernel(source, "write_marked")

    def launch() -> None:
        clear(grid_of(-(-places // _BLOCK)), _BLOCK, [marks])
        mark(grid_of(-(-given // _BLOCK)), _BLOCK, [ids, marks])
        write(grid_of(-(-packs // _BLOCK)), _BLOCK, [x, updates, marks, out])

    return launch

