"""These CUDA kernels add up the rows that name the same place: the transpose of a lookup.

The names are sorted first, equal ones in the order of their rows, so that every sum has one owner and the same bits
each time. A chunk is sorted by counting, for each of its names, those that come before it; a name's place among all of
them is the sum of its places in the chunks. A place that many rows name is not left to one thread: rows that fill a
tile of the sorted ones are added up ahead, by threads of their own, and where places have many rows on average,
several lanes share one.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mspc.ir.types import dtype_of
from mspc.ops.cuda.index import RowLookup
from mspc.ops.cuda.source import COMMON, accumulating_type, constants, grid_of, lanes_of
from mspc.ops.device import Array, Device, Launch, c_type

_BLOCK = 256
_CHUNK = 2048
"""Names that are sorted by counting, at least; a multiple of the block."""
_CHUNKS = 64
"""Chunks at most, in each of which every name looks its place up."""
_TILE = 16
"""Sorted rows that are added up ahead, at least."""
_ABREAST = 8
"""Packs of a row that neighbouring threads should have."""
_ALIGNMENT = 256

_SORT = r"""
// A name: its place, SIZE for none, in the upper half, and its row in the lower one.
__device__ __forceinline__ u64 name_of(int place, int row) { return (u64)(place < 0 ? SIZE : place) << 32 | row; }

extern "C" __global__ void __launch_bounds__(BLOCK) sort_chunks(const I* ids, u64* sorted) {
    __shared__ int places[BLOCK];
    const int blocks = (COUNT + BLOCK - 1) / BLOCK, block = blockIdx.x % blocks;
    const int begin = block * BLOCK / CHUNK * CHUNK, end = begin + CHUNK < COUNT ? begin + CHUNK : COUNT;
    const int at = block * BLOCK + threadIdx.x;
    ids += (Index)(blockIdx.x / blocks) * COUNT;
    sorted += (Index)(blockIdx.x / blocks) * COUNT;
    const int found = at < end ? place_of(ids[at]) : -1;
    const int mine = found < 0 ? SIZE : found;
    int ahead = 0;
    for (int start = begin; start < end; start += BLOCK) {
        const int other = start + threadIdx.x < end ? place_of(ids[start + threadIdx.x]) : -1;
        __syncthreads();
        // What is behind the end comes behind every name.
        places[threadIdx.x] = start + threadIdx.x >= end ? SIZE + 1 : other < 0 ? SIZE : other;
        __syncthreads();
        if (start == block * BLOCK) {
            for (int i = 0; i < BLOCK; ++i) ahead += places[i] < mine + (i < (int)threadIdx.x);
        } else {
            const int bound = mine + (start < at);
#pragma unroll 8
            for (int i = 0; i < BLOCK; ++i) ahead += places[i] < bound;
        }
    }
    if (at < end) sorted[begin + ahead] = name_of(found, at);
}

// How many of `count` sorted names come before this one.
__device__ __forceinline__ int names_before(const u64* sorted, int count, u64 name) {
    int low = 0;
    while (count > 0) {
        const int half = count / 2;
        if (sorted[low + half] < name) { low += half + 1; count -= half + 1; }
        else count = half;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(BLOCK) merge_chunks(const u64* chunks, u64* sorted) {
    const Index thread = (Index)blockIdx.x * BLOCK + threadIdx.x;
    if (thread >= (Index)BATCH * COUNT) return;
    const int at = (int)(thread % COUNT), own = at / CHUNK * CHUNK;
    chunks += thread - at;
    sorted += thread - at;
    const u64 name = chunks[at];
    int place = at - own;
    for (int begin = 0; begin < COUNT; begin += CHUNK)
        if (begin != own) place += names_before(chunks + begin, begin + CHUNK < COUNT ? CHUNK : COUNT - begin, name);
    sorted[place] = name;
}

extern "C" __global__ void __launch_bounds__(BLOCK) find_begins(const u64* sorted, int* begins) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= (Index)BATCH * (SIZE + 1)) return;
    begins[at] = names_before(sorted + at / (SIZE + 1) * COUNT, COUNT, name_of((int)(at % (SIZE + 1)), 0));
}
"""
_ADD = r"""
__device__ __forceinline__ void add(A (&total)[V], const T* row) {
    const Pack<T, V> given = pack_at<T, V>(row);
    for (int j = 0; j < V; ++j) total[j] += (A)wide(given.at[j]);
}

extern "C" __global__ void __launch_bounds__(BLOCK) add_tiles(const T* rows, const u64* sorted, A* sums) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= (Index)BATCH * MIDDLE * TILES * INNER) return;
    const Index i = at % INNER, tile = at / INNER % TILES, group = at / INNER / TILES;
    const u64* mine = sorted + group / MIDDLE * COUNT + tile * TILE;
    const int place = (int)(mine[0] >> 32);
    if (place == SIZE || place != (int)(mine[TILE - 1] >> 32)) return;
    A total[V];
    for (int j = 0; j < V; ++j) total[j] = 0;
#pragma unroll 4
    for (int n = 0; n < TILE; ++n) add(total, rows + ((group * COUNT + (unsigned int)mine[n]) * INNER + i) * V);
    for (int j = 0; j < V; ++j) sums[at * V + j] = total[j];
}

// A thread has EACH packs of a row, every APART-th of them.
extern "C" __global__ void __launch_bounds__(BLOCK) @NAME@(
    const T* rows, const u64* sorted, const int* begins, const A* sums, const T* base, T* out) {
    const Index at = ((Index)blockIdx.x * BLOCK + threadIdx.x) / SHARE;
    const int share = threadIdx.x % SHARE;
    const bool there = at < (Index)BATCH * MIDDLE * SIZE * APART;
    const Index i = at % APART, place = at / APART % SIZE, group = at / APART / SIZE;
    A total[EACH][V];
    for (int e = 0; e < EACH; ++e)
        for (int j = 0; j < V; ++j) total[e][j] = 0;
    auto add_row = [&](unsigned int row) {
#pragma unroll
        for (int e = 0; e < EACH; ++e) add(total[e], rows + ((group * COUNT + row) * INNER + i + e * APART) * V);
    };
    if (there) {
        const u64* mine = sorted + group / MIDDLE * COUNT;
        begins += group / MIDDLE * (SIZE + 1) + place;
        const int begin = begins[0], end = begins[1];
        // From the begin to the first tile, the tiles that are full, and what remains.
        int first = (begin + TILE - 1) / TILE * TILE, last = end / TILE * TILE;
        if (first >= last) first = last = end;
#pragma unroll 4
        for (int n = begin + share; n < first; n += SHARE) add_row((unsigned int)mine[n]);
        for (int n = first / TILE + share; n < last / TILE; n += SHARE)
            for (int e = 0; e < EACH; ++e)
                for (int j = 0; j < V; ++j)
                    total[e][j] += sums[((group * TILES + n) * INNER + i + e * APART) * V + j];
#pragma unroll 4
        for (int n = last + share; n < end; n += SHARE) add_row((unsigned int)mine[n]);
    }
    for (int offset = SHARE / 2; offset; offset >>= 1)
        for (int e = 0; e < EACH; ++e)
            for (int j = 0; j < V; ++j) total[e][j] += __shfl_xor_sync(0xffffffffu, total[e][j], offset);
    if (!there || share) return;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const Index to = ((group * SIZE + place) * INNER + i + e * APART) * V;
        Pack<T, V> made;
        for (int j = 0; j < V; ++j) made.at[j] = narrow<T>((BASED ? (A)wide(base[to + j]) : (A)0) + total[e][j]);
        put_pack<T, V>(out + to, made);
    }
}
"""


def add_rows(device: Device, name: str, lookup: RowLookup, rows: Array, ids: Array, out: Array,
             base: Array | None = None, held: int = 0) -> Launch | None:  # fmt: skip
    """Launch that sums the rows of each id: the transpose of `gather`. They are added to the rows of `base`, or to
    zeros. held: bytes at the begin of the scratch memory that are taken.
    """
    if not math.prod(out.shape):
        return None
    dtype = dtype_of(rows.dtype)
    lanes = lanes_of(dtype.itemsize, lookup.inner, rows, out, *([] if base is None else [base]))
    packs, groups, names = lookup.inner // lanes, lookup.batch * lookup.middle, lookup.batch * lookup.count
    chunk, tile = _CHUNK, _TILE
    while chunk * _CHUNKS < lookup.count:
        chunk *= 2
    while tile * tile * 32 < lookup.count:
        tile *= 2
    tiles = lookup.count // tile
    share = 1
    while share < 32 and share * 8 <= lookup.count // lookup.size:
        share *= 2
    each = max(n for n in (1, 2, 4, 8) if n == 1 or (packs % n == 0 and packs // n >= _ABREAST and share == 1))
    # Sorting does not depend on the rows: lookups in tables of one size share its kernels.
    sorting = replace(lookup, middle=1, inner=1).head(ids, 1)
    sorting += constants(BLOCK=_BLOCK, BATCH=lookup.batch, CHUNK=chunk) + _SORT
    source = COMMON + f"typedef {c_type(dtype)} T;\ntypedef {accumulating_type(dtype)} A;\n" + lookup.head(ids, lanes)
    source += constants(
        V=lanes, BLOCK=_BLOCK, BATCH=lookup.batch, TILE=tile, TILES=max(1, tiles), SHARE=share, EACH=each,
        APART=packs // each, BASED=base is not None,
    ) + _ADD.replace("@NAME@", name)  # fmt: skip
    parts = (8 * names, 8 * names, 4 * lookup.batch * (lookup.size + 1),
             groups * tiles * lookup.inner * max(4, dtype.itemsize))  # fmt: skip
    chunks, sorted_names, begins, sums = _divided(device, held, parts)
    sort = device.kernel(sorting, "sort_chunks")
    merge = device.kernel(sorting, "merge_chunks") if lookup.count > chunk else None
    find = device.kernel(sorting, "find_begins")
    ahead = device.kernel(source, "add_tiles") if tiles else None
    add = device.kernel(source, name)
    given = out if base is None else base

    def grid(threads: int) -> tuple[int, int, int]:
        return grid_of(-(-threads // _BLOCK))

    def launch() -> None:
        if names:
            sort(grid_of(lookup.batch * -(-lookup.count // _BLOCK)), _BLOCK, [ids, chunks if merge else sorted_names])
        if merge is not None:
            merge(grid(names), _BLOCK, [chunks, sorted_names])
        find(grid(lookup.batch * (lookup.size + 1)), _BLOCK, [sorted_names, begins])
        if ahead is not None:
            ahead(grid(groups * tiles * packs), _BLOCK, [rows, sorted_names, sums])
        add(grid(groups * lookup.size * packs // each * share), _BLOCK, [rows, sorted_names, begins, sums, given, out])

    return launch


def _divided(device: Device, held: int, sizes: tuple[int, ...]) -> list[Array]:
    """Scratch memory of so many bytes each, behind `held` ones."""
    begins = [-(-held // _ALIGNMENT) * _ALIGNMENT]
    for size in sizes:
        begins.append(begins[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    memory = device.scratch(begins[-1])
    return [memory[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]
