"""This is fused attention of Float32 on a GPU by TF32 tensor cores, backward; the scores are computed again, tile by
tile.

With weights P = exp(scale Q K^T - statistics) and slopes dP = dO V^T: dV = P^T dO, dS = P (dP - rowsum(dO O)),
dQ = scale dS K, dK = scale dS^T Q (Dao et al., arXiv 2205.14135). One kernel in two forms, so that every sum has one
owner and the same bits each time:

* of queries: a block holds Q and dO of some queries, goes over K and V and writes dQ. It also writes, for the other
  form, each query's statistics (to the base 2) and rowsum(dO O).
* of keys: a block holds K and V of some keys, goes over Q and dO of all queries that look at them and writes dK and dV.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ops.cuda.attention import Attention, first_row
from mspc.ops.cuda.flash import COMMON, INSTRUCTIONS, limit_of, macros, strides_of, takes
from mspc.ops.device import Array, Device, Kernel, Launch

BACKWARD = r"""
constexpr int ROWS = 16 * BANDS * WARPS, TILES = COLUMNS / 8, TILE = COLUMNS * PITCH, BUFFER = 2 * TILE + 2 * COLUMNS;
constexpr int OWN = ROWS * D;  // a matrix of own rows in shared memory, each lane's part of 16 x 8 elements together

// own and other: what the scores are made of; own_slope and other_slope: what the slopes are made of. notes: of every
// query the statistics and rowsum(dO O), written by the form of queries.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) flash_backward(
    const float* __restrict__ own, const float* __restrict__ own_slope, const float* __restrict__ other,
    const float* __restrict__ other_slope, const float* __restrict__ result, const float* __restrict__ statistics,
    float* __restrict__ notes, float* __restrict__ first_out, float* __restrict__ second_out,
    int heads, int group, int queries, int keys, float scale, int high,
    i64 a_b, i64 a_n, i64 a_s, i64 c_b, i64 c_n, i64 c_s, i64 x_b, i64 x_n, i64 x_s, i64 y_b, i64 y_n, i64 y_s,
    i64 r_b, i64 r_n, i64 r_s, i64 f_b, i64 f_n, i64 f_s, i64 g_b, i64 g_n, i64 g_s) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int rows = OF_KEYS ? keys : queries, own_heads = OF_KEYS ? heads / group : heads;
    const int blocks = (rows + ROWS - 1) / ROWS;
    // Blocks with most to do begin first where keys are limited: early keys, late queries.
    const int begin = (OF_KEYS ? blockIdx.x % blocks : blocks - 1 - blockIdx.x % blocks) * ROWS;
    const int n = blockIdx.x / blocks % own_heads, b = blockIdx.x / blocks / own_heads;
    const int row = begin + warp * 16 * BANDS;  // the warp's first

    // The columns to go over: from `start` to `stop`, of `count` heads from `head` on.
    const int columns = OF_KEYS ? queries : keys;
    int start = 0, stop = columns, head = n / group, count = 1;
    if (OF_KEYS) {
        start = begin - high > 0 ? (begin - high) / COLUMNS * COLUMNS : 0;
        head = n * group, count = group;
    } else {
        const int seen = (begin + ROWS < queries ? begin + ROWS : queries) + high;
        stop = seen < keys ? seen : keys;
    }
    own += b * a_b + n * a_n;
    own_slope += b * c_b + n * c_n;
    other += b * x_b + head * x_n;
    other_slope += b * y_b + head * y_n;
    notes += ((i64)b * heads + (OF_KEYS ? head : n)) * queries * 2;
    float* buffers = memory + (2 - HELD) * OWN;

    auto copy = [&](float* to, int at, int first) {
        fetch<COLUMNS>(to, other + at * x_n + first * x_s, x_s, columns - first);
        fetch<COLUMNS>(to + TILE, other_slope + at * y_n + first * y_s, y_s, columns - first);
        if (OF_KEYS && threadIdx.x < COLUMNS) {
            const int i = first + threadIdx.x;
            copy_async<8>(to + 2 * TILE + 2 * threadIdx.x, notes + ((i64)at * queries + i) * 2, i < queries);
        }
        commit_copies();
    };
    if (start < stop) copy(buffers, 0, start);

    Four held[HELD > 0 ? BANDS : 1][STEPS], held_slope[HELD > 1 ? BANDS : 1][STEPS];
    float base[BANDS][2], delta[BANDS][2];
    float* parts = memory + (warp * BANDS * STEPS * 32 + lane) * 4;  // a lane reads what it wrote itself
#pragma unroll
    for (int m = 0; m < BANDS; ++m) {
        const int i = row + 16 * m + g;
        const bool low = i < rows, up = i + 8 < rows;
        const float* at = own + i * a_s + 2 * t;
        const float* at_slope = own_slope + i * c_s + 2 * t;
        const float* at_result = result + b * r_b + n * r_n + i * r_s + 2 * t;
        float sums[2] = {0, 0};
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const Four a = part(two_or_none(at + 8 * step, low), two_or_none(at + 8 * a_s + 8 * step, up));
            if constexpr (HELD > 0) held[m][step] = a;
            else *(Four*)(parts + OWN + (m * STEPS + step) * 128) = a;
            const Two x = two_or_none(at_slope + 8 * step, low), y = two_or_none(at_slope + 8 * c_s + 8 * step, up);
            if constexpr (HELD > 1) held_slope[m][step] = part(x, y);
            else *(Four*)(parts + (m * STEPS + step) * 128) = part(x, y);
            if constexpr (!OF_KEYS) {
                const Two u = two_or_none(at_result + 8 * step, low);
                const Two w = two_or_none(at_result + 8 * r_s + 8 * step, up);
                sums[0] = fmaf(x.at[0], u.at[0], fmaf(x.at[1], u.at[1], sums[0]));
                sums[1] = fmaf(y.at[0], w.at[0], fmaf(y.at[1], w.at[1], sums[1]));
            }
        }
        if constexpr (!OF_KEYS) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                sums[h] += __shfl_xor_sync(0xffffffffu, sums[h], 1);
                sums[h] += __shfl_xor_sync(0xffffffffu, sums[h], 2);
                delta[m][h] = sums[h];
                const bool there = i + 8 * h < queries;
                const float known = there ? statistics[((i64)b * heads + n) * queries + i + 8 * h] : 0.0f;
                base[m][h] = known == -INFINITE ? 0.0f : known * LOG2_E;
                if (there && t == 0) *(Two*)(notes + (i64)(i + 8 * h) * 2) = {base[m][h], sums[h]};
            }
        }
    }

    float sum[BANDS][STEPS][4], sum_slope[BANDS][STEPS][4];
#pragma unroll
    for (int m = 0; m < BANDS; ++m)
#pragma unroll
        for (int j = 0; j < STEPS; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[m][j][e] = sum_slope[m][j][e] = 0;
    const float factor = scale * LOG2_E;
    const int mine = row_of(g) * PITCH + 2 * t, even = even_row(t) * PITCH + 2 * g, odd = odd_row(t) * PITCH + 2 * g;

    int buffer = 0, done = 0;
    for (int first = start; first < stop && done < count; buffer ^= BUFFER) {
        const float* tile = buffers + buffer;
        const int here = first;
        first += COLUMNS;
        if (first >= stop) first = start, ++done;
        if (done == count) first = stop;
        wait_for_copies();
        __syncthreads();  // this tile is there, and nobody reads the other buffer any more
        if (first < stop) copy(buffers + (BUFFER ^ buffer), done, first);
        // Does no query of this warp and tile look at any key?
        if (OF_KEYS ? row >= here + COLUMNS + high : here >= row + 16 * BANDS + high) continue;

        float s[BANDS][TILES][4], d[BANDS][TILES][4];
#pragma unroll
        for (int m = 0; m < BANDS; ++m)
#pragma unroll
            for (int j = 0; j < TILES; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) s[m][j][e] = d[m][j][e] = 0;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            Four a[BANDS], c[BANDS];
#pragma unroll
            for (int m = 0; m < BANDS; ++m) {
                if constexpr (HELD > 0) a[m] = held[m][step];
                else a[m] = *(const Four*)(parts + OWN + (m * STEPS + step) * 128);
                if constexpr (HELD > 1) c[m] = held_slope[m][step];
                else c[m] = *(const Four*)(parts + (m * STEPS + step) * 128);
            }
#pragma unroll
            for (int j = 0; j < TILES; ++j) {
                const Two x = ready(two(tile + mine + 8 * j * PITCH + 8 * step));
                const Two y = ready(two(tile + TILE + mine + 8 * j * PITCH + 8 * step));
#pragma unroll
                for (int m = 0; m < BANDS; ++m) {
                    multiply(s[m][j], a[m], x.at[0], x.at[1]);
                    multiply(d[m][j], c[m], y.at[0], y.at[1]);
                }
            }
        }

        if (OF_KEYS ? row + 16 * BANDS > here + high + 1
                    : here + COLUMNS > keys || here + COLUMNS > row + high + 1) {
#pragma unroll
            for (int m = 0; m < BANDS; ++m)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int i = row + 16 * m + 8 * h + g;
#pragma unroll
                    for (int e = 2 * h; e < 2 * h + 2; ++e)
#pragma unroll
                        for (int j = 0; j < TILES; ++j) {
                            const int at = here + 8 * j + (e & 1 ? odd_row(t) : even_row(t));
                            if (OF_KEYS ? i > at + high : at >= keys || at > i + high) s[m][j][e] = -INFINITE;
                        }
                }
        }

#pragma unroll
        for (int j = 0; j < TILES; ++j) {
            Two known[2];
            if constexpr (OF_KEYS) {
                known[0] = two(tile + 2 * TILE + 2 * (8 * j + even_row(t)));
                known[1] = two(tile + 2 * TILE + 2 * (8 * j + odd_row(t)));
            }
#pragma unroll
            for (int m = 0; m < BANDS; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float less = OF_KEYS ? known[e & 1].at[0] : base[m][e >> 1];
                    const float mean = OF_KEYS ? known[e & 1].at[1] : delta[m][e >> 1];
                    const float weight = power_of_2(fmaf(s[m][j][e], factor, -less));
                    s[m][j][e] = for_tf32(weight);
                    d[m][j][e] = for_tf32(weight * (d[m][j][e] - mean));
                }
        }

#pragma unroll
        for (int j = 0; j < TILES; ++j) {
            Four a[BANDS];
#pragma unroll
            for (int m = 0; m < BANDS; ++m) a[m] = turned(d[m][j]);
            accumulate<BANDS>(sum, a, tile + even + 8 * j * PITCH, tile + odd + 8 * j * PITCH);
            if constexpr (OF_KEYS) {
#pragma unroll
                for (int m = 0; m < BANDS; ++m) a[m] = turned(s[m][j]);
                const float* slopes = tile + TILE + 8 * j * PITCH;
                accumulate<BANDS>(sum_slope, a, slopes + even, slopes + odd);
            }
        }
    }

    first_out += b * f_b + n * f_n;
    second_out += b * g_b + n * g_n;
#pragma unroll
    for (int m = 0; m < BANDS; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int i = row + 16 * m + 8 * h + g;
            if (i >= rows) continue;
            store(first_out + i * f_s, sum[m], h, t, scale);
            if constexpr (OF_KEYS) store(second_out + i * g_s, sum_slope[m], h, t, 1.0f);
        }
}
"""


@dataclass(frozen=True, slots=True)
class GradientTiles:
    """How one form of the kernel divides its work.

    warps: of a block. bands: of 16 own rows, that a warp holds. columns: of a tile of the others. held: how many of its
    two matrices a warp keeps in registers; the others are in shared memory. blocks: that a multiprocessor should hold
    at once, which limits the registers.
    """

    warps: int
    bands: int
    columns: int
    held: int
    blocks: int

    def source(self, depth: int, of_keys: bool) -> str:
        sizes = {
            "D": depth, "WARPS": self.warps, "BANDS": self.bands, "COLUMNS": self.columns, "HELD": self.held,
            "BLOCKS": self.blocks, "OF_KEYS": int(of_keys), "SHARED": self.shared(depth) // 4,
        }  # fmt: skip
        return macros(**sizes) + INSTRUCTIONS + COMMON + BACKWARD

    def shared(self, depth: int) -> int:
        """Bytes of shared memory: own rows that are not held, and two buffers."""
        buffer = 2 * self.columns * (depth + 8) + 2 * self.columns
        return 4 * ((2 - self.held) * self.rows() * depth + 2 * buffer)

    def rows(self) -> int:
        return 16 * self.bands * self.warps


OF_QUERIES = {32: GradientTiles(4, 2, 32, 2, 2), 64: GradientTiles(4, 2, 32, 1, 2), 128: GradientTiles(4, 1, 16, 1, 2)}
OF_KEYS = {32: GradientTiles(4, 2, 32, 2, 2), 64: GradientTiles(4, 2, 32, 0, 2), 128: GradientTiles(4, 1, 16, 0, 2)}
"""By the depth of a head."""


def flash_backward(
    device: Device, attention: Attention, result: Array, grads: Sequence[Array],
    of_queries: GradientTiles | None = None, of_keys: GradientTiles | None = None,
) -> Launch | None:  # fmt: skip
    """Fill the gradients of query, key and value (by head); None where the kernels do not take the operands."""
    shape = attention.shape
    q, k, v, dout = attention.operands
    dq, dk, dv = grads
    if not takes(device, attention, [q, k, v, dout, result, *grads]):
        return None
    of_queries, of_keys = of_queries or OF_QUERIES[shape.depth], of_keys or OF_KEYS[shape.depth]
    count = shape.batch * shape.heads * shape.queries
    notes = device.scratch(8 * count).view(np.float32)
    sizes = [
        np.int32(shape.heads), np.int32(shape.group), np.int32(shape.queries), np.int32(shape.keys),
        np.float32(attention.scores.scale), limit_of(attention),
    ]  # fmt: skip
    launches: list[Launch] = []
    for tiles, keyed, heads, rows, arrays in (
        (of_queries, False, shape.heads, shape.queries, (q, dout, k, v, result, dq, dq)),
        (of_keys, True, shape.key_heads, shape.keys, (k, v, q, dout, result, dk, dv)),
    ):
        ordered = list(map(first_row, arrays))
        kernel = device.kernel(tiles.source(shape.depth, keyed), "flash_backward")
        grid = shape.batch * heads * math.ceil(rows / tiles.rows())
        arguments = [*ordered[:5], attention.statistics, notes, *ordered[5:], *sizes, *strides_of(*arrays)]
        launches.append(_launch(kernel, grid, 32 * tiles.warps, arguments, tiles.shared(shape.depth)))

    def launch() -> None:
        for one in launches:
            one()

    return launch


def _launch(kernel: Kernel, grid: int, threads: int, arguments: Sequence[Any], shared: int) -> Launch:
    def launch() -> None:
        kernel(grid, threads, arguments, shared)

    return launch
