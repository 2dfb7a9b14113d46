"""These CUDA kernels sort the names of rows, those of several lookups in one launch.

A name is the place that an integer names and the number of its row: equal places stay in the order of their rows. A
chunk is sorted by counting, for each of its names, those that come before it; a name's place among all of them is the
sum of its places in the chunks.

A table on the GPU has a row for every lookup: where its arrays lie, and what is not the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import dtype_of
from mspc.ops.cuda.index import RowLookup
from mspc.ops.cuda.source import address, constants, grid_of
from mspc.ops.device import Array, Device, Launch, c_type

BLOCK = 256
_CHUNK = 512
"""Names that are sorted by counting, at least; a multiple of the block, and a power of two."""
_SEARCH = 18
"""Times the number of names at most the square of a chunk. A name is compared with all of its own chunk and searched
for in all others: about there both together are least, a step of a search counted as four comparisons."""
ABREAST = 8
"""Chunks in which a thread searches at once."""
_ALIGNMENT = 256

SORTED = r"""
// Whether a key is below another one, or `also` equal to it.
template <typename Key> __device__ __forceinline__ bool comes_before(Key key, Key other, bool also) {
    return key < other || (also && key == other);
}
// How many of `count` sorted keys come before this one.
template <typename Key> __device__ __forceinline__ int keys_before(const Key* sorted, int count, Key key, bool also) {
    int low = 0;
    while (count > 0) {
        const int half = count / 2;
        if (comes_before(sorted[low + half], key, also)) { low += half + 1; count -= half + 1; }
        else count = half;
    }
    return low;
}
"""
MERGED = r"""
// The place in its line of the key at `at`, of COUNT keys in sorted chunks; equal ones of chunks ahead come before it.
template <typename Key> __device__ __forceinline__ int place_of_key(const Key* keys, int at) {
    const int own = at / CHUNK * CHUNK;
    const Key mine = keys[at];
    int place = at - own;
    // Searches in chunks that are full go abreast, as each step waits for memory.
    for (int first = 0; first < COUNT / CHUNK; first += ABREAST) {
        int low[ABREAST];
#pragma unroll
        for (int n = 0; n < ABREAST; ++n) low[n] = 0;
        for (int step = CHUNK / 2; step; step >>= 1)
#pragma unroll
            for (int n = 0; n < ABREAST; ++n)
                if (first + n < COUNT / CHUNK) {
                    const int begin = (first + n) * CHUNK;
                    if (comes_before(keys[begin + low[n] + step - 1], mine, begin < own)) low[n] += step;
                }
#pragma unroll
        for (int n = 0; n < ABREAST; ++n) {
            const int begin = (first + n) * CHUNK;
            if (first + n < COUNT / CHUNK && begin != own)
                place += low[n] + comes_before(keys[begin + low[n]], mine, begin < own);
        }
    }
    const int rest = COUNT / CHUNK * CHUNK;
    if (rest < COUNT && rest != own) place += keys_before(keys + rest, COUNT - rest, mine, rest < own);
    return place;
}
"""
NAMES = r"""
// A row of the table. Places of parts that are laid end to end begin at `begins`, those of blocks at `block`.
struct Lookup { u64 ids, rows, base, out, size, offset, total, begins, begins_block, block; };
__device__ __forceinline__ long long size_of(const Lookup& lookup) { return ALIKE ? SIZE : (long long)lookup.size; }
constexpr int NONE = 0x7ffffffe;
// The row of this part that an id names, NONE for none.
__device__ __forceinline__ int place_of(I id, const Lookup& lookup) {
    const long long total = ALIKE ? TOTAL : (long long)lookup.total;
    long long place = (long long)id;
    if (total && place < 0) place += total;
    place -= ALIKE ? OFFSET : (long long)lookup.offset;
    return place >= 0 && place < size_of(lookup) ? (int)place : NONE;
}
// A name: its place in the upper half, and its row in the lower one.
__device__ __forceinline__ u64 name_of(int place, int row) { return (u64)place << 32 | row; }
__device__ __forceinline__ int place_of_name(u64 name) { return (int)(name >> 32); }

// How many of `count` sorted names come before this one.
__device__ __forceinline__ int names_before(const u64* sorted, int count, u64 name) {
    return keys_before(sorted, count, name, false);
}
// The lookup whose share of the blocks this one is of: the last that begins at it or before.
template <u64 Lookup::*BEGIN> __device__ __forceinline__ int lookup_of_block(const Lookup* table) {
    int low = 0;
    for (int count = LOOKUPS; count > 1;) {
        const int half = count / 2;
        if (table[low + half].*BEGIN <= blockIdx.x) { low += half; count -= half; }
        else count = half;
    }
    return low;
}
"""
_SORT = r"""
extern "C" __global__ void __launch_bounds__(BLOCK) sort_chunks(const Lookup* table, u64* sorted) {
    __shared__ int places[BLOCK];
    const int blocks = (COUNT + BLOCK - 1) / BLOCK, block = blockIdx.x % blocks, group = blockIdx.x / blocks;
    const int begin = block * BLOCK / CHUNK * CHUNK, end = begin + CHUNK < COUNT ? begin + CHUNK : COUNT;
    const int at = block * BLOCK + threadIdx.x;
    const Lookup& lookup = table[group / BATCH];
    const I* const ids = (const I*)lookup.ids + (u64)(group % BATCH) * COUNT;
    sorted += (u64)group * COUNT;
    const int mine = at < end ? place_of(ids[at], lookup) : NONE;
    int ahead = 0;
    for (int start = begin; start < end; start += BLOCK) {
        const int other = start + threadIdx.x < end ? place_of(ids[start + threadIdx.x], lookup) : -1;
        __syncthreads();
        // What is behind the end comes behind every name.
        places[threadIdx.x] = other < 0 ? NONE + 1 : other;
        __syncthreads();
        if (start == block * BLOCK) {
            for (int i = 0; i < BLOCK; ++i) ahead += places[i] < mine + (i < (int)threadIdx.x);
        } else {
            const int bound = mine + (start < at);
#pragma unroll 8
            for (int i = 0; i < BLOCK; ++i) ahead += places[i] < bound;
        }
    }
    if (at < end) sorted[begin + ahead] = name_of(mine, at);
}

extern "C" __global__ void __launch_bounds__(BLOCK) merge_chunks(const u64* chunks, u64* sorted) {
    const u64 thread = (u64)blockIdx.x * BLOCK + threadIdx.x;
    if (thread >= (u64)LOOKUPS * BATCH * COUNT) return;
    const int at = (int)(thread % COUNT);
    chunks += thread - at;
    sorted[thread - at + place_of_key(chunks, at)] = chunks[at];
}
"""


@dataclass(frozen=True, slots=True)
class NamedRows:
    """Rows that ids name, as `lookup` says: `rows` are added up to the rows of a table `out`, on those of `base` or on
    zeros; or they are the table, and `out` is what is looked up."""

    lookup: RowLookup
    rows: Array
    ids: Array
    out: Array
    base: Array | None = None


def chunk_of(count: int) -> int:
    """Names that are sorted by counting where a lookup has so many."""
    chunk = _CHUNK
    while chunk * chunk < _SEARCH * count:
        chunk *= 2
    return chunk


def head(sums: Sequence[NamedRows]) -> str:
    """What kernels begin with that read a table of these, which are alike in all but their places."""
    first = sums[0].lookup
    alike = all(_places(one.lookup) == _places(first) for one in sums)
    size, offset, total = _places(first) if alike else (0, 0, 0)
    return f"typedef {c_type(dtype_of(sums[0].ids.dtype))} I;\n" + constants(
        LOOKUPS=len(sums), BATCH=first.batch, COUNT=first.count, ALIKE=alike, SIZE=size, OFFSET=offset, TOTAL=total,
        BLOCK=BLOCK,
    ) + SORTED + NAMES  # fmt: skip


def table_of(
    device: Device, sums: Sequence[NamedRows], begins_blocks: Sequence[int], blocks: Sequence[int],
) -> Array:  # fmt: skip
    """The table of these, with how many blocks each has in kernels over their places."""
    table: list[list[int]] = []
    begins, begins_block, block = 0, 0, 0
    for one, of_begins, own in zip(sums, begins_blocks, blocks, strict=True):
        arrays = [address(array) for array in (one.ids, one.rows, one.out if one.base is None else one.base, one.out)]
        table.append([*arrays, *_places(one.lookup), begins, begins_block, block])
        begins += one.lookup.batch * (one.lookup.size + 1)
        begins_block += of_begins
        block += own
    return device.xp.asarray(np.array(table, np.int64))


def sorting(device: Device, sums: Sequence[NamedRows], table: Array, chunks: Array, names: Array) -> Launch:
    """Launches that sort the names of these: UInt64 [len(sums), batch, count]. chunks: as much memory."""
    lookup = sums[0].lookup
    chunk = chunk_of(lookup.count)
    groups = len(sums) * lookup.batch
    source = head(sums) + constants(CHUNK=chunk, ABREAST=ABREAST) + MERGED + _SORT
    sort = device.kernel(source, "sort_chunks")
    merge = device.kernel(source, "merge_chunks") if lookup.count > chunk else None

    def launch() -> None:
        if lookup.count:
            sort(grid_of(groups * -(-lookup.count // BLOCK)), BLOCK, [table, chunks if merge else names])
        if merge is not None:
            merge(grid_of(-(-groups * lookup.count // BLOCK)), BLOCK, [chunks, names])

    return launch


def divided(device: Device, held: int, sizes: Sequence[int]) -> list[Array]:
    """Scratch memory of so many bytes each, behind `held` ones."""
    begins = [-(-held // _ALIGNMENT) * _ALIGNMENT]
    for size in sizes:
        begins.append(begins[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    memory = device.scratch(begins[-1])
    return [memory[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]


def _places(lookup: RowLookup) -> tuple[int, int, int]:
    """What lookups of one launch may differ in."""
    return lookup.size, lookup.offset, lookup.total
