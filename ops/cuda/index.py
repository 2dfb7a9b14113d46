"""These CUDA kernels look rows up by integers, and add elements up by them along a dimension."""

from __future__ import annotations

import math

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import dtype_of
from mspc.ops.cuda.move import MOVE, WORDS
from mspc.ops.cuda.source import accumulating_type, constants, grid_of, index_type, lanes_of
from mspc.ops.device import Array, Device, Launch, c_type

_BLOCK = 256


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
