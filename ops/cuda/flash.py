"""This is fused attention of Float32 on a GPU by TF32 tensor cores, forward; the scores stay in registers.

The algorithm is that of Dao et al. (arXiv 2205.14135, 2307.08691): a block holds some queries and goes over the keys in
tiles, keeping each query's largest score and sum so far.

Tensor cores multiply fragments: A 16x8, B 8x8, C 16x8, of which lane 4g + t of a warp holds A[g, t], A[g + 8, t],
A[g, t + 4], A[g + 8, t + 4]; B[t, g], B[t + 4, g]; C[g, 2t], C[g, 2t + 1], C[g + 8, 2t], C[g + 8, 2t + 1] (PTX ISA,
fragments of mma.m16n8k8 for .tf32). A sum does not mind in which order its terms come, which is used twice:

* products over the depth take elements 2t and 2t + 1 for places t and t + 4, so that two are loaded at once;
* of 8 keys, column n of the scores is key `row_of(n)`, and products over keys take the columns 2t and 2t + 1 for places
  t and t + 4: then a lane's scores are what it must hold of A.

With rows of D + 8 floats and this `row_of` (any four rows that 16 neighbouring lanes load are different modulo 4) no
load from shared memory meets a conflict of banks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ops.cuda.attention import Attention, first_row
from mspc.ops.cuda.source import address
from mspc.ops.device import Array, Device, Launch

UNBOUNDED = 1 << 30
"""Stands for no limit of key - query."""
_ALIGNMENT = 16

INSTRUCTIONS = r"""
// c += A B
__device__ __forceinline__ void multiply(float (&c)[4], const Pack<float, 4>& a, float b0, float b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a.at[0])), "r"(__float_as_uint(a.at[1])), "r"(__float_as_uint(a.at[2])),
          "r"(__float_as_uint(a.at[3])), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}
// BYTES from global to shared memory, or zeros; they are there after commit_copies() and wait_for_copies().
template <int BYTES> __device__ __forceinline__ void copy_async(float* to, const float* from, bool there) {
    unsigned int at;
    asm("{ .reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a; }" : "=r"(at) : "l"(to));
    const int bytes = there ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(from), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(at), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
__device__ __forceinline__ float power_of_2(float v) {
    float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r;
}
// Tensor cores leave out the last 13 bits. Half a unit of what they keep, in the mean, makes the error even.
__device__ __forceinline__ float for_tf32(float v) { return v * 1.000356674194336f; }
"""
"""Everything that is written in PTX, one instruction each, and what goes before a product.

`cvt.rna.tf32.f32` takes two instructions of half rate (a comparison and an addition to the bits) for every element that
a warp loads, and the product leaves out the same bits after it. v (1 + 187 / 2^19) without them is off by 0.31 units of
the last bit (root of the mean square; the nearest 0.29, v without them 0.58) and by 0.73 at most (0.5; 1), is v where v
has no more bits than are kept, and is neither larger nor smaller in the mean (by less than 1e-5 of v; v without them is
smaller by 3.5e-4 of v).
"""

COMMON = r"""
typedef long long i64;
typedef Pack<float, 2> Two;
typedef Pack<float, 4> Four;
constexpr int THREADS = 32 * WARPS, PITCH = D + 8, STEPS = D / 8, ACROSS = D / 4;
constexpr float LOG2_E = 1.4426950408889634f;
#define INFINITE __int_as_float(0x7f800000)

alignas(16) extern __shared__ float memory[];

// The row of 8 that column n of their products stands for; those of columns 2t and 2t + 1.
__device__ __forceinline__ int row_of(int n) { return ((n & 1) << 1 | (n >> 1 & 1)) ^ (n & 4 ? 6 : 0); }
__device__ __forceinline__ int even_row(int t) { return t < 2 ? t : t + 4; }
__device__ __forceinline__ int odd_row(int t) { return t + 2; }

__device__ __forceinline__ Two two(const float* at) { return *(const Two*)at; }
__device__ __forceinline__ Two ready(Two v) { return {for_tf32(v.at[0]), for_tf32(v.at[1])}; }
// Two neighbours in global memory, or zeros.
__device__ __forceinline__ Two two_or_none(const float* at, bool there) { return there ? two(at) : Two{0.0f, 0.0f}; }
// A lane's part of 16 rows and 8 elements, from elements 2t and 2t + 1 of rows g and g + 8.
__device__ __forceinline__ Four part(Two low, Two up) {
    low = ready(low), up = ready(up);
    return {low.at[0], up.at[0], low.at[1], up.at[1]};
}

// Copy COUNT rows of which `left` are there and the others become zeros; a thread takes the same columns of all rows.
template <int COUNT> __device__ __forceinline__ void fetch(float* to, const float* from, i64 step, int left) {
    constexpr int EVERY = THREADS / ACROSS, EACH = COUNT / EVERY;
    static_assert(EVERY * ACROSS == THREADS && EACH * EVERY == COUNT, "threads copy equally much");
    const int row = threadIdx.x / ACROSS, column = threadIdx.x % ACROSS * 4;
    to += row * PITCH + column;
    from += row * step + column;
#pragma unroll
    for (int i = 0; i < EACH; ++i, from += EVERY * step)
        copy_async<16>(to + i * EVERY * PITCH, from, i * EVERY < left - row);
}

// sum += A B for all D columns, A being 8 columns of accumulators and B the 8 rows that they stand for.
template <int BANDS_> __device__ __forceinline__ void accumulate(
    float (&sum)[BANDS_][STEPS][4], const Four (&a)[BANDS_], const float* even, const float* odd) {
#pragma unroll
    for (int jj = 0; jj < D / 16; ++jj) {
        const Two x = ready(two(even + 16 * jj)), y = ready(two(odd + 16 * jj));
#pragma unroll
        for (int m = 0; m < BANDS_; ++m) {
            multiply(sum[m][2 * jj], a[m], x.at[0], y.at[0]);
            multiply(sum[m][2 * jj + 1], a[m], x.at[1], y.at[1]);
        }
    }
}
// Accumulators of 8 columns as the A of a product.
__device__ __forceinline__ Four turned(const float (&c)[4]) { return {c[0], c[2], c[1], c[3]}; }

// A lane's part of a row, rows g and g + 8 being h = 0 and 1: of every 16 columns it has 4 t to 4 t + 3.
__device__ __forceinline__ void store(float* row, const float (&sum)[STEPS][4], int h, int t, float factor) {
#pragma unroll
    for (int jj = 0; jj < D / 16; ++jj) {
        const float (&x)[4] = sum[2 * jj], (&y)[4] = sum[2 * jj + 1];
        *(Four*)(row + 16 * jj + 4 * t) = {
            x[2 * h] * factor, y[2 * h] * factor, x[2 * h + 1] * factor, y[2 * h + 1] * factor};
    }
}
"""
"""What the forward and the backward kernels share. D: depth of a head."""

FORWARD = r"""
constexpr int ROWS = 16 * BANDS * WARPS, TILES = KEYS / 8, TILE = KEYS * PITCH;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) flash_forward(
    const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, float* __restrict__ out,
    float* __restrict__ statistics, int heads, int group, int queries, int keys, float scale, int high,
    i64 q_b, i64 q_n, i64 q_s, i64 k_b, i64 k_n, i64 k_s, i64 v_b, i64 v_n, i64 v_s, i64 o_b, i64 o_n, i64 o_s) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int blocks = (queries + ROWS - 1) / ROWS;
    // Late queries see most keys where keys are limited: they begin first.
    const int begin = (blocks - 1 - blockIdx.x % blocks) * ROWS;
    const int n = blockIdx.x / blocks % heads, b = blockIdx.x / blocks / heads;
    const int row = begin + (threadIdx.x >> 5) * 16 * BANDS;  // the warp's first
    q += b * q_b + n * q_n;
    k += b * k_b + n / group * k_n;
    v += b * v_b + n / group * v_n;
    const int end = begin + ROWS < queries ? begin + ROWS : queries;
    const int stop = end + high < keys ? end + high : keys;
    if (stop > 0) {
        fetch<KEYS>(memory, k, k_s, keys);
        fetch<KEYS>(memory + TILE, v, v_s, keys);
        commit_copies();
    }

    Four held[BANDS][HELD];
    float* parts = memory + 4 * TILE + (threadIdx.x >> 5) * BANDS * (STEPS - HELD) * 128 + lane * 4;  // this lane's own
    float sum[BANDS][STEPS][4], top[BANDS][2], total[BANDS][2];
#pragma unroll
    for (int m = 0; m < BANDS; ++m) {
        const int i = row + 16 * m + g;
        const float* at = q + i * q_s + 2 * t;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const Four a = part(two_or_none(at + 8 * step, i < queries),
                                two_or_none(at + 8 * q_s + 8 * step, i + 8 < queries));
            if (step < HELD) held[m][step] = a;
            else *(Four*)(parts + (m * (STEPS - HELD) + step - HELD) * 128) = a;
            sum[m][step][0] = sum[m][step][1] = sum[m][step][2] = sum[m][step][3] = 0;
        }
        top[m][0] = top[m][1] = -INFINITE;
        total[m][0] = total[m][1] = 0;
    }
    const float factor = scale * LOG2_E;
    const float* mine = memory + row_of(g) * PITCH + 2 * t;
    const float* even = memory + TILE + even_row(t) * PITCH + 2 * g;
    const float* odd = memory + TILE + odd_row(t) * PITCH + 2 * g;

    int buffer = 0;
    for (int first = 0; first < stop; first += KEYS, buffer ^= 2 * TILE) {
        wait_for_copies();
        __syncthreads();  // this tile is there, and nobody reads the other buffer any more
        if (first + KEYS < stop) {
            float* next = memory + (2 * TILE ^ buffer);
            k += KEYS * k_s, v += KEYS * v_s;
            fetch<KEYS>(next, k, k_s, keys - first - KEYS);
            fetch<KEYS>(next + TILE, v, v_s, keys - first - KEYS);
            commit_copies();
        }
        if (first >= row + 16 * BANDS + high) continue;  // no query of this warp looks at these keys

        float s[BANDS][TILES][4];
#pragma unroll
        for (int m = 0; m < BANDS; ++m)
#pragma unroll
            for (int j = 0; j < TILES; ++j) s[m][j][0] = s[m][j][1] = s[m][j][2] = s[m][j][3] = 0;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            Four a[BANDS];
#pragma unroll
            for (int m = 0; m < BANDS; ++m)
                a[m] = step < HELD ? held[m][step] : *(const Four*)(parts + (m * (STEPS - HELD) + step - HELD) * 128);
#pragma unroll
            for (int j = 0; j < TILES; ++j) {
                const Two x = ready(two(mine + buffer + 8 * j * PITCH + 8 * step));
#pragma unroll
                for (int m = 0; m < BANDS; ++m) multiply(s[m][j], a[m], x.at[0], x.at[1]);
            }
        }

        if (first + KEYS > keys || first + KEYS > row + high + 1) {
#pragma unroll
            for (int m = 0; m < BANDS; ++m)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int most = row + 16 * m + 8 * h + g + high, last = (most < keys ? most : keys - 1) - first;
#pragma unroll
                    for (int j = 0; j < TILES; ++j) {
                        if (8 * j + even_row(t) > last) s[m][j][2 * h] = -INFINITE;
                        if (8 * j + odd_row(t) > last) s[m][j][2 * h + 1] = -INFINITE;
                    }
                }
        }

#pragma unroll
        for (int m = 0; m < BANDS; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float most = top[m][h];
#pragma unroll
                for (int j = 0; j < TILES; ++j) most = fmaxf(most, fmaxf(s[m][j][2 * h], s[m][j][2 * h + 1]));
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
                const float base = most == -INFINITE ? 0.0f : most * factor;
                const float fade = power_of_2(fmaf(top[m][h], factor, -base));
                top[m][h] = most;
                float added = 0;
#pragma unroll
                for (int j = 0; j < TILES; ++j)
#pragma unroll
                    for (int e = 2 * h; e < 2 * h + 2; ++e) {
                        const float power = power_of_2(fmaf(s[m][j][e], factor, -base));
                        added += power;
                        s[m][j][e] = for_tf32(power);
                    }
                total[m][h] = fmaf(total[m][h], fade, added);
#pragma unroll
                for (int j = 0; j < STEPS; ++j) {
                    sum[m][j][2 * h] *= fade;
                    sum[m][j][2 * h + 1] *= fade;
                }
            }

#pragma unroll
        for (int j = 0; j < TILES; ++j) {
            Four weights[BANDS];
#pragma unroll
            for (int m = 0; m < BANDS; ++m) weights[m] = turned(s[m][j]);
            accumulate<BANDS>(sum, weights, even + buffer + 8 * j * PITCH, odd + buffer + 8 * j * PITCH);
        }
    }

    out += b * o_b + n * o_n;
    statistics += ((i64)b * heads + n) * queries;
#pragma unroll
    for (int m = 0; m < BANDS; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int i = row + 16 * m + 8 * h + g;
            float all = total[m][h];
            all += __shfl_xor_sync(0xffffffffu, all, 1);
            all += __shfl_xor_sync(0xffffffffu, all, 2);
            const float share = all == 0 ? 0.0f : 1 / all;
            if (i >= queries) continue;
            if (t == 0) statistics[i] = all == 0 ? -INFINITE : top[m][h] * scale + logf(all);
            store(out + i * o_s, sum[m], h, t, share);
        }
}
"""


@dataclass(frozen=True, slots=True)
class ForwardTiles:
    """How the forward kernel divides its work.

    warps: of a block. bands: of 16 queries, that a warp holds. keys: of a tile. held: how many steps of 8 of a query's
    elements are in registers, the others being in shared memory. blocks: that a multiprocessor should hold at once,
    which limits the registers.
    """

    warps: int
    bands: int
    keys: int
    held: int
    blocks: int

    def source(self, depth: int) -> str:
        sizes = {
            "D": depth, "WARPS": self.warps, "BANDS": self.bands, "KEYS": self.keys, "HELD": self.held,
            "BLOCKS": self.blocks, "SHARED": self.shared(depth) // 4,
        }  # fmt: skip
        return macros(**sizes) + INSTRUCTIONS + COMMON + FORWARD

    def shared(self, depth: int) -> int:
        """Bytes of shared memory: two tiles of keys and values, and of the queries what is not held."""
        return 4 * (4 * self.keys * (depth + 8) + self.rows() * (depth - 8 * self.held))

    def rows(self) -> int:
        return 16 * self.bands * self.warps


TILES = {32: ForwardTiles(4, 2, 64, 4, 2), 64: ForwardTiles(4, 2, 64, 7, 2), 128: ForwardTiles(4, 1, 32, 16, 2)}
"""By the depth of a head."""


def macros(**values: int) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def takes(device: Device, attention: Attention, arrays: Sequence[Array]) -> bool:
    """Whether the kernels here compute this attention; `arrays` are all by head that they read or write."""
    shape, scores = attention.shape, attention.scores
    if not device.tf32 or any(array.dtype != np.float32 for array in arrays):
        return False
    if shape.depth != shape.value_depth or shape.depth not in TILES or 0 in (shape.batch, shape.queries, shape.keys):
        return False
    others = (scores.shift, scores.mask, scores.low, scores.draws)
    if any(part is not None for part in others) or scores.scale <= 0:
        return False
    return all(address(array) % _ALIGNMENT == 0 for array in arrays)


def limit_of(attention: Attention) -> np.int32:
    """The greatest key - query."""
    high = attention.scores.high
    return np.int32(UNBOUNDED if high is None else max(-UNBOUNDED, min(UNBOUNDED, high)))


def strides_of(*arrays: Array) -> list[np.int64]:
    """Strides of batch, head and sequence in elements."""
    return [np.int64(stride // array.itemsize) for array in arrays for stride in array.strides[:3]]


def flash_forward(
    device: Device, attention: Attention, result: Array, tiles: ForwardTiles | None = None
) -> Launch | None:
    """Fill result (by head) and the statistics; None where the kernels do not take the operands."""
    shape = attention.shape
    arrays = [*attention.operands[:3], result]
    if not takes(device, attention, arrays):
        return None
    tiles = tiles or TILES[shape.depth]
    kernel = device.kernel(tiles.source(shape.depth), "flash_forward")
    grid = shape.batch * shape.heads * math.ceil(shape.queries / tiles.rows())
    shared = tiles.shared(shape.depth)
    arguments = [
        *map(first_row, arrays), attention.statistics, np.int32(shape.heads), np.int32(shape.group),
        np.int32(shape.queries), np.int32(shape.keys), np.float32(attention.scores.scale), limit_of(attention),
        *strides_of(*arrays),
    ]  # fmt: skip

    def launch() -> None:
        kernel(grid, 32 * tiles.warps, arguments, shared)

    return launch
