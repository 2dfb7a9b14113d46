"""These CUDA kernels pool images of up to three dimensions, and compute the gradients; channels are second or last in
memory.

A thread makes some neighbouring channels of one place. A gradient is gathered: each place of the image reads the
windows that it is in, so that nothing is added up by atomics and the order never changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from mspc.ir.types import dtype_of
from mspc.ops.cuda.text import COMMON, WORDS, accumulating_type, constants, index_type, lanes_of
from mspc.ops.device import Array, Device, Launch, c_type, in_order

_BLOCK = 256
_MOST_TAPS = 255
"""Places of a window that a byte can count, in addition to one number for none."""
_DIMS = 3


class Along(Protocol):
    """A window along one dimension, see `mspc.ops.convolution.window.Window`."""

    @property
    def size(self) -> int: ...
    @property
    def stride(self) -> int: ...
    @property
    def dilation(self) -> int: ...
    @property
    def before(self) -> int: ...


def launch_greatest(device: Device, x: Array, out: Array, along: Sequence[Along]) -> Launch | None:
    """Return the launch of the greatest value of every window; NaN if it contains one."""
    return _launch(device, "greatest", x, out, along, (x,), out)


def launch_greatest_gradient(
    device: Device, x: Array, found: Array, dout: Array, out: Array, along: Sequence[Along]
) -> Launch | None:
    """Return the launch in which the gradient of a position goes to the first place of its window that holds the
    greatest value."""
    last = _channels_last((x, found, dout, out))
    if last is None:
        return None
    kind = np.uint8 if _taps(along) <= _MOST_TAPS else np.uint16
    memory = device.scratch(found.size * np.dtype(kind).itemsize).view(kind)
    chosen = memory[: found.size].reshape(_as_stored(found, last).shape)
    if last:
        chosen = chosen.transpose(0, found.ndim - 1, *range(1, found.ndim - 1))
    first = _launch(device, "chosen_places", x, found, along, (x, found), chosen)
    return in_order(first, _launch(device, "greatest_gradient", out, found, along, (chosen, dout), out))


def launch_mean(device: Device, x: Array, shares: Array, out: Array, along: Sequence[Along]) -> Launch | None:
    """Return the launch of sums of windows over `shares`, one number or one for each position."""
    return _launch(device, "mean", x, out, along, (x, shares), out, single=shares.size == 1)


def launch_mean_gradient(
    device: Device, dout: Array, shares: Array, out: Array, along: Sequence[Along]
) -> Launch | None:
    """Return the launch of the gradients of all windows that contain a place, each over its share."""
    return _launch(device, "mean_gradient", out, dout, along, (dout, shares), out, single=shares.size == 1)


def _launch(device: Device, name: str, image: Array, result: Array, along: Sequence[Along], given: Sequence[Array],
            out: Array, single: bool = False) -> Launch | None:  # fmt: skip
    """Return the kernel `name` over the positions of `out`, which is the image or the result."""
    arrays = [array for array in (*given, out) if array.ndim == image.ndim]
    last = _channels_last(arrays)
    if last is None:
        return None
    if not out.size:
        return lambda: None
    dtype = dtype_of(image.dtype)
    channels = image.shape[1]
    lanes = lanes_of(dtype.itemsize, channels, *arrays) if last else 1
    missing = _DIMS - len(along)
    sizes: dict[str, Any] = {"LAST": last, "CHANNELS": channels, "V": lanes, "SINGLE": single}
    for d in range(_DIMS):
        own = along[d - missing] if d >= missing else None
        sizes |= {
            f"IN{d}": image.shape[2 + d - missing] if own else 1,
            f"OUT{d}": result.shape[2 + d - missing] if own else 1,
            f"SIZE{d}": own.size if own else 1,
            f"STRIDE{d}": own.stride if own else 1,
            f"DILATION{d}": own.dilation if own else 1,
            f"BEFORE{d}": own.before if own else 0,
        }
    threads = math.prod(out.shape) // lanes
    source = COMMON + f"typedef {c_type(dtype)} T;\ntypedef {accumulating_type(dtype)} A;\n"
    few = _taps(along) <= _MOST_TAPS
    source += f"typedef unsigned {'char' if few else 'short'} Tap;\n" + constants(NONE=255 if few else 65535)
    source += f"typedef {index_type(max(image.size, result.size))} Index;\n" + constants(**sizes, THREADS=threads)
    source += f"#define LOWEST ({_LOWEST[accumulating_type(dtype)]})\n" + _PLACES + _KERNELS[name]
    kernel = device.kernel(source, name)
    arguments = tuple(_as_stored(array, last) if array.ndim == image.ndim else array for array in (*given, out))

    return partial(kernel, -(-threads // _BLOCK), _BLOCK, arguments)


def _channels_last(arrays: Sequence[Array]) -> bool | None:
    """Return True if channels come last in memory, False if second; None if neither is true of all arrays."""
    if all(array.flags.c_contiguous for array in arrays):
        return False
    return True if all(_as_stored(array, True).flags.c_contiguous for array in arrays) else None


def _as_stored(array: Array, last: bool) -> Array:
    return array.transpose(0, *range(2, array.ndim), 1) if last else array


def _taps(along: Sequence[Along]) -> int:
    return math.prod(window.size for window in along)


_LOWEST = {"float": "-__int_as_float(0x7f800000)", "double": "-__longlong_as_double(0x7ff0000000000000ll)"}

_PLACES = r"""
struct Spot { Index n, c; int i[3]; };
// Which place of an image (or, with the other sizes, of a result) a thread makes.
template <int L0, int L1, int L2> __device__ __forceinline__ Spot spot_of(Index t) {
    Spot p;
    if (LAST) { p.c = t % (CHANNELS / V) * V; t /= CHANNELS / V; }
    p.i[2] = t % L2; t /= L2;
    p.i[1] = t % L1; t /= L1;
    p.i[0] = t % L0; t /= L0;
    if (!LAST) { p.c = t % CHANNELS; t /= CHANNELS; }
    p.n = t;
    return p;
}
template <int L0, int L1, int L2> __device__ __forceinline__ Index at(Index n, Index c, int i, int j, int k) {
    return LAST ? (((n * L0 + i) * L1 + j) * L2 + k) * CHANNELS + c : (((n * CHANNELS + c) * L0 + i) * L1 + j) * L2 + k;
}
__device__ __forceinline__ Index at_image(const Spot& p, int i, int j, int k) {
    return at<IN0, IN1, IN2>(p.n, p.c, i, j, k);
}
__device__ __forceinline__ Index at_result(const Spot& p, int i, int j, int k) {
    return at<OUT0, OUT1, OUT2>(p.n, p.c, i, j, k);
}
// The first and the last position whose windows may hold a place along one dimension.
template <int SIZE, int STRIDE, int DILATION, int BEFORE> __device__ __forceinline__ int lowest(int i) {
    const int room = i + BEFORE - (SIZE - 1) * DILATION;
    return room <= 0 ? 0 : (room + STRIDE - 1) / STRIDE;
}
template <int STRIDE, int BEFORE, int OUT> __device__ __forceinline__ int highest(int i) {
    const int q = (i + BEFORE) / STRIDE;
    return i + BEFORE < 0 ? -1 : q < OUT ? q : OUT - 1;
}
#define POSITIONS(d, q, tap) \
    for (int q = lowest<SIZE##d, STRIDE##d, DILATION##d, BEFORE##d>(p.i[d]), \
             end##d = highest<STRIDE##d, BEFORE##d, OUT##d>(p.i[d]); q <= end##d; ++q) \
        if (const int apart##d = p.i[d] + BEFORE##d - q * STRIDE##d; apart##d % DILATION##d == 0) \
            if (const int tap = apart##d / DILATION##d; true)
#define TAPS(d, tap, place, q) \
    _Pragma("unroll") for (int tap = 0; tap < SIZE##d; ++tap) \
        if (const int place = q * STRIDE##d - BEFORE##d + tap * DILATION##d; place >= 0 && place < IN##d)
"""

_KERNELS = {
    "greatest": r"""
extern "C" __global__ void __launch_bounds__(256) greatest(const T* __restrict__ x, T* __restrict__ out) {
    const Index t = (Index)blockIdx.x * 256 + threadIdx.x;
    if (t >= THREADS) return;
    const Spot p = spot_of<OUT0, OUT1, OUT2>(t);
    A best[V];
    #pragma unroll
    for (int v = 0; v < V; ++v) best[v] = LOWEST;
    TAPS(0, a, i, p.i[0]) TAPS(1, b, j, p.i[1]) TAPS(2, c, k, p.i[2]) {
        const auto own = pack_at<T, V>(x + at_image(p, i, j, k));
        #pragma unroll
        for (int v = 0; v < V; ++v) best[v] = Largest::of(best[v], (A)wide(own.at[v]));
    }
    Pack<T, V> made;
    #pragma unroll
    for (int v = 0; v < V; ++v) made.at[v] = narrow<T>(best[v]);
    put_pack<T, V>(out + t * V, made);
}
""",
    "greatest_gradient": r"""
// Every place gets the gradients of the positions that chose it.
extern "C" __global__ void __launch_bounds__(256) greatest_gradient(
        const Tap* __restrict__ chosen, const T* __restrict__ dout, T* __restrict__ out) {
    const Index t = (Index)blockIdx.x * 256 + threadIdx.x;
    if (t >= THREADS) return;
    const Spot p = spot_of<IN0, IN1, IN2>(t);
    A total[V];
    #pragma unroll
    for (int v = 0; v < V; ++v) total[v] = 0;
    POSITIONS(0, q0, t0) POSITIONS(1, q1, t1) POSITIONS(2, q2, t2) {
        const Index at = at_result(p, q0, q1, q2);
        const auto tap = pack_at<Tap, V>(chosen + at);
        const auto given = pack_at<T, V>(dout + at);
        const int own = (t0 * SIZE1 + t1) * SIZE2 + t2;
        #pragma unroll
        for (int v = 0; v < V; ++v) if (tap.at[v] == own) total[v] += (A)wide(given.at[v]);
    }
    Pack<T, V> made;
    #pragma unroll
    for (int v = 0; v < V; ++v) made.at[v] = narrow<T>(total[v]);
    put_pack<T, V>(out + t * V, made);
}
""",
    "chosen_places": r"""
// The first place of every window that holds the greatest value, counted along the window.
extern "C" __global__ void __launch_bounds__(256) chosen_places(
        const T* __restrict__ x, const T* __restrict__ found, Tap* __restrict__ out) {
    const Index t = (Index)blockIdx.x * 256 + threadIdx.x;
    if (t >= THREADS) return;
    const Spot p = spot_of<OUT0, OUT1, OUT2>(t);
    const auto best = pack_at<T, V>(found + t * V);
    Pack<Tap, V> made;
    #pragma unroll
    for (int v = 0; v < V; ++v) made.at[v] = NONE;
    TAPS(0, a, i, p.i[0]) TAPS(1, b, j, p.i[1]) TAPS(2, c, k, p.i[2]) {
        const auto own = pack_at<T, V>(x + at_image(p, i, j, k));
        #pragma unroll
        for (int v = 0; v < V; ++v) {
            const A one = (A)wide(own.at[v]), most = (A)wide(best.at[v]);
            if (made.at[v] == NONE && (one == most || (one != one && most != most)))
                made.at[v] = (a * SIZE1 + b) * SIZE2 + c;
        }
    }
    put_pack<Tap, V>(out + t * V, made);
}
""",
    "mean": r"""
extern "C" __global__ void __launch_bounds__(256) mean(
        const T* __restrict__ x, const T* __restrict__ shares, T* __restrict__ out) {
    const Index t = (Index)blockIdx.x * 256 + threadIdx.x;
    if (t >= THREADS) return;
    const Spot p = spot_of<OUT0, OUT1, OUT2>(t);
    A total[V];
    #pragma unroll
    for (int v = 0; v < V; ++v) total[v] = 0;
    TAPS(0, a, i, p.i[0]) TAPS(1, b, j, p.i[1]) TAPS(2, c, k, p.i[2]) {
        const auto own = pack_at<T, V>(x + at_image(p, i, j, k));
        #pragma unroll
        for (int v = 0; v < V; ++v) total[v] += (A)wide(own.at[v]);
    }
    const A share = (A)wide(shares[SINGLE ? 0 : (p.i[0] * OUT1 + p.i[1]) * OUT2 + p.i[2]]);
    Pack<T, V> made;
    #pragma unroll
    for (int v = 0; v < V; ++v) made.at[v] = narrow<T>(total[v] / share);
    put_pack<T, V>(out + t * V, made);
}
""",
    "mean_gradient": r"""
extern "C" __global__ void __launch_bounds__(256) mean_gradient(
        const T* __restrict__ dout, const T* __restrict__ shares, T* __restrict__ out) {
    const Index t = (Index)blockIdx.x * 256 + threadIdx.x;
    if (t >= THREADS) return;
    const Spot p = spot_of<IN0, IN1, IN2>(t);
    A total[V];
    #pragma unroll
    for (int v = 0; v < V; ++v) total[v] = 0;
    POSITIONS(0, q0, t0) POSITIONS(1, q1, t1) POSITIONS(2, q2, t2) {
        const A share = (A)wide(shares[SINGLE ? 0 : (q0 * OUT1 + q1) * OUT2 + q2]);
        const auto given = pack_at<T, V>(dout + at_result(p, q0, q1, q2));
        #pragma unroll
        for (int v = 0; v < V; ++v) total[v] += (A)wide(given.at[v]) / share;
    }
    Pack<T, V> made;
    #pragma unroll
    for (int v = 0; v < V; ++v) made.at[v] = narrow<T>(total[v]);
    put_pack<T, V>(out + t * V, made);
}
""",
}  # fmt: skip


# These CUDA kernels make channels of the places within a stride, and the reverse, for images whose channels come last.
#
# A convolution of stride s looks at places s * m + r of the padded image for r in [0, s): with these as channels of
# place m it has no stride, and an image of few channels has enough of them for tensor cores.


_PACK = 16
"""Bytes that a thread writes."""


def fold(device: Device, source: Array, target: Array, stride: int, before: tuple[int, int]) -> Launch:
    """Set target[n, (r0 * stride + r1) * channels + c, i, j] = source[n, c, stride * i + r0 - before0, ...]; 0 outside
    of the source and after its last channel. Arrays are [n, c, h, w] with channels last in memory."""
    lanes = _PACK // target.itemsize
    threads = target.size // lanes
    text = _constants(source, target, stride, threads) + constants(V=lanes, B0=before[0], B1=before[1]) + _FOLD
    kernel = device.kernel(text, "fold")
    arguments = (_stored(source), _stored(target))
    return lambda: kernel(-(-threads // _BLOCK), _BLOCK, arguments)


def unfold(device: Device, source: Array, target: Array, stride: int) -> Launch:
    """Return the reverse of `fold` without padding: target[n, c, stride * i + r0, ...] = source[n, ..., i, j]."""
    kernel = device.kernel(_constants(target, source, stride, target.size) + _UNFOLD, "unfold")
    arguments = (_stored(source), _stored(target))
    return lambda: kernel(-(-target.size // _BLOCK), _BLOCK, arguments)


def _stored(array: Array) -> Array:
    return array.transpose(0, 2, 3, 1)


def _constants(plain: Array, folded: Array, stride: int, threads: int) -> str:
    sizes: dict[str, Any] = {"C": plain.shape[1], "H": plain.shape[2], "W": plain.shape[3], "S": stride}
    sizes |= {"FC": folded.shape[1], "FH": folded.shape[2], "FW": folded.shape[3], "THREADS": threads}
    types = f"typedef {WORDS[plain.itemsize]} T;\ntypedef {index_type(max(plain.size, folded.size))} Index;\n"
    return types + constants(**sizes)


_FOLD = r"""
extern "C" __global__ void __launch_bounds__(256) fold(const T* __restrict__ from, T* __restrict__ to) {
    const Index t = (Index)blockIdx.x * 256 + threadIdx.x;
    if (t >= THREADS) return;
    const int first = t % (FC / V) * V;
    Index rest = t / (FC / V);
    const int j = rest % FW; rest /= FW;
    const int i = rest % FH;
    const Index n = rest / FH;
    Pack<T, V> made;
    #pragma unroll
    for (int v = 0; v < V; ++v) {
        const int channel = first + v, c = channel % C, r = channel / C;
        const int y = i * S + r / S - B0, x = j * S + r % S - B1;
        made.at[v] = r < S * S && y >= 0 && y < H && x >= 0 && x < W ? from[((n * H + y) * W + x) * C + c] : T(0);
    }
    *(Pack<T, V>*)(to + t * V) = made;
}
"""

_UNFOLD = r"""
extern "C" __global__ void __launch_bounds__(256) unfold(const T* __restrict__ from, T* __restrict__ to) {
    const Index t = (Index)blockIdx.x * 256 + threadIdx.x;
    if (t >= THREADS) return;
    const int c = t % C;
    Index rest = t / C;
    const int x = rest % W; rest /= W;
    const int y = rest % H;
    const Index n = rest / H;
    to[t] = from[((n * FH + y / S) * FW + x / S) * FC + (y % S * S + x % S) * C + c];
}
"""
