"""The CUDA kernel of all gradients of LayerNorm at once: dout and x are read once for three results.

A block works a row, which it holds in registers, and every thread keeps the sums for gamma and beta of its columns over
all the block's rows. A second kernel adds those of the blocks; the order never changes.
"""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.types import dtype_of
from mspc.ops.cuda_source import COMMON, accumulating_type, constants, lanes_of
from mspc.ops.device import Array, Device, Launch, c_type

LONGEST = 8192
"""Columns of a row that the threads of a block can hold."""
_EACH = (8, 4, 2, 1)
"""Columns of a thread, the first that gives a block of whole warps."""
_WARP, _MOST_THREADS = 32, 1024
_THREADS = 512
"""Threads of a multiprocessor that work at a time; with more, the blocks' own sums take longer than what is hidden."""

_GRADIENTS = r"""
extern "C" __global__ void __launch_bounds__(THREADS) layer_norm_gradients(
    const G* dout, const X* x, const S* mean, const S* variance, const S* gamma, const D* addend, D* dx, A* partial
) {
    constexpr int WARPS = THREADS / 32;
    __shared__ A sums[2][4][WARPS];
    unsigned int column = threadIdx.x * EACH;
    int warp = threadIdx.x >> 5, turn = 0;
    A scale[EACH], dgamma[EACH], dbeta[EACH];
    #pragma unroll
    for (int p = 0; p < EACH; p += V) {
        Pack<S, V> scales = pack_at<S, V>(gamma + column + p);
        #pragma unroll
        for (int v = 0; v < V; ++v) {
            scale[p + v] = (A)wide(scales.at[v]);
            dgamma[p + v] = dbeta[p + v] = 0;
        }
    }
    for (unsigned int row = blockIdx.x; row < ROWS; row += 2 * BLOCKS) {
        // Two rows at a time: the loads of one hide those of the other.
        Pack<G, V> gs[2][EACH / V];
        Pack<X, V> xs[2][EACH / V];
        Pack<D, V> others[2][EACH / V];
        A center[2], inverse[2], sums_of[4] = {0, 0, 0, 0};
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            unsigned int own = row + r * BLOCKS < ROWS ? row + r * BLOCKS : row;
            size_t at = (size_t)own * COLUMNS + column;
            #pragma unroll
            for (int p = 0; p < EACH / V; ++p) {
                gs[r][p] = pack_at<G, V>(dout + at + p * V);
                xs[r][p] = pack_at<X, V>(x + at + p * V);
                if (ADDS) others[r][p] = pack_at<D, V>(addend + at + p * V);
            }
            center[r] = (A)wide(mean[own]);
            inverse[r] = 1 / sqrt_of((A)wide(variance[own]) + (A)EPSILON);
        }
        A g[2][EACH], h[2][EACH];
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            const A counts = row + r * BLOCKS < ROWS ? 1 : 0;
            #pragma unroll
            for (int p = 0; p < EACH; ++p) {
                A own = counts * (A)wide(gs[r][p / V].at[p % V]);
                A hat = ((A)wide(xs[r][p / V].at[p % V]) - center[r]) * inverse[r];
                dbeta[p] += own;
                dgamma[p] += own * hat;
                own *= scale[p];
                sums_of[2 * r] += own;
                sums_of[2 * r + 1] += own * hat;
                g[r][p] = own;
                h[r][p] = hat;
            }
        }
        #pragma unroll
        for (int n = 0; n < 4; ++n) sums_of[n] = over_warp<Sum>(sums_of[n]);
        if (WARPS > 1) {
            // Two sets of sums take turns: a warp may be one turn ahead of those that still read.
            if (!(threadIdx.x & 31)) for (int n = 0; n < 4; ++n) sums[turn][n][warp] = sums_of[n];
            __syncthreads();
            #pragma unroll
            for (int n = 0; n < 4; ++n) {
                sums_of[n] = 0;
                #pragma unroll
                for (int w = 0; w < WARPS; ++w) sums_of[n] += sums[turn][n][w];
            }
            turn ^= 1;
        }
        #pragma unroll
        for (int r = 0; r < 2; ++r) {
            if (row + r * BLOCKS >= ROWS) break;
            const A mean_g = sums_of[2 * r] / COLUMNS, mean_gh = sums_of[2 * r + 1] / COLUMNS;
            size_t at = (size_t)(row + r * BLOCKS) * COLUMNS + column;
            #pragma unroll
            for (int p = 0; p < EACH / V; ++p) {
                Pack<D, V> out;
                #pragma unroll
                for (int v = 0; v < V; ++v) {
                    const int n = p * V + v;
                    out.at[v] = narrow<D>((g[r][n] - mean_g - h[r][n] * mean_gh) * inverse[r]);
                    if (ADDS) out.at[v] = narrow<D>(wide(out.at[v]) + wide(others[r][p].at[v]));
                }
                put_pack<D, V>(dx + at + p * V, out);
            }
        }
    }
    A* own = partial + (size_t)blockIdx.x * 2 * COLUMNS + column;
    constexpr int W = EACH * sizeof(A) > 16 ? 16 / sizeof(A) : EACH;
    #pragma unroll
    for (int p = 0; p < EACH; p += W) {
        Pack<A, W> gammas, betas;
        #pragma unroll
        for (int v = 0; v < W; ++v) { gammas.at[v] = dgamma[p + v]; betas.at[v] = dbeta[p + v]; }
        put_pack<A, W>(own + p, gammas);
        put_pack<A, W>(own + COLUMNS + p, betas);
    }
}
"""
_TOTALS = r"""
extern "C" __global__ void __launch_bounds__(1024) layer_norm_totals(const A* partial, S* dgamma, S* dbeta) {
    __shared__ A sums[32][33];
    int lane = threadIdx.x & 31, slice = threadIdx.x >> 5;
    unsigned int place = blockIdx.x * 32 + lane;
    A total = 0;
    for (int block = slice; block < BLOCKS; block += 32) total += partial[(size_t)block * 2 * COLUMNS + place];
    sums[slice][lane] = total;
    __syncthreads();
    if (slice) return;
    for (int other = 1; other < 32; ++other) total += sums[other][lane];
    if (place < COLUMNS) dgamma[place] = narrow<S>(total);
    else dbeta[place - COLUMNS] = narrow<S>(total);
}
"""


def fits(columns: int) -> bool:
    """Whether rows of this length can be worked by a block each."""
    return 0 < columns <= LONGEST and _each(columns) > 0


def _each(columns: int) -> int:
    """Columns of one thread; 0 where no block of whole warps holds a row."""
    good = [n for n in _EACH if columns % (n * _WARP) == 0 and columns // n <= _MOST_THREADS]
    return good[0] if good else 0


def layer_norm_gradients(device: Device, dout: Array, x: Array, mean: Array, variance: Array, gamma: Array,
                         addend: Array | None, out: tuple[Array, Array, Array], epsilon: float) -> Launch:  # fmt: skip
    """(dx + addend, dgamma, dbeta) into `out`; rows are gamma's length, for which `fits` holds."""
    dx, dgamma, dbeta = out
    columns, rows = gamma.size, math.prod(x.shape) // gamma.size
    each = _each(columns)
    arrays = [dout, x, gamma, dx, *([addend] if addend is not None else [])]
    lanes = min(lanes_of(dtype_of(array.dtype).itemsize, each, array) for array in arrays)
    threads = columns // each
    blocks = max(1, min(device.multiprocessors * max(1, _THREADS // threads), rows))
    computing = accumulating_type(dtype_of(x.dtype))
    if dtype_of(gamma.dtype).name == "Float64":
        computing = "double"
    names = {"G": dout, "X": x, "S": gamma, "D": dx}
    head = COMMON + f"typedef {computing} A;\n"
    head += "".join(f"typedef {c_type(dtype_of(array.dtype))} {name};\n" for name, array in names.items())
    head += constants(
        ROWS=rows, COLUMNS=columns, THREADS=threads, EACH=each, V=lanes, BLOCKS=blocks,
        ADDS=addend is not None,
    )  # fmt: skip
    source = head + f"#define EPSILON {epsilon!r}\n"
    first = device.kernel(source + _GRADIENTS, "layer_norm_gradients")
    second = device.kernel(source + _TOTALS, "layer_norm_totals")
    size = 8 if computing == "double" else 4
    partial: Any = device.scratch(blocks * 2 * columns * size)
    given = (dout, x, mean, variance, gamma, dx if addend is None else addend, dx, partial)

    def launch() -> None:
        first(blocks, threads, given)
        second(2 * columns // _WARP, 1024, (partial, dgamma, dbeta))

    return launch
