"""These CUDA kernels look rows up by integers, and add rows up by them."""

from __future__ import annotations

import math

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import dtype_of
from mspc.ops.cuda.move import MOVE, WORDS
from mspc.ops.cuda.source import COMMON, accumulating_type, constants, grid_of, index_type, lanes_of
from mspc.ops.device import Array, Device, Launch, c_type

_BLOCK = 256
_SCANNERS = 128
"""Threads of a block that adds rows up."""
_LISTED = 1024
"""Rows that such a block notes before it adds them."""
_SHARE = 64
"""Ids that are worth a block of their own where there are few rows of the result."""
_PARTIAL = 64 << 20
"""Bytes of totals of parts at most."""


@dataclass(frozen=True, slots=True)
class RowLookup:
    """The places of a lookup: rows of `inner` elements in a table (batch, middle, size, inner), named by ids[batch,
    count]; the looked-up rows are (batch, middle, count, inner).

    offset: of the first row of this slice of the table. total: rows of the global table, from whose end an id below 0
    counts; 0: ids below 0 are no rows. An id that is no row of this slice takes zeros and adds nothing.
    """

    batch: int
    middle: int
    size: int
    inner: int
    count: int
    offset: int = 0
    total: int = 0

    def head(self, ids: Array, lanes: int) -> str:
        """Constants of the kernels."""
        elements = self.batch * self.middle * max(self.size, self.count) * self.inner
        return f"typedef {c_type(dtype_of(ids.dtype))} I;\ntypedef {index_type(elements)} Index;\n" + constants(
            MIDDLE=self.middle, SIZE=self.size, INNER=self.inner // lanes, COUNT=self.count, OFFSET=self.offset,
            TOTAL=self.total,
        ) + _PLACE  # fmt: skip


_PLACE = r"""
// The row of this part that an id names, -1 for none.
__device__ __forceinline__ int place_of(I id) {
    long long place = (long long)id;
    if (TOTAL && place < 0) place += TOTAL;
    place -= OFFSET;
    return place >= 0 && place < SIZE ? (int)place : -1;
}
"""


def gather(device: Device, name: str, lookup: RowLookup, table: Array, ids: Array, out: Array) -> Launch | None:
    """Launch that looks rows up."""
    if not math.prod(out.shape):
        return None
    size = dtype_of(table.dtype).itemsize
    lanes = lanes_of(size, lookup.inner, table, out)
    packs = math.prod(out.shape) // lanes
    source = MOVE + f"typedef {WORDS[size * lanes]} W;\n" + lookup.head(ids, lanes) + constants(PACKS=packs) + f"""
__device__ __forceinline__ void clear(Sixteen& v) {{ v.low = v.high = 0; }}
template <class V> __device__ __forceinline__ void clear(V& v) {{ v = 0; }}
extern "C" __global__ void __launch_bounds__({_BLOCK}) {name}(const void* table, const I* ids, void* out) {{
    const Index at = (Index)blockIdx.x * {_BLOCK} + threadIdx.x;
    if (at >= PACKS) return;
    const Index i = at % INNER, row = at / INNER;
    const Index group = row / COUNT;
    const int place = place_of(ids[group / MIDDLE * COUNT + row % COUNT]);
    W v;
    if (place < 0) clear(v); else v = ((const W*)table)[(group * SIZE + place) * INNER + i];
    ((W*)out)[at] = v;
}}
"""
    kernel = device.kernel(source, name)
    grid = grid_of(-(-packs // _BLOCK))
    return lambda: kernel(grid, _BLOCK, [table, ids, out])


def add_rows(device: Device, name: str, lookup: RowLookup, rows: Array, ids: Array, out: Array,
             base: Array | None = None, held: int = 0) -> Launch | None:  # fmt: skip
    """Launch that sums the rows of each id, in their order: the transpose of `gather`. They are added to the rows of
    `base`, or to zeros. held: bytes at the begin of the scratch memory that are taken.

    A block owns some rows of the result: it goes through all ids, notes those of its rows, and adds their rows. Where
    that are too few blocks, several have the same rows and a part of the ids each, and their totals are added up.
    """
    if not math.prod(out.shape):
        return None
    dtype = dtype_of(rows.dtype)
    lanes = lanes_of(dtype.itemsize, lookup.inner, rows, out, *([] if base is None else [base]))
    packs = lookup.inner // lanes
    chunks = -(-packs // _SCANNERS)
    groups = lookup.batch * lookup.middle
    # As many rows to a block as leave work for all multiprocessors.
    owned = max(1, min(32, lookup.size * chunks * groups // (device.multiprocessors * 8)))
    tiles = -(-lookup.size // owned)
    blocks, elements = groups * tiles * chunks, groups * lookup.size * lookup.inner
    total = accumulating_type(dtype)
    partial = elements * (8 if dtype.name in ("Float64", "Int64", "UInt64") else 4)
    most = min(lookup.count // _SHARE, _PARTIAL // partial)
    parts = max(1, min(device.multiprocessors * 8 // blocks, most))
    source = COMMON + f"typedef {c_type(dtype)} T;\ntypedef {total} A;\n" + lookup.head(ids, lanes)
    source += f"typedef {'T' if parts == 1 else 'A'} O;\n"
    source += constants(
        V=lanes, OWNED=owned, TILES=tiles, CHUNKS=chunks, THREADS=_SCANNERS, LISTED=_LISTED, GROUPS=groups,
        PART=-(-lookup.count // parts), BASED=base is not None and parts == 1,
    )  # fmt: skip
    source += _ADD_ROWS.replace("@NAME@", name)
    kernel = device.kernel(source, name)
    grid = grid_of(blocks * parts)
    given = out if base is None else base
    if parts == 1:
        return lambda: kernel(grid, _SCANNERS, [rows, ids, given, out])
    scratch = device.scratch(held + parts * partial)[held:]
    source = COMMON + f"typedef {c_type(dtype)} T;\ntypedef {total} A;\n"
    source += constants(ELEMENTS=elements, PARTS=parts, BASED=base is not None) + _ADD_PARTS
    second, columns = device.kernel(source, "add_parts"), grid_of(-(-elements // _BLOCK))

    def launch() -> None:
        kernel(grid, _SCANNERS, [rows, ids, given, scratch])
        second(columns, _BLOCK, [scratch, given, out])

    return launch


_ADD_PARTS = r"""
extern "C" __global__ void add_parts(const A* parts, const T* base, T* out) {
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= ELEMENTS) return;
    A total = BASED ? (A)wide(base[at]) : 0;
    for (int p = 0; p < PARTS; ++p) total += parts[(long long)p * ELEMENTS + at];
    out[at] = narrow<T>(total);
}
"""
_ADD_ROWS = r"""
extern "C" __global__ void __launch_bounds__(THREADS) @NAME@(const T* rows, const I* ids, const T* base, O* out) {
    __shared__ int noted[LISTED];
    __shared__ unsigned char owner[LISTED];
    __shared__ int counts[THREADS / 32];
    const int chunk = blockIdx.x % CHUNKS, tile = blockIdx.x / CHUNKS % TILES;
    const Index group = blockIdx.x / CHUNKS / TILES % GROUPS;
    const int part = blockIdx.x / CHUNKS / TILES / GROUPS;
    const int begin = part * PART, end = begin + PART < COUNT ? begin + PART : COUNT;
    out += (u64)part * GROUPS * SIZE * INNER * V;
    const int first = tile * OWNED, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int i = chunk * THREADS + threadIdx.x;
    const I* mine = ids + group / MIDDLE * COUNT;
    int listed = 0;
    bool fresh = true;
    for (int start = begin; start < end || fresh; start += THREADS) {
        const int p = start + threadIdx.x;
        const int place = p < end ? place_of(mine[p]) - first : -1;
        const bool hit = place >= 0 && place < OWNED;
        if (__syncthreads_or(hit)) {
            const unsigned int hits = __ballot_sync(0xffffffffu, hit);
            if (lane == 0) counts[warp] = __popc(hits);
            __syncthreads();
            int at = listed + __popc(hits & ((1u << lane) - 1));
            for (int w = 0; w < THREADS / 32; ++w) {
                if (w < warp) at += counts[w];
                listed += counts[w];
            }
            if (hit) { noted[at] = p; owner[at] = (unsigned char)place; }
        }
        const bool last = start + THREADS >= end;
        if (!last && listed + THREADS <= LISTED) continue;
        __syncthreads();
        if (i < INNER) {
            for (int r = 0; r < OWNED && first + r < SIZE; ++r) {
                const u64 place = ((u64)(group * SIZE + first + r) * INNER + i) * V;
                O* to = out + place;
                A total[V];
                if (fresh) {
                    for (int j = 0; j < V; ++j) total[j] = BASED ? (A)wide(base[place + j]) : 0;
                } else {
                    const Pack<O, V> before = pack_at<O, V>(to);
                    for (int j = 0; j < V; ++j) total[j] = (A)wide(before.at[j]);
                }
                for (int n = 0; n < listed; ++n) {
                    if (owner[n] != r) continue;
                    const Pack<T, V> row = pack_at<T, V>(rows + ((group * COUNT + noted[n]) * INNER + i) * V);
                    for (int j = 0; j < V; ++j) total[j] += (A)wide(row.at[j]);
                }
                Pack<O, V> made;
                for (int j = 0; j < V; ++j) made.at[j] = narrow<O>(total[j]);
                put_pack<O, V>(to, made);
            }
        }
        fresh = false;
        listed = 0;
        if (last) break;
        __syncthreads();
    }
}
"""


def add_along(device: Device, name: str, outer: int, size: int, count: int, inner: int, ids: Array, rows: Array,
              out: Array, base: Array | None = None) -> Launch | None:  # fmt: skip
    """out[o, ids[o, p, i], i] += rows[o, p, i], from `base` or zeros, in the order of p: a thread for every (o, i)."""
    if not math.prod(out.shape):
        return None
    dtype = dtype_of(rows.dtype)
    source = f"typedef {c_type(dtype)} T;\ntypedef {accumulating_type(dtype)} A;\n"
    source += f"typedef {c_type(dtype_of(ids.dtype))} I;\n"
    source += f"typedef {index_type(outer * inner * max(size, count))} Index;\n"
    source += constants(OUTER=outer, SIZE=size, COUNT=count, INNER=inner, BASED=base is not None) + f"""
extern "C" __global__ void __launch_bounds__({_BLOCK}) {name}(const I* ids, const T* rows, const T* base, T* out) {{
    const Index at = (Index)blockIdx.x * {_BLOCK} + threadIdx.x;
    if (at >= (Index)OUTER * INNER) return;
    const Index o = at / INNER, i = at % INNER;
    for (Index n = 0; n < SIZE; ++n) {{
        const Index to = (o * SIZE + n) * INNER + i;
        if (BASED) out[to] = base[to]; else out[to] = narrow<T>((A)0);
    }}
    for (Index p = 0; p < COUNT; ++p) {{
        long long id = (long long)ids[(o * COUNT + p) * INNER + i];
        if (id < 0) id += SIZE;
        if (id < 0 || id >= SIZE) continue;
        const Index to = (o * SIZE + (Index)id) * INNER + i;
        out[to] = narrow<T>((A)wide(out[to]) + (A)wide(rows[(o * COUNT + p) * INNER + i]));
    }}
}}
"""
    kernel = device.kernel(source, name)
    grid = grid_of(-(-outer * inner // _BLOCK))
    return lambda: kernel(grid, _BLOCK, [ids, rows, out if base is None else base, out])
