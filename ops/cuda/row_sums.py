"""These CUDA kernels add up the rows that name the same place: the transpose of a lookup, or of several.

The names are sorted first, equal ones in the order of their rows, so that every sum has one owner and the same bits
each time. A place that many rows name is not left to one thread: rows that fill a tile of the sorted ones are added up
ahead, by threads of their own, and where places have many rows on average, several lanes share one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from mspc.ir.types import dtype_of
from mspc.ops.cuda.index import RowLookup
from mspc.ops.cuda.row_names import BLOCK, NamedRows, divided, head, sorting, table_of
from mspc.ops.cuda.source import COMMON, accumulating_type, constants, grid_of, index_type, lanes_of
from mspc.ops.device import Array, Device, Launch, c_type, in_order

_TILE = 16
"""Sorted rows that are added up ahead, at least."""
_ABREAST = 8
"""Packs of a row that neighbouring threads should have."""

_BEGINS = r"""
extern "C" __global__ void __launch_bounds__(BLOCK) find_begins(const Lookup* table, const u64* sorted, int* begins) {
    const int number = lookup_of_block<&Lookup::begins_block>(table);
    const Lookup& lookup = table[number];
    const long long at = (blockIdx.x - (long long)lookup.begins_block) * BLOCK + threadIdx.x;
    const long long places = size_of(lookup) + 1;
    if (at >= BATCH * places) return;
    sorted += (number * BATCH + at / places) * COUNT;
    begins[lookup.begins + at] = names_before(sorted, COUNT, name_of((int)(at % places), 0));
}
"""
SUM = r"""
// The rows are (LOOKUPS, batch, MIDDLE, COUNT, INNER) packs: a group is what has its own sums.
constexpr int GROUPS = BATCH * MIDDLE;
__device__ __forceinline__ void add(A (&total)[V], const T* row) {
    const Pack<T, V> given = pack_at<T, V>(row);
    for (int j = 0; j < V; ++j) total[j] += (A)wide(given.at[j]);
}

extern "C" __global__ void __launch_bounds__(BLOCK) add_tiles(const Lookup* table, const u64* sorted, A* sums) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= (Index)LOOKUPS * GROUPS * TILES * INNER) return;
    const Index i = at % INNER, tile = at / INNER % TILES, group = at / INNER / TILES;
    const u64* mine = sorted + group / MIDDLE * COUNT + tile * TILE;
    const int place = place_of_name(mine[0]);
    if (place == NONE || place != place_of_name(mine[TILE - 1])) return;
    const T* const rows = (const T*)table[group / GROUPS].rows;
    A total[V];
    for (int j = 0; j < V; ++j) total[j] = 0;
#pragma unroll 4
    for (int n = 0; n < TILE; ++n)
        add(total, rows + ((group % GROUPS * COUNT + (unsigned int)mine[n]) * INNER + i) * V);
    for (int j = 0; j < V; ++j) sums[at * V + j] = total[j];
}

// Adds the sorted rows from `begin` to `end` of a group up: their packs i, i + APART and so on, EACH of them. The lane
// `share` of SHARE has its part: from the begin to the first tile, the tiles that are full, and what remains.
__device__ __forceinline__ void add_sorted(A (&total)[EACH][V], const T* rows, const u64* sorted, const A* sums,
                                           int begin, int end, Index i, int share) {
    auto add_row = [&](unsigned int row) {
#pragma unroll
        for (int e = 0; e < EACH; ++e) add(total[e], rows + ((Index)row * INNER + i + e * APART) * V);
    };
    int first = (begin + TILE - 1) / TILE * TILE, last = end / TILE * TILE;
    if (first >= last) first = last = end;
#pragma unroll 4
    for (int n = begin + share; n < first; n += SHARE) add_row((unsigned int)sorted[n]);
    for (int n = first / TILE + share; n < last / TILE; n += SHARE)
        for (int e = 0; e < EACH; ++e)
            for (int j = 0; j < V; ++j) total[e][j] += sums[((Index)n * INNER + i + e * APART) * V + j];
#pragma unroll 4
    for (int n = last + share; n < end; n += SHARE) add_row((unsigned int)sorted[n]);
}
// What the lanes of one place have, put together.
__device__ __forceinline__ void join_shares(A (&total)[EACH][V]) {
    for (int offset = SHARE / 2; offset; offset >>= 1)
        for (int e = 0; e < EACH; ++e)
            for (int j = 0; j < V; ++j) total[e][j] += __shfl_xor_sync(0xffffffffu, total[e][j], offset);
}
"""
_PLACES = r"""
// A thread has EACH packs of a row, every APART-th of them.
extern "C" __global__ void __launch_bounds__(BLOCK) @NAME@(
    const Lookup* table, const u64* sorted, const int* begins, const A* sums) {
    const int number = lookup_of_block<&Lookup::block>(table), share = threadIdx.x % SHARE;
    const Lookup& lookup = table[number];
    const Index size = (Index)size_of(lookup);
    const Index at = ((blockIdx.x - (Index)lookup.block) * BLOCK + threadIdx.x) / SHARE;
    const bool there = at < GROUPS * size * APART;
    const Index i = at % APART, place = at / APART % size, group = at / APART / size;
    A total[EACH][V];
    for (int e = 0; e < EACH; ++e)
        for (int j = 0; j < V; ++j) total[e][j] = 0;
    if (there) {
        begins += lookup.begins + group / MIDDLE * (size + 1) + place;
        const Index batch = number * BATCH + group / MIDDLE;
        add_sorted(total, (const T*)lookup.rows + group * COUNT * INNER * V, sorted + batch * COUNT,
                   sums + ((Index)number * GROUPS + group) * TILES * INNER * V, begins[0], begins[1], i, share);
    }
    join_shares(total);
    if (!there || share) return;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const Index to = ((group * size + place) * INNER + i + e * APART) * V;
        Pack<T, V> made;
        for (int j = 0; j < V; ++j)
            made.at[j] = narrow<T>((BASED ? (A)wide(((const T*)lookup.base)[to + j]) : (A)0) + total[e][j]);
        put_pack<T, V>((T*)lookup.out + to, made);
    }
}
"""


def add_rows(device: Device, name: str, lookup: RowLookup, rows: Array, ids: Array, out: Array,
             base: Array | None = None, held: int = 0) -> Launch | None:  # fmt: skip
    """Launch that sums the rows of each id: the transpose of `gather`. They are added to the rows of `base`, or to
    zeros. held: bytes at the begin of the scratch memory that are taken.
    """
    return add_rows_of_several(device, name, [NamedRows(lookup, rows, ids, out, base)], held)


def add_rows_of_several(device: Device, name: str, several: Sequence[NamedRows], held: int = 0) -> Launch | None:
    """The same for several, in one set of launches for all that `alike` says to be alike; all or none have a base."""
    kinds: dict[Hashable, list[NamedRows]] = {}
    for one in several:
        if math.prod(one.out.shape):
            kinds.setdefault(alike(one), []).append(one)
    return in_order(*[_launch(device, name, own, held) for own in kinds.values()]) if kinds else None


def alike(one: NamedRows) -> Hashable:
    """Equal for what one set of launches adds up."""
    lookup = one.lookup
    dtypes = dtype_of(one.rows.dtype), dtype_of(one.ids.dtype)
    return dtypes, lookup.batch, lookup.middle, lookup.inner, lookup.count, share_of(lookup)


def share_of(lookup: RowLookup) -> int:
    """Lanes that share a place."""
    share = 1
    while share < 32 and share * 8 <= lookup.count // lookup.size:
        share *= 2
    return share


def tile_of(count: int) -> int:
    """Sorted rows that are added up ahead where a lookup has so many."""
    tile = _TILE
    while tile * tile * 32 < count:
        tile *= 2
    return tile


def sum_source(sums: Sequence[NamedRows], lanes: int, each: int) -> str:
    """`SUM` and what it needs, for rows in packs of so many elements, of which a thread has `each`."""
    lookup, dtype = sums[0].lookup, dtype_of(sums[0].rows.dtype)
    most = max(lookup.count, *(one.lookup.size for one in sums))
    elements = max(len(sums) * lookup.count, most) * lookup.batch * lookup.middle * lookup.inner
    packs, tile = lookup.inner // lanes, tile_of(lookup.count)
    source = COMMON + f"typedef {c_type(dtype)} T;\ntypedef {accumulating_type(dtype)} A;\n"
    source += f"typedef {index_type(elements)} Index;\n" + head(sums)
    return source + constants(
        MIDDLE=lookup.middle, INNER=packs, V=lanes, TILE=tile, TILES=max(1, lookup.count // tile),
        SHARE=share_of(lookup), EACH=each, APART=packs // each,
    ) + SUM  # fmt: skip


def bytes_of_tiles(sums: Sequence[NamedRows]) -> int:
    """Bytes of the sums that `add_tiles` makes."""
    lookup, dtype = sums[0].lookup, dtype_of(sums[0].rows.dtype)
    groups = len(sums) * lookup.batch * lookup.middle
    return groups * (lookup.count // tile_of(lookup.count)) * lookup.inner * max(4, dtype.itemsize)


def adding_tiles(device: Device, source: str, sums: Sequence[NamedRows], packs: int, arrays: list[Array]) -> Launch:
    """Launch of `add_tiles` where there are any. arrays: table, sorted names, and the sums of tiles."""
    lookup = sums[0].lookup
    tiles = len(sums) * lookup.batch * lookup.middle * (lookup.count // tile_of(lookup.count))
    if not tiles:
        return lambda: None
    ahead = device.kernel(source, "add_tiles")
    return lambda: ahead(grid_of(-(-tiles * packs // BLOCK)), BLOCK, arrays)


def _launch(device: Device, name: str, sums: Sequence[NamedRows], held: int) -> Launch:
    lookup, dtype = sums[0].lookup, dtype_of(sums[0].rows.dtype)
    based = sums[0].base is not None
    arrays = [a for one in sums for a in (one.rows, one.out, *([] if one.base is None else [one.base]))]
    lanes = lanes_of(dtype.itemsize, lookup.inner, *arrays)
    packs, groups, share = lookup.inner // lanes, lookup.batch * lookup.middle, share_of(lookup)
    each = max(n for n in (1, 2, 4, 8) if n == 1 or (packs % n == 0 and packs // n >= _ABREAST and share == 1))
    source = sum_source(sums, lanes, each) + constants(BASED=based) + _PLACES.replace("@NAME@", name)
    begins_of = [lookup.batch * (one.lookup.size + 1) for one in sums]
    names = len(sums) * lookup.batch * lookup.count
    parts = (8 * names, 8 * names, 4 * sum(begins_of), bytes_of_tiles(sums))
    chunks, sorted_names, begins, tiles = divided(device, held, parts)
    begins_blocks = [-(-n // BLOCK) for n in begins_of]
    blocks = [-(-groups * one.lookup.size * (packs // each) * share // BLOCK) for one in sums]
    table = table_of(device, sums, begins_blocks, blocks)
    sort = sorting(device, sums, table, chunks, sorted_names)
    # Sorting does not depend on the rows: lookups in tables of one size share its kernels.
    find = device.kernel(head(sums) + _BEGINS, "find_begins")
    ahead = adding_tiles(device, source, sums, packs, [table, sorted_names, tiles])
    add = device.kernel(source, name)

    def launch() -> None:
        sort()
        find(grid_of(sum(begins_blocks)), BLOCK, [table, sorted_names, begins])
        ahead()
        add(grid_of(sum(blocks)), BLOCK, [table, sorted_names, begins, tiles])

    return launch
