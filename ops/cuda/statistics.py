"""These CUDA kernels compute the mean and variance of every channel of an image, whose channels come last or second.

One pass over the image: a thread adds up its elements and their squares apart from the first of them, which keeps the
digits that matter; partial means and variances are combined pair by pair (Chan, Golub and LeVeque, 1979), first within
a block and then over the blocks. The order never changes.
"""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.types import dtype_of
from mspc.ops.cuda.source import COMMON, accumulating_type, constants, index_type, lanes_of
from mspc.ops.device import Array, Device, Kernel, Launch, c_type

_BLOCK = 256
_WAVES = 4
"""Blocks per multiprocessor."""
_LEAST = 8
"""Elements of a channel that a thread adds up at least, as far as there are any."""
_ACROSS, _DEEP = 8, 128
"""Channels, and threads for each of them, of a block that combines: few parts for a thread, one after the other."""


def launch_statistics(device: Device, x: Array, mean: Array, variance: Array, channel: int,
                      moving: tuple[Array, Array] | None = None, momentum: float = 0.0) -> Launch | None:  # fmt: skip
    """Mean and variance of every channel; the moving ones, if any, become (1 - momentum) * moving + momentum * own, of
    the variance with the unbiased estimate, unless the step was stopped.

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
    """Moving statistics from those of `count` elements, as in `launch_statistics`; `out` becomes the mean."""
    source = _typed(mean) + _moving_source(moving, momentum) + constants(CHANNELS=mean.size, COUNT=count)
    kernel = device.kernel(source + _MOVING, "moving_statistics")
    return _per_channel(kernel, mean.size, (mean, *moving, variance, out, device.stop))


def launch_joined(device: Device, gathered: Array, moving: tuple[Array, Array], mean: Array, variance: Array,
                  count: int, momentum: float) -> Launch:  # fmt: skip
    """Mean and variance of `count` elements, of which parts of equal size have the gathered ones [parts, 2, channels],
    and moving statistics, as in `launch_statistics`."""
    source = _typed(mean) + _moving_source(moving, momentum)
    source += constants(CHANNELS=mean.size, COUNT=count, PARTS=gathered.shape[0])
    kernel = device.kernel(source + _JOINED, "joined_statistics")
    return _per_channel(kernel, mean.size, (gathered, *moving, mean, variance, device.stop))


def _per_channel(kernel: Kernel, channels: int, given: tuple[Array, ...]) -> Launch:
    """A launch of a thread for every channel."""

    def launch() -> None:
        kernel(-(-channels // _BLOCK), _BLOCK, given)

    return launch


def _typed(statistic: Array) -> str:
    dtype = dtype_of(statistic.dtype)
    return COMMON + f"typedef {accumulating_type(dtype)} A;\ntypedef {c_type(dtype)} R;\n"


def _moving_source(moving: tuple[Array, Array], momentum: float) -> str:
    """What moves statistics, behind the types of source code."""
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
