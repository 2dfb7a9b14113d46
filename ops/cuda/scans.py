"""These CUDA kernels run along lines of a tensor: sums so far, and the largest elements in their order."""

from __future__ import annotations

import math

from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.rows_by_number import ABREAST, BLOCK, MERGED, SORTED, chunk_of, divided
from mspc.ops.cuda.text import accumulating_type, constants, grid_of, index_type, is_contiguous
from mspc.ops.device import C_TYPES, Array, Device, Launch, c_type

_BLOCK = 256
_LINES = 4096
"""Lines from which a thread for each is enough."""

_PER_THREAD = r"""
extern "C" __global__ void __launch_bounds__(THREADS) running_sum(const T* x, T* out) {
    const Index line = (Index)blockIdx.x * THREADS + threadIdx.x;
    if (line >= LINES) return;
    const Index begin = line / INNER * COUNT * INNER + line % INNER;
    A total = 0;
    for (Index n = 0; n < COUNT; ++n) {
        const Index at = begin + (REVERSE ? COUNT - 1 - n : n) * INNER;
        const A own = (A)wide(x[at]);
        total += own;
        out[at] = narrow<T>(EXCLUSIVE ? (A)(total - own) : total);
    }
}
"""
_SCAN = r"""
extern "C" __global__ void __launch_bounds__(THREADS) running_sum(const T* x, T* out) {
    __shared__ A sums[THREADS / 32];
    const Index line = blockIdx.x, begin = line / INNER * COUNT * INNER + line % INNER;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    A before = 0;
    for (Index start = 0; start < COUNT; start += THREADS) {
        const Index n = start + threadIdx.x, at = begin + (REVERSE ? COUNT - 1 - n : n) * INNER;
        const A own = n < COUNT ? (A)wide(x[at]) : (A)0;
        A total = own;
        for (int step = 1; step < 32; step <<= 1) {
            const A other = __shfl_sync(0xffffffffu, total, lane - step < 0 ? lane : lane - step);
            if (lane >= step) total += other;
        }
        __syncthreads();
        if (lane == 31) sums[warp] = total;
        __syncthreads();
        A all = 0, ahead = 0;
        for (int w = 0; w < THREADS / 32; ++w) {
            if (w == warp) ahead = all;
            all += sums[w];
        }
        total += before + ahead;
        if (n < COUNT) out[at] = narrow<T>(EXCLUSIVE ? (A)(total - own) : total);
        before += all;
    }
}
"""
_TOP = r"""
// Whether element a at place i comes before b at place j: what is no number counts as the largest, equal ones in order.
__device__ __forceinline__ bool before(A a, int i, A b, int j) {
    const bool odd = a != a, other = b != b;
    if (odd || other) return odd && other ? i < j : SMALLEST ? other : odd;
    return (SMALLEST ? a < b : a > b) || (a == b && i < j);
}
extern "C" __global__ void __launch_bounds__(THREADS) top_elements(const T* x, T* values, Place* places) {
    __shared__ A best_of[THREADS / 32];
    __shared__ int place_of[THREADS / 32];
    const u64 row = blockIdx.x;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    A last = 0;
    int last_place = -1;
    for (int n = 0; n < K; ++n) {
        A best = 0;
        int place = COUNT;
        for (int i = threadIdx.x; i < COUNT; i += THREADS) {
            const A value = (A)wide(x[row * COUNT + i]);
            if (last_place >= 0 && !before(last, last_place, value, i)) continue;
            if (place == COUNT || before(value, i, best, place)) { best = value; place = i; }
        }
        for (int offset = 16; offset; offset >>= 1) {
            const A other = __shfl_xor_sync(0xffffffffu, best, offset);
            const int its = __shfl_xor_sync(0xffffffffu, place, offset);
            if (its < COUNT && (place == COUNT || before(other, its, best, place))) { best = other; place = its; }
        }
        if (THREADS > 32) {
            __syncthreads();
            if (lane == 0) { best_of[warp] = best; place_of[warp] = place; }
            __syncthreads();
            for (int w = 0; w < THREADS / 32; ++w)
                if (place_of[w] < COUNT && (place == COUNT || before(best_of[w], place_of[w], best, place))) {
                    best = best_of[w]; place = place_of[w];
                }
        }
        if (threadIdx.x == 0) { values[row * K + n] = x[row * COUNT + place]; places[row * K + n] = place; }
        last = best;
        last_place = place;
    }
}
"""


def running_sum(device: Device, axis: int, exclusive: bool, reverse: bool, x: Array, out: Array) -> Launch | None:
    """Return the launch of cumulative sums along an axis; a block adds up one line if there are few."""
    if not math.prod(x.shape):
        return None
    dtype = dtype_of(x.dtype)
    inner, count = math.prod(x.shape[axis + 1 :]), x.shape[axis]
    lines = math.prod(x.shape) // count
    each = lines >= _LINES or count <= 32
    source = f"typedef {c_type(dtype)} T;\ntypedef {accumulating_type(dtype)} A;\n"
    source += f"typedef {index_type(math.prod(x.shape) + _BLOCK * inner)} Index;\n"
    source += constants(LINES=lines, COUNT=count, INNER=inner, EXCLUSIVE=exclusive, REVERSE=reverse, THREADS=_BLOCK)
    kernel = device.kernel(source + (_PER_THREAD if each else _SCAN), "running_sum")
    grid = grid_of(-(-lines // _BLOCK) if each else lines)
    return lambda: kernel(grid, _BLOCK, [x, out])


def top_elements(device: Device, x: Array, values: Array, places: Array, smallest: bool = False) -> Launch | None:
    """Return the launch of the largest elements of every row in descending order, or of the smallest in ascending
    order, and their places; as many as the results have room for."""
    count, most = x.shape[-1], values.shape[-1]
    rows = math.prod(x.shape[:-1])
    if not rows or count >= 2**31:
        return None
    dtype = dtype_of(x.dtype)
    threads = 32 if count <= 512 else _BLOCK
    source = f"typedef {c_type(dtype)} T;\ntypedef {accumulating_type(dtype)} A;\n"
    source += f"typedef {c_type(dtype_of(places.dtype))} Place;\n" + constants(SMALLEST=smallest)
    source += constants(COUNT=count, K=most, THREADS=threads) + _TOP
    kernel = device.kernel(source, "top_elements")
    return lambda: kernel(grid_of(rows), threads, [x, values, places])


# These CUDA kernels sort the lines of a tensor along an axis, equal elements in their order.
#
# Elements are compared as integers without a sign that have their order. A chunk is sorted by counting, for each of its
# elements, those that come before it; an element's place in its line is the sum of its places in the chunks.


MOST = 1 << 17
"""Elements of a line up to which counting and searching take less time than CuPy's function."""

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
    """Return the launch of the elements of x in order along an axis, and of the places that they come from. None for
    lines that are too long. held: bytes at the begin of the scratch memory that are taken."""
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
    wide = dtype.itemsize == 8
    types = f"typedef {c_type(dtype)} T;\ntypedef {'u64' if wide else 'unsigned int'} Key;\n"
    types += f"constexpr Key TOP = (Key)1 << {63 if wide else 31};\n"
    if dtype.is_float:
        types += f"typedef {'double' if wide else 'float'} V;\n" + constants(DESCENDING=descending)
        return types + _FLOAT.replace("@BITS@", "(Key)__double_as_longlong" if wide else "__float_as_uint")
    types += f"typedef {'long long' if wide else 'int'} V;\n"
    return types + constants(DESCENDING=descending, SIGNED=dtype.kind == "i") + _INTEGER


# This CUDA kernel finds the place of the largest or smallest element along one axis, the first of several.


_WARP, _MOST_THREADS, _EACH = 32, 1024, 4
_SOURCE = r"""
__device__ __forceinline__ bool is_nan(A v) { return v != v; }
__device__ __forceinline__ bool wins(A v, long long at, A best, long long place) {  // like NumPy's: a NaN wins
    if (at < 0 || place < 0) return at >= 0;
    if (is_nan(v) != is_nan(best)) return is_nan(v);
    if (v == best || is_nan(v)) return at < place;
    return LARGEST ? v > best : v < best;
}
extern "C" __global__ void place_of_extremum(const T* x, R* out) {
    __shared__ A values[32];
    __shared__ long long places[32];
    const long long row = blockIdx.x;
    const T* from = x + row / INNER * COLUMNS * INNER + row % INNER;
    A best = 0;
    long long place = -1;
    for (long long at = threadIdx.x; at < COLUMNS; at += blockDim.x) {
        const A v = (A)wide(from[at * INNER]);
        if (wins(v, at, best, place)) { best = v; place = at; }
    }
    for (int offset = 16; offset; offset >>= 1) {
        const A v = __shfl_xor_sync(0xffffffffu, best, offset);
        const long long at = __shfl_xor_sync(0xffffffffu, place, offset);
        if (wins(v, at, best, place)) { best = v; place = at; }
    }
    if (threadIdx.x % 32 == 0) { values[threadIdx.x / 32] = best; places[threadIdx.x / 32] = place; }
    __syncthreads();
    if (threadIdx.x) return;
    for (int warp = 1; warp < blockDim.x / 32; ++warp) {
        if (wins(values[warp], places[warp], best, place)) { best = values[warp]; place = places[warp]; }
    }
    out[row] = (R)place;
}
"""


def place_of_extremum(device: Device, x: Array, axis: int, out: Array, largest: bool) -> Launch | None:
    """Return the launch of the positions along `axis`, counted from 0; None for operands it does not take."""
    shape = x.shape
    rows = math.prod(shape[:axis]) * math.prod(shape[axis + 1 :])
    if not is_contiguous(x, tuple(C_TYPES)) or not rows or rows >= 1 << 31:
        return None
    threads = _WARP
    while threads < min(_MOST_THREADS, shape[axis] // _EACH):
        threads *= 2
    dtype = dtype_of(x.dtype)
    source = f"typedef {c_type(dtype)} T;\ntypedef {accumulating_type(dtype)} A;\n"
    source += f"typedef {c_type(dtype_of(out.dtype))} R;\n"
    source += constants(COLUMNS=shape[axis], INNER=math.prod(shape[axis + 1 :]), LARGEST=largest) + _SOURCE
    kernel = device.kernel(source, "place_of_extremum")
    return lambda: kernel(grid_of(rows), threads, [x, out])
