"""These CUDA kernels sort the lines of a tensor along an axis, equal elements in their order.

Elements are compared as integers without a sign that have their order. A chunk is sorted by counting, for each of its
elements, those that come before it; an element's place in its line is the sum of its places in the chunks.
"""

from __future__ import annotations

import math

from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.row_names import ABREAST, BLOCK, MERGED, SORTED, chunk_of, divided
from mspc.ops.cuda.source import constants, grid_of, index_type
from mspc.ops.device import Array, Device, Launch, c_type

MOST = 1 << 17
"""Elements of a line up to which counting and searching take less time than what CuPy does."""

_FLOAT = r"""
// What is no number comes last, and zeros are equal.
__device__ __forceinline__ Key key_of(T given) {
    const V v = wide(given);
    if (v != v) return DESCENDING ? 0 : ~(Key)0;
    const Key bits = v == 0 ? 0 : @BITS@(v), key = bits >> (8 * sizeof(Key) - 1) ? ~bits : bits | TOP;
    return DESCENDING ? ~key : key;
}
"""
_INTEGER = r"""
__device__ __forceinline__ Key key_of(T v) {
    const Key key = SIGNED ? (Key)(V)v ^ TOP : (Key)v;
    return DESCENDING ? ~key : key;
}
"""
_SORT = r"""
constexpr int BLOCKS = (COUNT + BLOCK - 1) / BLOCK;
// Where a line begins, of which neighbours are INNER apart.
__device__ __forceinline__ Index begin_of(Index line) { return line / INNER * COUNT * INNER + line % INNER; }

extern "C" __global__ void __launch_bounds__(BLOCK) sort_chunks(const T* x, Key* keys, int* chunks, T* out,
                                                                Place* places) {
    __shared__ Key others[BLOCK];
    const int own = blockIdx.x % BLOCKS * BLOCK, at = own + threadIdx.x;
    const Index line = blockIdx.x / BLOCKS, base = begin_of(line);
    const int begin = own / CHUNK * CHUNK, end = begin + CHUNK < COUNT ? begin + CHUNK : COUNT;
    const Key mine = at < end ? key_of(x[base + (Index)at * INNER]) : 0;
    int ahead = 0;
    for (int start = begin; start < end; start += BLOCK) {
        const int other = start + threadIdx.x, count = end - start < BLOCK ? end - start : BLOCK;
        const Key its = other < end ? key_of(x[base + (Index)other * INNER]) : 0;
        __syncthreads();
        others[threadIdx.x] = its;
        __syncthreads();
        if (start < own) {
#pragma unroll 8
            for (int i = 0; i < count; ++i) ahead += others[i] <= mine;
        } else if (start > own) {
#pragma unroll 8
            for (int i = 0; i < count; ++i) ahead += others[i] < mine;
        } else {
            for (int i = 0; i < count; ++i) ahead += others[i] < mine || (others[i] == mine && i < (int)threadIdx.x);
        }
    }
    if (at >= end) return;
    if (COUNT <= CHUNK) {
        const Index to = base + (Index)ahead * INNER;
        out[to] = x[base + (Index)at * INNER];
        places[to] = at;
    } else {
        keys[line * COUNT + begin + ahead] = mine;
        chunks[line * COUNT + begin + ahead] = at;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) merge_chunks(const T* x, const Key* keys, const int* chunks, T* out,
                                                                 Place* places) {
    const Index thread = (Index)blockIdx.x * BLOCK + threadIdx.x;
    if (thread >= (Index)LINES * COUNT) return;
    const Index line = thread / COUNT, base = begin_of(line);
    const int at = (int)(thread % COUNT), place = place_of_key(keys + (thread - at), at);
    const Index from = base + (Index)chunks[thread] * INNER, to = base + (Index)place * INNER;
    out[to] = x[from];
    places[to] = chunks[thread];
}
"""


def sort_lines(
    device: Device, x: Array, axis: int, descending: bool, out: Array, places: Array, held: int = 0
) -> Launch | None:  # fmt: skip
    """Launch of the elements of x in order along an axis, and of the places that they come from. None for lines
    that are too long. held: bytes at the begin of the scratch memory that are taken."""
    count, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    if not math.prod(x.shape) or count > MOST:
        return None
    lines, chunk = math.prod(x.shape) // count, chunk_of(count)
    source = _keys(dtype_of(x.dtype), descending)
    source += f"typedef {c_type(dtype_of(places.dtype))} Place;\n"
    source += f"typedef {index_type(lines * count + BLOCK * inner)} Index;\n"
    source += constants(LINES=lines, COUNT=count, INNER=inner, CHUNK=chunk, BLOCK=BLOCK, ABREAST=ABREAST)
    source += SORTED + MERGED + _SORT
    wide = 8 if x.dtype.itemsize == 8 else 4
    several = count > chunk
    keys, chunks = divided(device, held, (wide * lines * count, 4 * lines * count) if several else (1, 1))
    sort = device.kernel(source, "sort_chunks")
    merge = device.kernel(source, "merge_chunks") if several else None
    grid = grid_of(lines * -(-count // BLOCK))

    def launch() -> None:
        sort(grid, BLOCK, [x, keys, chunks, out, places])
        if merge is not None:
            merge(grid_of(-(-lines * count // BLOCK)), BLOCK, [x, keys, chunks, out, places])

    return launch


def _keys(dtype: DType, descending: bool) -> str:
    """C++ of `key_of` for elements of this type."""
    wide = dtype.itemsize == 8
    types = f"typedef {c_type(dtype)} T;\ntypedef {'u64' if wide else 'unsigned int'} Key;\n"
    types += f"constexpr Key TOP = (Key)1 << {63 if wide else 31};\n"
    if dtype.is_float:
        types += f"typedef {'double' if wide else 'float'} V;\n" + constants(DESCENDING=descending)
        return types + _FLOAT.replace("@BITS@", "(Key)__double_as_longlong" if wide else "__float_as_uint")
    types += f"typedef {'long long' if wide else 'int'} V;\n"
    return types + constants(DESCENDING=descending, SIGNED=dtype.kind == "i") + _INTEGER
