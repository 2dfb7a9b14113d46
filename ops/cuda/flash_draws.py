"""Which weights of fused attention are dropped on a GPU: numbers that its kernels draw, or bits that were drawn before.

Where rows of weights begin with groups of elements that words of the generator decide together (see
`ops/nn/attention_kernel.py`), a thread draws a word for four of its weights. Elsewhere every weight would need one of
its own, in each of the three kernels: a kernel before them draws all weights, a word for four, and leaves a bit of each
in scratch memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mspc.ops.cuda.attention import Attention
from mspc.ops.device import Array, Device, Launch
from mspc.ops.nn.attention_kernel import Draws, draws_source, seed_of
from mspc.ops.random.words import count_of, merged_slice

_THREADS = 256
_WORD = 32
"""Bits of a word in memory."""
_MOST_ROWS = 128
"""Of a kernel's tile. Those of the last one that are behind all rows read bits, too."""

_NOTHING_DROPPED = """
struct Word {};
struct Column {};
struct Window {};
struct Bits {};
__device__ __forceinline__ Word word_of(i64, i64, const i64*, u64) { return {}; }
template <int WIDTH> __device__ __forceinline__ Window window_of(Word, int, const u32*) { return {}; }
__device__ __forceinline__ Bits drawn(Window, int) { return {}; }
__device__ __forceinline__ Column column_of(i64, i64, int, const i64*, u64, const u32*) { return {}; }
__device__ __forceinline__ Bits drawn_of_keys(int, int, const Column*, bool) { return {}; }
__device__ __forceinline__ bool stays(Bits, int, int) { return true; }
#define KEPT_FACTOR 1
"""
_DRAWN_HERE = """
typedef Word Column;
typedef Word Window;
struct Bits { u32 at[2]; };
__device__ __forceinline__ Word word_of(i64 row, i64, const i64* step, u64 seed) {
    return word_of_row(row, step, seed);
}
template <int WIDTH> __device__ __forceinline__ Window window_of(Word row, int key, const u32*) {
    return row + word_of_key(key);
}
__device__ __forceinline__ Column column_of(i64 row, i64, int, const i64* step, u64 seed, const u32*) {
    return word_of_row(row, step, seed);
}
__device__ __forceinline__ bool stays(Bits bits, int which, int half) {
    return (bits.at[which] >> 16 * half & 0xffff) < STAYING;
}
"""
_ALIGNED = """
__device__ __forceinline__ Bits drawn_of_word(Word word) {
    const u64 bits = mixed(word);
    return {(u32)bits, (u32)(bits >> 32)};
}
__device__ __forceinline__ Bits drawn(Window window, int ahead) { return drawn_of_word(window + word_of_key(ahead)); }
// Each of two lanes draws for one of the rows, and hands on what is of the other's key.
__device__ __forceinline__ Bits drawn_of_keys(int key, int, const Column* columns, bool odd) {
    const Bits own = drawn_of_word(word_of_key(key) + columns[odd]);
    const u32 first = (own.at[0] & 0xffff) | own.at[1] << 16;
    const u32 second = own.at[0] >> 16 | (own.at[1] & 0xffff0000);
    const u32 kept = odd ? second : first, given = odd ? first : second;
    const u32 other = __shfl_xor_sync(0xffffffffu, given, 4);
    return {odd ? other : kept, odd ? kept : other};
}
"""
_ANYWHERE = """
__device__ __forceinline__ Bits drawn(const Window& window, int ahead) {
    const Word word = window + word_of_key(ahead);
    return {bits_of(word, 0) | bits_of(word, 1) << 16, bits_of(word, 8) | bits_of(word, 9) << 16};
}
__device__ __forceinline__ Bits drawn_of_keys(int key, int, const Column* columns, bool) {
    const Word first = columns[0] + word_of_key(key), second = columns[1] + word_of_key(key);
    return {bits_of(first, 0) | bits_of(first, 8) << 16, bits_of(second, 0) | bits_of(second, 8) << 16};
}
"""
_DRAWN_BEFORE = """
typedef i64 Word;
template <int N> struct Some { u32 at[N]; };
template <int N> __device__ __forceinline__ Some<N> bits_from(i64 first, const u32* bits) {
    bits += first >> 5;
    Some<N> found;
    u32 here = *bits;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const u32 next = *++bits;
        found.at[i] = __funnelshift_r(here, next, first & 31);
        here = next;
    }
    return found;
}
typedef Some<(ROWS + 31) / 32> Column;
struct Bits { u32 at[2]; };
__device__ __forceinline__ Word word_of(i64 row, i64 keys, const i64*, u64) { return row * keys; }
template <int WIDTH> __device__ __forceinline__ Some<(WIDTH + 31) / 32> window_of(Word row, int key, const u32* bits) {
    return bits_from<(WIDTH + 31) / 32>(row + key, bits);
}
template <int N> __device__ __forceinline__ Bits drawn(const Some<N>& window, int ahead) {
    const u32 part = window.at[ahead / 32] >> ahead % 32;
    return {part, part >> 8};
}
__device__ __forceinline__ Column column_of(i64 row, i64 keys, int key, const i64*, u64, const u32* bits) {
    return bits_from<(ROWS + 31) / 32>(row * keys + key, bits);
}
__device__ __forceinline__ Bits drawn_of_keys(int, int inside, const Column* columns, bool) {
    const u32 first = columns[0].at[inside / 32] >> inside % 32, second = columns[1].at[inside / 32] >> inside % 32;
    return {(first & 1) | (first >> 7 & 2), (second & 1) | (second >> 7 & 2)};
}
__device__ __forceinline__ bool stays(Bits bits, int which, int half) { return bits.at[which] >> half & 1; }
"""
_DRAW = r"""
typedef long long i64;
typedef unsigned int u32;
// What is kept of sixteen elements that four words decide.
__device__ __forceinline__ u32 kept(u64 group, u64 key) {
    u32 found = 0;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        const u64 word = mixed((4 * group + t) * GOLDEN + key + GOLDEN);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const u32 stay = (u32)(word >> 16 * e & 0xffff) < STAYING;
            found |= stay << (2 * t + (e & 1) + 8 * (e >> 1));
        }
    }
    return found;
}
// A thread draws a word of bits. BEGIN: place of the first weight where all of them are one run of elements, else -1.
extern "C" __global__ void flash_draws(u32* bits, i64 words, int keys, const i64* step, u64 seed) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= words) return;
    u64 found = 0;
    if (BEGIN >= 0) {
        const u64 key = mixed(seed + (u64)*step), first = ((u64)BEGIN >> 4) + 2 * at;
        found = kept(first, key) | (u64)kept(first + 1, key) << 16;
        if (BEGIN % 16) found = (found | (u64)kept(first + 2, key) << 32) >> BEGIN % 16;
    } else {
        i64 row = 32 * at / keys;
        int column = 32 * at - row * keys;
        Word word = word_of_row(row, step, seed);
        for (int e = 0; e < 32; ++e) {
            found |= (u64)stays(word, column) << e;
            if (++column == keys) column = 0, word = word_of_row(++row, step, seed);
        }
    }
    bits[at] = (u32)found;
}
"""


def drawn_before(attention: Attention) -> bool:
    """Whether bits in memory say what is dropped: not where threads draw as cheaply, nor where the bits would be more
    than attention's operands."""
    draws, shape = attention.scores.draws, attention.shape
    if draws is None or draws.aligned:
        return False
    operands = sum(array.nbytes for array in attention.operands[:3])
    return math.prod(shape.weights) // 8 <= operands


def bits_bytes(attention: Attention) -> int:
    """Bytes of scratch memory for the bits of all weights, and of rows behind the last that nobody looks at; 0 where
    nothing is drawn before."""
    if not drawn_before(attention):
        return 0
    shape = attention.shape
    return _WORD // 8 * (-(-(math.prod(shape.weights) + _MOST_ROWS * shape.keys) // _WORD) + _MOST_ROWS // _WORD + 1)


def column_bytes(attention: Attention, rows: int) -> int:
    """Bytes that the form of keys holds of each query; rows: keys of a block."""
    draws = attention.scores.draws
    if draws is None:
        return 1
    if drawn_before(attention):
        return _WORD // 8 * -(-rows // _WORD)
    return 8 if draws.aligned else 16


def draws_of(attention: Attention) -> str:
    """C++ of the functions by which the kernels learn what stays.

    * `word_of(row, keys, step, seed)`: what a thread notes of a query's weights; `window_of<WIDTH>(word, key, bits)`:
      of WIDTH of its keys, from `key` on, which is 2t behind a multiple of 16; `drawn(window, ahead)`: Bits of keys 0
      and 1 (which = 0; half 0 and 1), 8 and 9 (which = 1) behind `ahead`, a multiple of 16.
    * `column_of(row, keys, key, step, seed, bits)`: what is noted of a query for the keys of a block, whose first is
      `key`; `drawn_of_keys(key, inside, columns, odd)`: Bits of a key, and that 8 behind it (half), of two queries
      (which) that follow each other; inside: of the block's keys. The first key is odd or even. Lanes that differ in 4
      have neighbouring keys.
    * `stays(bits, which, half)`, and the macro KEPT_FACTOR: how many times a weight that stays counts.
    """
    draws = attention.scores.draws
    if draws is None:
        return _NOTHING_DROPPED
    if drawn_before(attention):
        return _DRAWN_BEFORE + f"#define KEPT_FACTOR ((float){1 / draws.keep_prob!r})\n"
    own = _ALIGNED if draws.aligned else _ANYWHERE
    return "".join((draws_source(draws), f"#define STAYING {count_of(draws.keep_prob)}u\n", _DRAWN_HERE, own))


def draw(device: Device, attention: Attention, bits: Array) -> Launch:
    """What fills `bits`, of `bits_bytes`; it does nothing where nothing is drawn before."""
    draws = attention.scores.draws
    if draws is None or not drawn_before(attention):
        return lambda: None
    known = f"#define STAYING {count_of(draws.keep_prob)}u\n#define BEGIN {_begin(draws)}ll\n"
    kernel = device.kernel(draws_source(draws) + known + _DRAW, "flash_draws")
    words = -(-math.prod(attention.shape.weights) // _WORD)
    arguments: list[Any] = [bits, np.int64(words), np.int32(attention.shape.keys), device.step, seed_of(draws)]

    def launch() -> None:
        kernel(-(-words // _THREADS), _THREADS, arguments)

    return launch


def _begin(draws: Draws) -> int:
    """The place of the first of a rank's weights where they are one run of all, else -1."""
    merged, starts, _ = merged_slice(draws.shape, draws.begin, draws.local)
    return starts[0] if len(merged) == 1 else -1
