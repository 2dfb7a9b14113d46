"""This CUDA kernel finds the place of the largest or smallest element along one axis, the first of several."""

from __future__ import annotations

import math

from mspc.ir.types import dtype_of
from mspc.ops.cuda.source import accumulating_type, constants, grid_of, is_contiguous
from mspc.ops.device import C_TYPES, Array, Device, Launch, c_type

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
    """Launch of the places along `axis`, counted from 0; None for what it does not take."""
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
