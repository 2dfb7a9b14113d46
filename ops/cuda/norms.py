"""CUDA kernels of LayerNorm's gradients, which load rows into shared memory during computation, and of batch norm.

LayerNorm's source begins with constants: ROWS of COLUMNS, packs of V columns, W warps of a row and WARPS of a
block, STAGES rows of a warp in shared memory, BLOCKS of which RESIDENT share a multiprocessor, packs of P of gamma; the
types A of computation, X, G, S and D of x, of its result's gradient, of gamma and of the gradient in x; whether it
ADDS a tensor to that; whether it JOINS a tensor of type E to the result's gradient.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from mspc.ir.types import dtype_of
from mspc.ops.cuda.text import COMMON, accumulating_type, constants, index_type, lanes_of
from mspc.ops.device import Array, Device, Kernel, Launch, c_type

INSTRUCTIONS = r"""
// A place in shared memory.
typedef unsigned int Shared;
__device__ __forceinline__ Shared shared_at(const void* memory) {
    Shared at; asm("{ .reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a; }" : "=r"(at) : "l"(memory));
    return at;
}
// BYTES from global to shared memory. All copies of a thread before close_copies() are a group; the thread sees them
// after await_copies<LEFT>(), which waits until no more than the LEFT last groups are on their way.
template <int BYTES> __device__ __forceinline__ void start_copy(Shared to, const void* from) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
    } else if constexpr (BYTES >= 4) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(to), "l"(from), "n"(BYTES) : "memory");
    } else {
        asm volatile("st.shared.b16 [%0], %1;" :: "r"(to), "h"(*(const unsigned short*)from) : "memory");
    }
}
__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}
// Two floats rounded at once: four times the rate of one after the other where the bits are needed again.
__device__ __forceinline__ void narrow_two(bf16* to, float low, float high) {
    unsigned int both; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    to[0].bits = (unsigned short)both;
    to[1].bits = (unsigned short)(both >> 16);
}
__device__ __forceinline__ void narrow_two(f16* to, float low, float high) {
    unsigned int both; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    to[0].bits = (unsigned short)both;
    to[1].bits = (unsigned short)(both >> 16);
}
"""
"""Parts that are written in PTX."""

ROWS = r"""
// Rows that a block works at a time, from row to row of a thread, packs of a row and of a thread.
constexpr int THREADS = 32 * WARPS, GROUP = 32 * W, ABREAST = WARPS / W;
constexpr unsigned int STEP = BLOCKS * ABREAST;
constexpr int PACKS = COLUMNS / V, TURNS = (PACKS + GROUP - 1) / GROUP, EACH = TURNS * V;
constexpr int Q = V * sizeof(A) > 16 ? 16 / sizeof(A) : V;
constexpr A SHARE = (A)1 / COLUMNS;

alignas(16) extern __shared__ unsigned char memory[];

// Bytes of an operand in a stage; from the beginning of that to a thread's first pack, and from pack to pack of it.
template <class T> constexpr int PART = THREADS * TURNS * V * sizeof(T);
template <class T> constexpr int NEXT = THREADS * V * sizeof(T);
template <class T> __device__ __forceinline__ int first_of() { return threadIdx.x * (V * sizeof(T)); }
template <class T> __device__ __forceinline__ Pack<T, V> arrived(const unsigned char* part, int k) {
    return *(const Pack<T, V>*)(part + first_of<T>() + k * NEXT<T>);
}

// Halves are rounded two at a time.
template <class T> struct Rounded { static constexpr bool TWO = false; };
template <> struct Rounded<f16> { static constexpr bool TWO = V % 2 == 0; };
template <> struct Rounded<bf16> { static constexpr bool TWO = V % 2 == 0; };
template <class T, class U> __device__ __forceinline__ Pack<T, V> rounded(const U (&values)[V]) {
    Pack<T, V> found;
    #pragma unroll
    for (int v = 0; v < V; v += 2) {
        if constexpr (Rounded<T>::TWO) {
            narrow_two(&found.at[v], (float)values[v], (float)values[v + 1]);
        } else {
            found.at[v] = narrow<T>(values[v]);
            if (v + 1 < V) found.at[v + 1] = narrow<T>(values[v + 1]);
        }
    }
    return found;
}

// The two totals of a row, on all its threads. Two sets take turns: a warp may be one turn ahead of those that still
// read.
__device__ __forceinline__ void over_row(A (&values)[2], A (*sums)[WARPS][2], int& turn) {
    values[0] = over_warp<Sum>(values[0]);
    values[1] = over_warp<Sum>(values[1]);
    if (W == 1) return;
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) for (int n = 0; n < 2; ++n) sums[turn][warp][n] = values[n];
    __syncthreads();
    values[0] = values[1] = 0;
    #pragma unroll
    for (int w = 0; w < W; ++w) for (int n = 0; n < 2; ++n) values[n] += sums[turn][warp / W * W + w][n];
    turn ^= 1;
}
"""
GRADIENTS = r"""
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) layer_norm_gradients(
    const G* dout, const X* x, const M* means, const M* variances, const S* gamma, const D* addend, const E* other,
    D* dx, A* partial
) {
    __shared__ A sums[2][WARPS][2];
    constexpr int ADDED = PART<G> + PART<X>, JOINED = ADDED + (ADDS ? PART<D> : 0);
    constexpr int STAGE = JOINED + (JOINS ? PART<E> : 0);
    const int lane = threadIdx.x % GROUP, group = threadIdx.x / GROUP;
    const Shared shared = shared_at(memory);
    auto mine = [&](int k) { return PACKS % GROUP == 0 || k * GROUP + lane < PACKS; };
    auto request = [&](unsigned int row, int stage) {
        const Shared part = shared + stage * STAGE;
        const Shared gs = part + first_of<G>(), xs = part + PART<G> + first_of<X>();
        const Shared others = part + ADDED + first_of<D>(), joined = part + JOINED + first_of<E>();
        const size_t at = (size_t)row * COLUMNS + lane * V;
        #pragma unroll
        for (int k = 0; k < TURNS; ++k) {
            if (row >= ROWS || !mine(k)) break;
            start_copy<V * sizeof(G)>(gs + k * NEXT<G>, dout + at + k * GROUP * V);
            start_copy<V * sizeof(X)>(xs + k * NEXT<X>, x + at + k * GROUP * V);
            if (ADDS) start_copy<V * sizeof(D)>(others + k * NEXT<D>, addend + at + k * GROUP * V);
            if (JOINS) start_copy<V * sizeof(E)>(joined + k * NEXT<E>, other + at + k * GROUP * V);
        }
        close_copies();
    };
    const unsigned int begin = blockIdx.x * ABREAST;
    for (int s = 0; s + 1 < STAGES; ++s) request(begin + group + s * STEP, s);
    A scale[EACH], dgamma[EACH], dbeta[EACH];
    #pragma unroll
    for (int k = 0; k < TURNS; ++k) {
        const int pack = k * GROUP + lane;
        #pragma unroll
        for (int q = 0; q < V; q += P) {
            const Pack<S, P> found = pack_at<S, P>(gamma + (mine(k) ? pack : 0) * V + q);
            #pragma unroll
            for (int j = 0; j < P; ++j) scale[k * V + q + j] = (A)wide(found.at[j]);
        }
    }
    #pragma unroll
    for (int n = 0; n < EACH; ++n) dgamma[n] = dbeta[n] = 0;
    // The statistics of a row are read while the row before is worked.
    A next_mean = 0, next_variance = 0;
    auto look = [&](unsigned int row) {
        if (row >= ROWS) return;
        next_mean = (A)wide(means[row]);
        next_variance = (A)wide(variances[row]);
    };
    look(begin + group);
    int stage = 0, turn = 0;
    for (unsigned int base = begin; base < ROWS; base += STEP) {
        const unsigned int row = base + group;
        const bool there = row < ROWS;
        if (W == 1 && !there) break;
        request(row + (STAGES - 1) * STEP, stage ? stage - 1 : STAGES - 1);
        const A mean = next_mean, inverse = 1 / sqrt_of(next_variance + (A)EPSILON);
        look(row + STEP);
        await_copies<STAGES - 1>();
        const unsigned char* part = memory + stage * STAGE;
        const size_t at = (size_t)row * COLUMNS + lane * V;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        A g[EACH], h[EACH], totals[2] = {0, 0};
        #pragma unroll
        for (int k = 0; k < TURNS; ++k) {
            if (!there || !mine(k)) break;
            const Pack<G, V> gs = arrived<G>(part, k);
            const Pack<X, V> xs = arrived<X>(part + PART<G>, k);
            const Pack<E, V> more = arrived<E>(part + (JOINS ? JOINED : 0), k);
            #pragma unroll
            for (int v = 0; v < V; ++v) {
                const int n = k * V + v;
                A own = (A)wide(gs.at[v]);
                if (JOINS) own += (A)wide(more.at[v]);
                const A hat = ((A)wide(xs.at[v]) - mean) * inverse;
                dbeta[n] += own;
                dgamma[n] += own * hat;
                own *= scale[n];
                totals[0] += own;
                totals[1] += own * hat;
                g[n] = own;
                h[n] = hat;
            }
        }
        over_row(totals, sums, turn);
        const A along_g = totals[0] * SHARE * inverse, along_h = totals[1] * SHARE * inverse;
        #pragma unroll
        for (int k = 0; k < TURNS; ++k) {
            if (!there || !mine(k)) break;
            A out[V];
            #pragma unroll
            for (int v = 0; v < V; ++v) out[v] = g[k * V + v] * inverse - along_g - h[k * V + v] * along_h;
            Pack<D, V> made = rounded<D>(out);
            if (ADDS) {
                const Pack<D, V> others = arrived<D>(part + ADDED, k);
                decltype(wide(made.at[0])) both[V];
                #pragma unroll
                for (int v = 0; v < V; ++v) both[v] = wide(made.at[v]) + wide(others.at[v]);
                made = rounded<D>(both);
            }
            put_pack<D, V>(dx + at + k * GROUP * V, made);
        }
    }
    // The block's sums over its rows. Pieces of Q columns lie so that neighbours write next to each other.
    A* board = ABREAST > 1 ? (A*)memory : partial + (size_t)blockIdx.x * 2 * COLUMNS;
    await_copies<0>();
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < TURNS; ++k) {
        if (!mine(k)) break;
        #pragma unroll
        for (int q = 0; q < V / Q; ++q) {
            Pack<A, Q> gammas, betas;
            #pragma unroll
            for (int j = 0; j < Q; ++j) {
                gammas.at[j] = dgamma[k * V + q * Q + j];
                betas.at[j] = dbeta[k * V + q * Q + j];
            }
            A* own = board + group * (2 * COLUMNS) + (q * PACKS + k * GROUP + lane) * Q;
            put_pack<A, Q>(own, gammas);
            put_pack<A, Q>(own + COLUMNS, betas);
        }
    }
    if (ABREAST == 1) return;
    __syncthreads();
    for (int place = threadIdx.x * Q; place < 2 * COLUMNS; place += THREADS * Q) {
        Pack<A, Q> all = pack_at<A, Q>(board + place);
        #pragma unroll
        for (int other = 1; other < ABREAST; ++other) {
            const Pack<A, Q> one = pack_at<A, Q>(board + other * (2 * COLUMNS) + place);
            #pragma unroll
            for (int j = 0; j < Q; ++j) all.at[j] += one.at[j];
        }
        put_pack<A, Q>(partial + (size_t)blockIdx.x * 2 * COLUMNS + place, all);
    }
}
"""
TOTALS = r"""
extern "C" __global__ void __launch_bounds__(1024) layer_norm_totals(const A* partial, S* dgamma, S* dbeta) {
    __shared__ A sums[32][33];
    const int lane = threadIdx.x & 31, slice = threadIdx.x >> 5;
    const int place = blockIdx.x * 32 + lane;
    A total = 0;
    #pragma unroll 8
    for (int block = slice; block < BLOCKS; block += 32) total += partial[(size_t)block * 2 * COLUMNS + place];
    sums[slice][lane] = total;
    __syncthreads();
    if (slice) return;
    #pragma unroll
    for (int other = 1; other < 32; ++other) total += sums[other][lane];
    const int piece = place % COLUMNS / Q, column = piece % PACKS * V + piece / PACKS * Q + place % Q;
    (place < COLUMNS ? dgamma : dbeta)[column] = narrow<S>(total);
}
"""


# These CUDA kernels compute all gradients of LayerNorm at once: dout and x are read once for three results.
#
# As many blocks run as fit on the GPU at once, and each works one row after the other. A row belongs to one or several
# full warps; their threads copy the next rows to shared memory while they work on a row, so that the memory is never
# idle. Sums for gamma and beta stay in registers over all rows of a thread, are added within a block at its end, and
# over the blocks by a second kernel. The order of additions never changes.


LONGEST = 8192
"""Columns of a row that the threads of a block can hold."""

# The fastest division of those measured on an H200 with 8192 rows of 1024 halves: 21.7 us; one block of 8 warps takes
# 22.5 us and a copy of as many bytes 17.6 us. More warps would leave a thread too few registers for its columns.
_EACH = 128
"""Upper bound of the bytes of a thread's columns in the computing type; longer rows take more warps."""
_WARPS = 4
"""The least number of warps of a block."""
_RESIDENT_WARPS = 8
"""Warps of a multiprocessor."""
_MOST_WARPS = 16
"""Upper bound of the warps of a row."""

_SHARED = 200 << 10
"""Bytes of shared memory of a multiprocessor that rows on their way may take."""
_ON_THE_WAY = 96 << 10
"""Bytes that a multiprocessor should have asked for while it works: the memory's rate times its delay is 25 KB."""
_MOST_STAGES = 8


def fits(columns: int) -> bool:
    """Whether there are kernels for rows of this length."""
    return 0 < columns <= LONGEST and columns % 32 == 0


def layer_norm_gradients(device: Device, terms: tuple[Array, Array | None], x: Array, mean: Array, variance: Array,
                         gamma: Array, addend: Array | None, out: tuple[Array, Array, Array],
                         epsilon: float) -> Launch:  # fmt: skip
    """Write (dx + addend, dgamma, dbeta) to `out`; rows are gamma's length, for which `fits` holds.

    Args:
        terms: the gradient of LayerNorm's result is their sum.
    """
    dout, other = terms
    dx, dgamma, dbeta = out
    columns, rows = gamma.size, math.prod(x.shape) // gamma.size
    computing = accumulating_type(dtype_of(x.dtype))
    if dtype_of(gamma.dtype).name == "Float64":
        computing = "double"
    size = 8 if computing == "double" else 4
    read = [dout, x, *(array for array in (addend, other) if array is not None)]
    lanes = _lanes(columns, read, dx)
    across = 1
    while across < _MOST_WARPS and _columns_each(columns, lanes, across) * size > _EACH:
        across *= 2
    warps = max(_WARPS, across)
    resident = max(1, _RESIDENT_WARPS // warps)
    abreast = warps // across
    stage = 32 * warps * _columns_each(columns, lanes, across) * sum(dtype_of(array.dtype).itemsize for array in read)
    wanted = 1 + -(-_ON_THE_WAY // (resident * stage))
    stages = max(1, min(wanted, _MOST_STAGES, _SHARED // resident // stage))
    blocks = max(1, min(device.multiprocessors * resident, -(-rows // abreast)))
    # At the end the sums of the rows abreast use the same memory.
    shared = max(stages * stage, 2 * abreast * columns * size if abreast > 1 else 0)

    source = COMMON + INSTRUCTIONS + f"typedef {computing} A;\n"
    types = {"G": dout, "X": x, "M": mean, "S": gamma, "D": dx, "E": dout if other is None else other}
    source += "".join(f"typedef {c_type(dtype_of(array.dtype))} {name};\n" for name, array in types.items())
    source += constants(
        ROWS=rows, COLUMNS=columns, WARPS=warps, W=across, V=lanes, STAGES=stages, BLOCKS=blocks, RESIDENT=resident,
        ADDS=addend is not None, JOINS=other is not None,
        P=lanes_of(dtype_of(gamma.dtype).itemsize, lanes, gamma),
    )  # fmt: skip
    source += f"#define EPSILON {epsilon!r}\n" + ROWS
    first = device.kernel(source + GRADIENTS, "layer_norm_gradients")
    second = device.kernel(source + TOTALS, "layer_norm_totals")
    partial: Any = device.scratch(blocks * 2 * columns * size)
    added = (dx if addend is None else addend, dout if other is None else other)
    given = (dout, x, mean, variance, gamma, *added, dx, partial)

    def launch() -> None:
        first(blocks, 32 * warps, given, shared)
        second(2 * columns // 32, 1024, (partial, dgamma, dbeta))

    return launch


def _lanes(columns: int, read: list[Array], dx: Array) -> int:
    """Return the neighbouring columns that a thread moves at once: so few that short rows keep all threads of a warp
    busy."""
    sizes = [dtype_of(array.dtype).itemsize for array in (*read, dx)]
    lanes = min(lanes_of(size, columns, array) for size, array in zip(sizes, (*read, dx), strict=True))
    while lanes * 32 > columns and lanes * min(sizes[:-1]) > 4:
        lanes //= 2
    return lanes


def _columns_each(columns: int, lanes: int, across: int) -> int:
    """Return the columns of a thread if a row belongs to `across` warps."""
    return -(-columns // (lanes * 32 * across)) * lanes


# These CUDA kernels compute the mean and variance of every channel of an image, whose channels come last or second.
#
# One pass over the image: a thread adds up the differences of its elements from the first of them, and their squares,
# which keeps the digits that matter; partial means and variances are combined pair by pair (Chan, Golub and LeVeque,
# 1979), first within a block and then over the blocks. The order never changes.


_BLOCK = 256
_WAVES = 4
"""Blocks per multiprocessor."""
_LEAST = 8
"""Elements of a channel that a thread adds up at least, as far as there are any."""
_ACROSS, _DEEP = 8, 128
"""Channels, and threads for each of them, of a block that combines: few parts for a thread, one after the other."""


def launch_statistics(device: Device, x: Array, mean: Array, variance: Array, channel: int,
                      moving: tuple[Array, Array] | None = None, momentum: float = 0.0) -> Launch | None:  # fmt: skip
    """Return the launch of mean and variance of every channel; the moving ones, if any, become (1 - momentum) * moving
    + momentum * own, of the variance with the unbiased estimate, unless the step was stopped.

    Args:
        channel: the dimension of x that counts the channels, its last or its second.
    """
    shape = tuple(x.shape)
    if not x.size:
        return None
    channels = shape[channel]
    inner = math.prod(shape[channel + 1 :])
    count = x.size // channels
    dtype = dtype_of(x.dtype)
    source = COMMON + f"typedef {accumulating_type(dtype)} A;\ntypedef {c_type(dtype)} T;\n"
    source += f"typedef {index_type(x.size)} Index;\ntypedef {c_type(dtype_of(mean.dtype))} R;\n"
    if inner == 1:
        lanes = lanes_of(dtype.itemsize, channels, x)
        across = min(32, 1 << max(0, -(-channels // lanes) - 1).bit_length())
        tiles, deep, length = -(-channels // (across * lanes)), _BLOCK // across, count
    else:
        lanes = lanes_of(dtype.itemsize, inner, x)
        across, tiles, deep, length = 1, channels, _BLOCK, count // lanes
    parts = max(1, min(_WAVES * device.multiprocessors // tiles, length // (deep * _LEAST)))
    share = -(-length // parts)
    parts = -(-length // share)
    source += constants(CHANNELS=channels, INNER=inner, LENGTH=length, SHARE=share, PARTS=parts, V=lanes, X=across,
                        Y=deep, TILES=tiles, ACROSS=_ACROSS, DEEP=_DEEP, COUNT=count,
                        EACH=1 if inner == 1 else lanes)  # fmt: skip
    source += _COMBINED
    first = device.kernel(source + (_LAST if inner == 1 else _SECOND), "statistics")
    moves = "" if moving is None else _moving_source(moving, momentum) + "#define MOVES\n"
    second = device.kernel(source + moves + _TOTALS, "statistics_totals")
    word = 8 if accumulating_type(dtype) == "double" else 4
    partial: Any = device.scratch(2 * parts * channels * word)
    given = (partial, mean, variance) if moving is None else (partial, mean, variance, *moving, device.stop)

    def launch() -> None:
        first(tiles * parts, _BLOCK, (x, partial))
        second(-(-channels // _ACROSS), _ACROSS * _DEEP, given)

    return launch


def launch_moving(device: Device, mean: Array, moving: tuple[Array, Array], variance: Array, out: Array, count: int,
                  momentum: float) -> Launch:  # fmt: skip
    """Return the launch of moving statistics from those of `count` elements, as in `launch_statistics`; `out` becomes
    the mean."""
    source = _typed(mean) + _moving_source(moving, momentum) + constants(CHANNELS=mean.size, COUNT=count)
    kernel = device.kernel(source + _MOVING, "moving_statistics")
    return _per_channel(kernel, mean.size, (mean, *moving, variance, out, device.stop))


def launch_joined(device: Device, gathered: Array, moving: tuple[Array, Array], mean: Array, variance: Array,
                  count: int, momentum: float) -> Launch:  # fmt: skip
    """Return the launch of mean and variance of `count` elements, of which parts of equal size have the gathered ones
    [parts, 2, channels], and moving statistics, as in `launch_statistics`."""
    source = _typed(mean) + _moving_source(moving, momentum)
    source += constants(CHANNELS=mean.size, COUNT=count, PARTS=gathered.shape[0])
    kernel = device.kernel(source + _JOINED, "joined_statistics")
    return _per_channel(kernel, mean.size, (gathered, *moving, mean, variance, device.stop))


def _per_channel(kernel: Kernel, channels: int, given: tuple[Array, ...]) -> Launch:

    return partial(kernel, -(-channels // _BLOCK), _BLOCK, given)


def _typed(statistic: Array) -> str:
    dtype = dtype_of(statistic.dtype)
    return COMMON + f"typedef {accumulating_type(dtype)} A;\ntypedef {c_type(dtype)} R;\n"


def _moving_source(moving: tuple[Array, Array], momentum: float) -> str:
    """Return the update of moving statistics, after the types of source code."""
    return f"typedef {c_type(dtype_of(moving[0].dtype))} M;\n#define MOMENTUM ((A){momentum!r})\n" + _MOVED


_MOVED = r"""
// What the moving statistics of a channel become.
__device__ __forceinline__ void moved(M* moving_mean, M* moving_variance, int channel, A mean, A unbiased) {
    moving_mean[channel] = narrow<M>((A)wide(moving_mean[channel]) * (1 - MOMENTUM) + mean * MOMENTUM);
    moving_variance[channel] = narrow<M>((A)wide(moving_variance[channel]) * (1 - MOMENTUM) + unbiased * MOMENTUM);
}
"""

_MOVING = r"""
extern "C" __global__ void __launch_bounds__(256) moving_statistics(
        const R* __restrict__ mean, M* moving_mean, M* moving_variance, const R* __restrict__ variance,
        R* __restrict__ out, const int* stop) {
    const int channel = blockIdx.x * 256 + threadIdx.x;
    if (channel >= CHANNELS) return;
    const A own = (A)wide(mean[channel]), spread = (A)wide(variance[channel]);
    out[channel] = mean[channel];
    if (!*stop) moved(moving_mean, moving_variance, channel, own, COUNT > 1 ? spread * COUNT / (COUNT - 1) : spread);
}
"""

_JOINED = r"""
extern "C" __global__ void __launch_bounds__(256) joined_statistics(
        const R* __restrict__ gathered, M* moving_mean, M* moving_variance, R* __restrict__ mean,
        R* __restrict__ variance, const int* stop) {
    const int channel = blockIdx.x * 256 + threadIdx.x;
    if (channel >= CHANNELS) return;
    A own[PARTS], total = 0, spread = 0;
    #pragma unroll
    for (int p = 0; p < PARTS; ++p) total += own[p] = (A)wide(gathered[2 * p * CHANNELS + channel]);
    total /= PARTS;
    #pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const A apart = own[p] - total;
        spread += (A)wide(gathered[(2 * p + 1) * CHANNELS + channel]) + apart * apart;
    }
    spread /= PARTS;
    mean[channel] = narrow<R>(total);
    variance[channel] = narrow<R>(spread);
    if (!*stop) moved(moving_mean, moving_variance, channel, total, COUNT > 1 ? spread * COUNT / (COUNT - 1) : spread);
}
"""

_COMBINED = r"""
struct Own { A mean, squares; };
// The mean and the sum of squared distances from it of m and n elements together.
__device__ __forceinline__ Own combined(Own a, A m, Own b, A n) {
    if (n == 0) return a;
    if (m == 0) return b;
    const A apart = b.mean - a.mean, all = m + n;
    return {a.mean + apart * (n / all), a.squares + b.squares + apart * apart * (m * n / all)};
}
__device__ __forceinline__ Own finished(A first, A sum, A squares, A n) {
    if (n == 0) return {0, 0};
    const A mean = sum / n, rest = squares - sum * mean;
    return {first + mean, rest < 0 ? 0 : rest};
}
"""

_LAST = r"""
// Channels come last: X threads side by side with V channels each, Y below each other.
extern "C" __global__ void __launch_bounds__(X * Y) statistics(const T* __restrict__ x, Own* __restrict__ partial) {
    const int lane = threadIdx.x % X, deep = threadIdx.x / X;
    const int part = blockIdx.x / TILES, tile = blockIdx.x % TILES;
    const int channel = (tile * X + lane) * V;
    const int begin = part * SHARE, end = begin + SHARE < LENGTH ? begin + SHARE : LENGTH;
    A first[V], sum[V], squares[V];
    #pragma unroll
    for (int j = 0; j < V; ++j) first[j] = sum[j] = squares[j] = 0;
    const bool within = channel < CHANNELS;
    if (within && begin + deep < end) {
        const auto pack = pack_at<T, V>(x + (Index)(begin + deep) * CHANNELS + channel);
        #pragma unroll
        for (int j = 0; j < V; ++j) first[j] = (A)wide(pack.at[j]);
        #pragma unroll 8
        for (int r = begin + deep; r < end; r += Y) {
            const auto own = pack_at<T, V>(x + (Index)r * CHANNELS + channel);
            #pragma unroll
            for (int j = 0; j < V; ++j) {
                const A apart = (A)wide(own.at[j]) - first[j];
                sum[j] += apart;
                squares[j] += apart * apart;
            }
        }
    }
    __shared__ Own all[Y][X * V];
    const A n = begin + deep < end ? (end - begin - deep + Y - 1) / Y : 0;
    #pragma unroll
    for (int j = 0; j < V; ++j) all[deep][j * X + lane] = finished(first[j], sum[j], squares[j], n);
    __syncthreads();
    for (int t = threadIdx.x; t < X * V; t += X * Y) {
        const int place = (tile * X + t % X) * V + t / X;
        if (place >= CHANNELS) continue;
        Own total = all[0][t];
        A m = (end - begin + Y - 1) / Y;
        for (int d = 1; d < Y; ++d) {
            const A more = begin + d < end ? (end - begin - d + Y - 1) / Y : 0;
            total = combined(total, m, all[d][t], more);
            m += more;
        }
        partial[(Index)part * CHANNELS + place] = total;
    }
}
"""

_SECOND = r"""
// Channels come second: a block adds up packs of one channel.
extern "C" __global__ void __launch_bounds__(Y) statistics(const T* __restrict__ x, Own* __restrict__ partial) {
    const int part = blockIdx.x / TILES, channel = blockIdx.x % TILES;
    const int begin = part * SHARE, end = begin + SHARE < LENGTH ? begin + SHARE : LENGTH;
    constexpr int PACKS = INNER / V;
    A first = 0, sum = 0, squares = 0;
    for (int r = begin + threadIdx.x; r < end; r += Y) {
        const Index image = r / PACKS, pack = r % PACKS;
        const auto own = pack_at<T, V>(x + (image * CHANNELS + channel) * INNER + pack * V);
        if (r == begin + threadIdx.x) first = (A)wide(own.at[0]);
        #pragma unroll
        for (int j = 0; j < V; ++j) {
            const A apart = (A)wide(own.at[j]) - first;
            sum += apart;
            squares += apart * apart;
        }
    }
    A n = begin + (int)threadIdx.x < end ? (end - begin - (int)threadIdx.x + Y - 1) / Y * V : 0;
    __shared__ Own all[Y];
    __shared__ A counts[Y];
    all[threadIdx.x] = finished(first, sum, squares, n);
    counts[threadIdx.x] = n;
    for (int half = Y / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            const int other = threadIdx.x + half;
            all[threadIdx.x] = combined(all[threadIdx.x], counts[threadIdx.x], all[other], counts[other]);
            counts[threadIdx.x] += counts[other];
        }
    }
    if (!threadIdx.x) partial[(Index)part * CHANNELS + channel] = all[0];
}
"""

_TOTALS = r"""
extern "C" __global__ void __launch_bounds__(ACROSS * DEEP) statistics_totals(
        const Own* __restrict__ partial, R* __restrict__ mean, R* __restrict__ variance
#ifdef MOVES
        , M* moving_mean, M* moving_variance, const int* stop
#endif
) {
    const int lane = threadIdx.x % ACROSS, deep = threadIdx.x / ACROSS;
    const int channel = blockIdx.x * ACROSS + lane;
    Own total = {0, 0};
    A m = 0;
    if (channel < CHANNELS) {
        for (int p = deep; p < PARTS; p += DEEP) {
            const A more = (A)((p + 1) * SHARE < LENGTH ? SHARE : LENGTH - p * SHARE) * EACH;
            total = combined(total, m, partial[(Index)p * CHANNELS + channel], more);
            m += more;
        }
    }
    __shared__ Own all[DEEP][ACROSS];
    __shared__ A counts[DEEP][ACROSS];
    all[deep][lane] = total;
    counts[deep][lane] = m;
    for (int half = DEEP / 2; half; half /= 2) {
        __syncthreads();
        if (deep < half) {
            all[deep][lane] = combined(all[deep][lane], counts[deep][lane], all[deep + half][lane],
                                       counts[deep + half][lane]);
            counts[deep][lane] += counts[deep + half][lane];
        }
    }
    if (deep || channel >= CHANNELS) return;
    const A own = all[0][lane].mean, spread = all[0][lane].squares / COUNT;
    mean[channel] = narrow<R>(own);
    variance[channel] = narrow<R>(spread);
#ifdef MOVES
    if (*stop) return;
    const A unbiased = COUNT > 1 ? all[0][lane].squares / (COUNT - 1) : spread;
    moved(moving_mean, moving_variance, channel, own, unbiased);
#endif
}
"""
