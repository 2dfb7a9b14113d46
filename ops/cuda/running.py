"""These CUDA kernels run along lines of a tensor: sums so far, and the largest elements in their order."""

from __future__ import annotations

import math

from mspc.ir.types import dtype_of
from mspc.ops.cuda.source import accumulating_type, constants, grid_of, index_type
from mspc.ops.device import Array, Device, Launch, c_type

_BLOCK = 256
_LINES = 4096
"""Lines from which a thread for each is enough."""

_EACH = r"""
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
    """Launch of the sums of all elements so far along an axis; a block adds up one line where there are few."""
    if not math.prod(x.shape):
        return None
    dtype = dtype_of(x.dtype)
    inner, count = math.prod(x.shape[axis + 1 :]), x.shape[axis]
    lines = math.prod(x.shape) // count
    each = lines >= _LINES or count <= 32
    source = f"typedef {c_type(dtype)} T;\ntypedef {accumulating_type(dtype)} A;\n"
    source += f"typedef {index_type(math.prod(x.shape) + _BLOCK * inner)} Index;\n"
    source += constants(LINES=lines, COUNT=count, INNER=inner, EXCLUSIVE=exclusive, REVERSE=reverse, THREADS=_BLOCK)
    kernel = device.kernel(source + (_EACH if each else _SCAN), "running_sum")
    grid = grid_of(-(-lines // _BLOCK) if each else lines)
    return lambda: kernel(grid, _BLOCK, [x, out])


def top_elements(device: Device, x: Array, values: Array, places: Array, smallest: bool = False) -> Launch | None:
    """Launch of the largest elements of every row in descending order, or of the smallest in ascending order, and their
    places; as many as the results have room for."""
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
