"""These CUDA kernels make channels of the places within a stride, and the reverse, for images whose channels come last.

A convolution of stride s looks at places s * m + r of the padded image for r in [0, s): with these as channels of place
m it has no stride, and an image of few channels has enough of them for tensor cores.
"""

from __future__ import annotations

from typing import Any

from mspc.ops.cuda.source import WORDS, constants, index_type
from mspc.ops.device import Array, Device, Launch

_BLOCK = 256
_PACK = 16
"""Bytes that a thread writes."""


def fold(device: Device, source: Array, target: Array, stride: int, before: tuple[int, int]) -> Launch:
    """target[n, (r0 * stride + r1) * channels + c, i, j] = source[n, c, stride * i + r0 - before0, ...]; 0 outside of
    the source and behind its last channel. Arrays are [n, c, h, w] whose channels come last in memory."""
    lanes = _PACK // target.itemsize
    threads = target.size // lanes
    text = _constants(source, target, stride, threads) + constants(V=lanes, B0=before[0], B1=before[1]) + _FOLD
    kernel = device.kernel(text, "fold")
    arguments = (_stored(source), _stored(target))
    return lambda: kernel(-(-threads // _BLOCK), _BLOCK, arguments)


def unfold(device: Device, source: Array, target: Array, stride: int) -> Launch:
    """The reverse of `fold` without padding: target[n, c, stride * i + r0, ...] = source[n, ..., i, j]."""
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
