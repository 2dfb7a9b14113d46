"""Dropout of fused attention's weights on a GPU: numbers that its kernels draw, or bits that were drawn before.

If rows of weights begin with groups of elements that words of the generator decide together (see
`ops/nn/attention_kernel.py`), a thread draws a word for four of its weights. Elsewhere every weight would need one of
its own, in each of the three kernels: a kernel before them draws all weights, a word for four, and leaves a bit of each
in scratch memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.types import FLOAT32, HALVES, DType, dtype_of
from mspc.ops.cuda.attention_kernels import Attention, addends
from mspc.ops.cuda.text import address
from mspc.ops.device import Array, Device, Launch, c_type
from mspc.ops.nn.attention_kernel import Draws, Shape, draws_source, seed_of
from mspc.ops.random.words import count_of, merged_slice

_THREADS = 256
_WORD = 32
"""Bits of a word in memory."""
_MOST_ROWS = 128
"""Rows of a kernel's tile. Those of the last tile that are after all rows read bits, too."""

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
    """Return True if bits in memory say which weights are dropped: not if threads draw as cheaply, nor if the bits
    would be more than attention's operands."""
    draws, shape = attention.scores.draws, attention.shape
    if draws is None or draws.aligned:
        return False
    operands = sum(array.nbytes for array in attention.operands[:3])
    return math.prod(shape.weights) // 8 <= operands


def bits_bytes(attention: Attention) -> int:
    """Return the bytes of scratch memory for the bits of all weights, and of unused rows after the last; 0 if nothing
    is drawn before."""
    if not drawn_before(attention):
        return 0
    shape = attention.shape
    return _WORD // 8 * (-(-(math.prod(shape.weights) + _MOST_ROWS * shape.keys) // _WORD) + _MOST_ROWS // _WORD + 1)


def column_bytes(attention: Attention, rows: int) -> int:
    """Return the bytes that the form of keys holds of each query; rows: keys of a block."""
    draws = attention.scores.draws
    if draws is None:
        return 1
    if drawn_before(attention):
        return _WORD // 8 * -(-rows // _WORD)
    return 8 if draws.aligned else 16


def draws_of(attention: Attention) -> str:
    """Return C++ of the functions that tell kernels which weights remain.

    * `word_of(row, keys, step, seed)`: notes of a query's weights; `window_of<WIDTH>(word, key, bits)`: of WIDTH of its
      keys, from `key` on, which is 2t after a multiple of 16; `drawn(window, ahead)`: Bits of keys 0 and 1 (which = 0;
      half 0 and 1), 8 and 9 (which = 1) after `ahead`, a multiple of 16.
    * `column_of(row, keys, key, step, seed, bits)`: notes of a query for the keys of a block from `key` on;
      `drawn_of_keys(key, inside, columns, odd)`: Bits of a key, and of the one 8 later (half), of two neighbouring
      queries (which); inside: of the block's keys. The first key is odd or even. Lanes that differ in 4 have
      neighbouring keys.
    * `stays(bits, which, half)`, and the macro KEPT_FACTOR: how many times a remaining weight counts.
    """
    draws = attention.scores.draws
    if draws is None:
        return _NOTHING_DROPPED
    if drawn_before(attention):
        return _DRAWN_BEFORE + f"#define KEPT_FACTOR ((float){1 / draws.keep_prob!r})\n"
    own = _ALIGNED if draws.aligned else _ANYWHERE
    return "".join((draws_source(draws), f"#define STAYING {count_of(draws.keep_prob)}u\n", _DRAWN_HERE, own))


def draw(device: Device, attention: Attention, bits: Array) -> Launch:
    """Return the launch that fills `bits`, of `bits_bytes`; it does nothing if nothing is drawn before."""
    draws = attention.scores.draws
    if draws is None or not drawn_before(attention):
        return lambda: None
    known = f"#define STAYING {count_of(draws.keep_prob)}u\n#define BEGIN {_begin(draws)}ll\n"
    kernel = device.kernel(draws_source(draws) + known + _DRAW, "flash_draws")
    words = -(-math.prod(attention.shape.weights) // _WORD)
    arguments: list[Any] = [bits, np.int64(words), np.int32(attention.shape.keys), device.step, seed_of(draws)]

    return partial(kernel, -(-words // _THREADS), _THREADS, arguments)


def _begin(draws: Draws) -> int:
    """Return the position of the first of a rank's weights if they are one run of all, else -1."""
    merged, starts, _ = merged_slice(draws.shape, draws.begin, draws.local)
    return starts[0] if len(merged) == 1 else -1


# Products of fragments on tensor cores, in which the kernels of fused attention differ by the type of their elements.
#
# Tensor cores multiply fragments; lane 4g + t of a warp holds a part of each (PTX ISA). C is 16 x 8: the lane holds
# C[g, 2t], C[g, 2t + 1], C[g + 8, 2t], C[g + 8, 2t + 1]. Registers of A hold 4 bytes each of row g, row g + 8, and of
# both again 16 bytes further on; those of B 4 bytes of column g, and again 16 bytes further on:
#
# * halves, mma.m16n8k16: two elements in a register, so that two neighbouring C are the A of the next product;
# * Float32, mma.m16n8k8 of TF32: one element. The order of a sum's terms does not matter: places t and t + 4 of the
#   next product are columns 2t and 2t + 1 of C, so that a C is an A.
#
# Either way 32 bytes of a row are a step of a product over the depth, and ldmatrix loads the bytes that a lane needs.


HALF_INSTRUCTIONS = r"""
// c += A B
__device__ __forceinline__ void multiply(float (&c)[4], const Part& a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." PTX "." PTX ".f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
}
// Four matrices of 8 x 8 elements, transposed; lane 8 m + r says where row r of matrix m is, and gets a part of every
// column.
__device__ __forceinline__ Part load_transposed(const void* row) {
    Part to;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3]) : "r"(shared_address(row)));
    return to;
}
__device__ __forceinline__ u32 pair(float low, float high) {
    u32 r; asm("cvt.rn." PTX "x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}
"""
TF32_INSTRUCTIONS = r"""
// c += A B, of elements without their last 13 bits.
__device__ __forceinline__ void multiply_rounded(float (&c)[4], const Part& a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
}
"""
ROUNDED = r"""
__device__ __forceinline__ void multiply(float (&c)[4], const Part& a, u32 b0, u32 b1) {
    multiply_rounded(c, a, b0, b1);
}
// Half a unit of what tensor cores keep, in the mean, makes the error even.
__device__ __forceinline__ u32 operand(float v) { return __float_as_uint(v * 1.000356674194336f); }
"""
"""Matmuls of TF32, and the rounding before them: `cvt.rna.tf32.f32` takes two instructions of half rate (a comparison
and an addition to the bits) for every element that a warp loads, and the matmul leaves out the same bits after it. v (1
+ 187 / 2^19) without them is off by 0.31 units of the last bit (root of the mean square; the nearest 0.29, v without
them 0.58) and by 0.73 at most (0.5; 1), is v if v has no more bits than TF32, and is neither larger nor smaller in the
mean (by less than 1e-5 of v; v without them is smaller by 3.5e-4 of v)."""
IN_PARTS = r"""
// The first 11 bits of an element, and the next 11.
__device__ __forceinline__ u32 kept(u32 v) { return v & 0xffffe000u; }
__device__ __forceinline__ u32 rest(u32 v) {
    return __float_as_uint(__uint_as_float(v) - __uint_as_float(kept(v)));
}
// c += A B, but for the products of two rests, which Float32 can hardly tell.
__device__ __forceinline__ void multiply(float (&c)[4], const Part& a, u32 b0, u32 b1) {
    Part first, second;
#pragma unroll
    for (int i = 0; i < 4; ++i) first.at[i] = kept(a.at[i]), second.at[i] = rest(a.at[i]);
    multiply_rounded(c, second, kept(b0), kept(b1));
    multiply_rounded(c, first, rest(b0), rest(b1));
    multiply_rounded(c, first, kept(b0), kept(b1));
}
__device__ __forceinline__ u32 operand(float v) { return __float_as_uint(v); }
"""
"""Matmuls of Float32 by three of TF32."""

_DECLARED = r"""
// sum += A B for all D columns: A is 16 columns of accumulators from `j` on, B the rows from `rows` on that they stand
// for.
template <int BANDS_, int TILES_> __device__ __forceinline__ void accumulate(
    float (&sum)[BANDS_][OUTPUTS][4], const float (&weights)[BANDS_][TILES_][4], int j, const E* rows, int lane) {
"""
HALF_PRODUCTS = (
    r"""
template <int COUNT> __device__ __forceinline__ void settle(E*) {}
__device__ __forceinline__ Part ready(const Part& part) { return part; }
// The two A of 16 columns that neighbouring accumulators are.
__device__ __forceinline__ Part as_a(const float (&x)[4], const float (&y)[4]) {
    return {pair(x[0], x[1]), pair(x[2], x[3]), pair(y[0], y[1]), pair(y[2], y[3])};
}"""
    + _DECLARED
    + r"""
    Part a[BANDS_];
#pragma unroll
    for (int m = 0; m < BANDS_; ++m) a[m] = as_a(weights[m][j], weights[m][j + 1]);
#pragma unroll
    for (int i = 0; i < OUTPUTS; i += 2) {
        const Part b = load_transposed(rows + of_a(lane) + 8 * i);
#pragma unroll
        for (int m = 0; m < BANDS_; ++m) {
            multiply(sum[m][i], a[m], b.at[0], b.at[1]);
            multiply(sum[m][i + 1], a[m], b.at[2], b.at[3]);
        }
    }
}
// A lane's part of a row, rows g and g + 8 being h = 0 and 1.
__device__ __forceinline__ void store(E* row, const float (&sum)[OUTPUTS][4], int h, int t, float factor) {
#pragma unroll
    for (int i = 0; i < OUTPUTS; ++i)
        if (DEPTH == D || 8 * i < DEPTH)
            *(u32*)(row + 8 * i + 2 * t) = pair(sum[i][2 * h] * factor, sum[i][2 * h + 1] * factor);
}
"""
)
FLOAT32_PRODUCTS = (
    r"""
// Make ready for products what this thread has copied by fetch<COUNT>(rows, ...), before others read it: worth it for
// rows that are read again and again.
template <int COUNT> __device__ __forceinline__ void settle(E* rows) {
#pragma unroll
    for (int i = 0; i < (COUNT * ACROSS + THREADS - 1) / THREADS; ++i) {
        const int at = i * THREADS + threadIdx.x, row = at / ACROSS;
        if (COUNT * ACROSS % THREADS && row >= COUNT) break;
        Pack<float, 4>& four = *(Pack<float, 4>*)(rows + row * PITCH + at % ACROSS * EACH);
#pragma unroll
        for (int e = 0; e < 4; ++e) four.at[e] = __uint_as_float(operand(four.at[e]));
    }
}
// What was not settled.
__device__ __forceinline__ Part ready(Part part) {
#pragma unroll
    for (int i = 0; i < 4; ++i) part.at[i] = operand(__uint_as_float(part.at[i]));
    return part;
}
// Two neighbours of a row of B; with rows of D + 4 elements 16 lanes meet no conflict of banks.
__device__ __forceinline__ Pack<float, 2> two(const E* at) { return *(const Pack<float, 2>*)at; }"""
    + _DECLARED
    + r"""
#pragma unroll
    for (int k = 0; k < 2; ++k, rows += 8 * PITCH) {
        Part a[BANDS_];
#pragma unroll
        for (int m = 0; m < BANDS_; ++m) {
            const float (&c)[4] = weights[m][j + k];
            a[m] = {operand(c[0]), operand(c[2]), operand(c[1]), operand(c[3])};
        }
        const E* even = rows + (lane & 3) * 2 * PITCH + (lane >> 2) * 2;
#pragma unroll
        for (int i = 0; i < OUTPUTS; i += 2) {
            const Pack<float, 2> x = two(even + 8 * i), y = two(even + PITCH + 8 * i);
            const u32 first[2] = {operand(x.at[0]), operand(y.at[0])};
            const u32 second[2] = {operand(x.at[1]), operand(y.at[1])};
#pragma unroll
            for (int m = 0; m < BANDS_; ++m) {
                multiply(sum[m][i], a[m], first[0], first[1]);
                multiply(sum[m][i + 1], a[m], second[0], second[1]);
            }
        }
    }
}
// A lane's part of a row, rows g and g + 8 being h = 0 and 1: of every 16 columns it has 4 t to 4 t + 3.
__device__ __forceinline__ void store(E* row, const float (&sum)[OUTPUTS][4], int h, int t, float factor) {
#pragma unroll
    for (int i = 0; i < OUTPUTS; i += 2) {
        const float (&x)[4] = sum[i], (&y)[4] = sum[i + 1];
        if (DEPTH == D || 8 * i + 4 * t < DEPTH)
            *(Pack<float, 4>*)(row + 8 * i + 4 * t) = {
                x[2 * h] * factor, y[2 * h] * factor, x[2 * h + 1] * factor, y[2 * h + 1] * factor};
    }
}
"""
)
"""The functions that the kernels call, by the type of their elements."""


# Products of tiles in shared memory by four warps at once (wgmma, PTX ISA: compute capability 9.0 alone), for fused
# attention.
#
# Four warps, a group, multiply 64 rows of A, each of them 16; a lane holds the same elements of its warp's rows of C,
# and of an A in registers, as in `flash_products` for halves. A tile in shared memory is made of panels of 64 columns,
# whose rows are 128 bytes long and follow each other from a multiple of 1,024 bytes on; the 16 bytes of row r with
# number c are at place c ^ (r & 7). Read along its rows it is the rows of A, or the columns of B; read across them it
# is the rows of B.


PANEL = 64
"""Columns of a panel, halves in 128 bytes, and rows of a group."""
MOST_PANELS = 2
"""Upper bound of the panels of a row, whose sums fit into registers."""


def _registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"


def _sums(count: int, first: str = "") -> str:
    return ", ".join(f'"+f"(c[{first}{i // 4}][{i % 4}])' for i in range(count))


def _product(columns: int, *, of_rows: bool) -> str:
    """Return C++ of the matmul with B of this number of columns. of_rows: of an A in registers with rows of a panel,
    added to c from FIRST on; else of two tiles along their rows, added if `more` is not 0."""
    count = columns // 2
    shape = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32."
    head = f'"{{.reg .pred p; setp.ne.b32 p, %{count + 2}, 0; {shape}" PTX "." PTX " {_registers(0, count)}, "'
    if of_rows:
        return f"""template <int FIRST, int N>
__device__ __forceinline__ void multiply_rows(float (&c)[N][4], const Part& a, Tile b) {{
    asm volatile("{shape}" PTX "." PTX " {_registers(0, count)}, {_registers(count, 4)}, %{count + 4}, 1, 1, 1, 1;"
        : {_sums(count, "FIRST + ")} : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "l"(b));
}}
"""
    return f"""__device__ __forceinline__ void multiply_tiles(float (&c)[{count // 4}][4], Tile a, Tile b, int more) {{
    asm volatile({head}
        "%{count}, %{count + 1}, p, 1, 1, 0, 0;}}"
        : {_sums(count)} : "l"(a), "l"(b), "r"(more));
}}
"""


GROUP_INSTRUCTIONS = (
    r"""
typedef u64 Tile;
// Where a tile begins, its rows in eights of 1,024 bytes; and a place so many bytes behind.
__device__ __forceinline__ Tile tile_at(const void* rows) {
    return (Tile)((shared_address(rows) & 0x3ffff) >> 4) | (Tile)1 << 16 | (Tile)64 << 32 | (Tile)1 << 62;
}
__device__ __forceinline__ Tile ahead(Tile tile, int bytes) { return tile + (bytes >> 4); }
// Ahead of products: what was copied to shared memory, once the copies were waited for, and registers are seen by them.
__device__ __forceinline__ void show_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Behind them: sums may be read.
__device__ __forceinline__ void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
template <int N> __device__ __forceinline__ void made(float (&c)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[j][e]) :: "memory");
}
// c = A B or c += A B: 16 columns of A's rows and of B's columns.
"""
    + _product(16, of_rows=False)
    + _product(32, of_rows=False)
    + _product(64, of_rows=False)
    + "// c += A B: 16 columns of A, rows of B.\n"
    + _product(64, of_rows=True)
)
GROUPS = r"""
// Of a tile of COUNT rows: bytes to the columns of a step of a product over the depth.
template <int COUNT> __device__ __forceinline__ constexpr int step_bytes(int step) {
    return step / 4 * COUNT * 128 + step % 4 * 32;
}
// The tile of this thread's group, of one of ROWS.
__device__ __forceinline__ Tile own_tile_at(const E* rows) { return ahead(tile_at(rows), first_of_group() * 128); }
// c = A B over the depth, where B is rows of a tile of COUNT.
template <int COUNT, int N> __device__ __forceinline__ void over_depth(float (&c)[N][4], Tile a, Tile b) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
        multiply_tiles(c, ahead(a, step_bytes<ROWS>(step)), ahead(b, step_bytes<COUNT>(step)), step > 0);
}
// sum += A B, where B is the rows that the columns of A stand for, of a tile of COUNT.
template <int COUNT, int N>
__device__ __forceinline__ void over_rows(float (&sum)[OUTPUTS][4], const Part (&a)[N], Tile b) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
        multiply_rows<0>(sum, a[j], ahead(b, j * 16 * 128));
        if constexpr (OUTPUTS > 8) multiply_rows<8>(sum, a[j], ahead(b, (COUNT + j * 16) * 128));
    }
}
template <int N> __device__ __forceinline__ void as_parts(Part (&a)[N], const float (&c)[2 * N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j) a[j] = as_a(c[2 * j], c[2 * j + 1]);
}
"""


# C++ that the kernels of fused attention share: copies to shared memory, and the terms that turn products into scores.
#
# Elements are Float16, BFloat16 or Float32 (see `flash_products`). Rows in shared memory are an odd multiple of 16
# bytes long: eight of them meet no conflict of banks.


_ALIGNMENT = 16
_LEAST_STEP = 16
"""The depth in shared memory is a multiple of this number of elements."""
DEEPEST = 256
"""The largest head whose sums fit into registers."""
SHORT, MIDDLE, LONG = (n + _ALIGNMENT for n in (128, 256, 512))
"""Bytes in shared memory of a row of 64 halves; of 128 halves or 64 of Float32; of 256 halves or 128 of Float32."""
UNBOUNDED = 1 << 30
"""The value for no limit of key - query."""

INSTRUCTIONS = r"""
typedef unsigned int u32;
struct Part { u32 at[4]; };
__device__ __forceinline__ u32 shared_address(const void* at) {
    u32 found;
    asm("{ .reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a; }" : "=r"(found) : "l"(at));
    return found;
}
// Four matrices of 8 rows of 16 bytes; lane 8 m + r says where row r of matrix m is, and lane 4 r + c gets bytes from
// 4 c on of row r of every one.
__device__ __forceinline__ Part load_matrices(const void* row) {
    Part to;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3]) : "r"(shared_address(row)));
    return to;
}
// 16 bytes from global to shared memory, or zeros; they are there after commit_copies() and wait_for_copies().
__device__ __forceinline__ void copy_async(void* to, const void* from, bool there) {
    const int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        :: "r"(shared_address(to)), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
__device__ __forceinline__ float power_of_2(float v) {
    float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r;
}
"""
"""Everything that is written in PTX, one instruction each."""

COMMON = r"""
typedef long long i64;
// Of elements: EACH in 16 bytes, a STEP of a product over the depth, from one row in shared memory to the next.
constexpr int EACH = 16 / sizeof(E), STEP = 2 * EACH, PITCH = GROUPED ? D : D + EACH;
constexpr int THREADS = 32 * WARPS, ROWS = 16 * BANDS * WARPS;
constexpr int STEPS = D / STEP, ACROSS = D / EACH, OUTPUTS = D / 8;
// Of how many columns a tile is gone over that is half empty: the least that products take.
constexpr int FEW = 16;
template <int N> struct Width { static constexpr int value = N; };
constexpr float LOG2_E = 1.4426950408889634f;
#define INFINITE __int_as_float(0x7f800000)

// What was copied to shared memory and waited for is there for products of tiles.
#if GROUPED
#define SHOW_COPIES show_copies()
#else
#define SHOW_COPIES (void)0
#endif
// The first of a block's rows that this thread's warps have where they multiply together.
__device__ __forceinline__ int first_of_group() {
    return WARPS > 4 ? __shfl_sync(0xffffffffu, threadIdx.x >> 7, 0) * 64 : 0;  // the same for a warp, and known to be
}

alignas(GROUPED ? 1024 : 16) extern __shared__ unsigned char memory[];

// Where 16 bytes of a row lie, from this column on, in a tile of COUNT rows.
template <int COUNT> __device__ __forceinline__ int place_of(int row, int column) {
    if constexpr (GROUPED != 0)
        return (column / 64 * COUNT + row) * 64 + ((column % 64 / EACH) ^ (row & 7)) * EACH;
    return row * PITCH + column;
}
// Copy COUNT rows of which `left` are there; the others, and elements behind DEPTH, become zeros.
template <int COUNT> __device__ __forceinline__ void fetch(E* to, const E* from, i64 step, int left) {
    if constexpr (THREADS % ACROSS == 0) {  // a thread takes the same columns of all of its rows
        constexpr int EVERY = THREADS / ACROSS;
        const int first = threadIdx.x / ACROSS, column = threadIdx.x % ACROSS * EACH;
        const bool inside = DEPTH == D || column < DEPTH;
        const E* row = from + first * step + column;
#pragma unroll
        for (int i = 0; i < (COUNT + EVERY - 1) / EVERY; ++i, row += EVERY * step) {
            if (COUNT % EVERY && first + i * EVERY >= COUNT) break;
            const bool there = inside && i * EVERY < left - first;
            copy_async(to + place_of<COUNT>(first + i * EVERY, column), there ? row : from, there);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < (COUNT * ACROSS + THREADS - 1) / THREADS; ++i) {
        const int at = i * THREADS + threadIdx.x, row = at / ACROSS, column = at % ACROSS * EACH;
        if (COUNT * ACROSS % THREADS && row >= COUNT) break;
        const bool there = row < left && (DEPTH == D || column < DEPTH);
        copy_async(to + place_of<COUNT>(row, column), there ? from + row * step + column : from, there);
    }
}
// Where a lane reads for load_matrices: as rows of A, as columns of B.
__device__ __forceinline__ int of_a(int lane) { return (lane & 15) * PITCH + (lane >> 4) * EACH; }
__device__ __forceinline__ int of_columns(int lane) {
    return ((lane >> 4) * 8 + (lane & 7)) * PITCH + (lane & 8 ? EACH : 0);
}

#define TERMS const F* shift, i64 f_b, i64 f_n, i64 f_i, i64 f_j, const M* mask, i64 m_b, i64 m_n, i64 m_i, i64 m_j, \
    const H* key_shift, i64 h_b, i64 h_n, i64 h_j, \
    const i64* step, u64 seed, const u32* bits_of_weights, int low, int high
// What is added to a score to the base 2, minus infinity where the query does not look at the key: of a key for all
// queries, and of a query beside it. KEYED: the shift (1) and the mask (2) that are the same for all queries, and the
// second addend (4), which always is.
#define OF_KEY(j) added<SHIFTED & KEYED, MASKED & KEYED>(shift + (j) * f_j, mask + (j) * m_j, key_shift + (j) * h_j)
#define ANY_KEYED ((SHIFTED | MASKED) & KEYED)
#define OF_QUERY(i, j) \
    added<SHIFTED & ~KEYED, MASKED & ~KEYED>(shift + (i) * f_i + (j) * f_j, mask + (i) * m_i + (j) * m_j, key_shift)
template <int SHIFTS, int MASKS>
__device__ __forceinline__ float added(const F* shift, const M* mask, const H* key_shift) {
    float found = 0;
    if constexpr ((SHIFTS & 1) != 0) found = __fmul_rn((float)wide(*shift), LOG2_E);
    if constexpr ((SHIFTS & 4) != 0) found += __fmul_rn((float)wide(*key_shift), LOG2_E);
    if constexpr (MASKS != 0) found = *mask ? -INFINITE : found;
    return found;
}
"""
"""C++ that all kernels share, placed before `flash_products`. D: DEPTH, the depth of a head, as a multiple of 16. E:
elements, F: those of the shift, M: those of the mask, H: those of the second addend. RAW: whether nothing is added and
the scale is above 0, so that products order queries' keys as scores do. GROUPED: whether tiles are in the order of
`flash_groups`."""


def macros(**values: int) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def strides_of(*arrays: Array) -> list[np.int64]:
    """Return the strides of batch, head and sequence in elements."""
    return [np.int64(stride // array.itemsize) for array in arrays for stride in array.strides[:3]]


def padded(depth: int) -> int:
    """Return the depth of a head as kernels pad it."""
    return -(-depth // _LEAST_STEP) * _LEAST_STEP


def row_bytes(attention: Attention, grouped: bool = False) -> int:
    """Return the bytes of a row in shared memory. grouped: tiles are in the order of `flash_groups`."""
    return padded(attention.shape.depth) * attention.operands[0].itemsize + (0 if grouped else _ALIGNMENT)


def has_kernels(shape: Shape, dtype: DType) -> bool:
    """Whether there are kernels here for attention of these sizes and elements."""
    if dtype not in HALVES and dtype != FLOAT32:
        return False
    if shape.depth != shape.value_depth or shape.depth > DEEPEST or shape.depth * dtype.itemsize % _ALIGNMENT:
        return False
    return 0 < min(shape.batch, shape.queries, shape.keys, shape.depth) and max(shape.queries, shape.keys) < UNBOUNDED


def takes(attention: Attention, arrays: Sequence[Array]) -> bool:
    """Whether the kernels here compute this attention; `arrays` are all by head that they read or write."""
    if len({array.dtype for array in arrays}) != 1 or attention.scores.keep_mask is not None:
        return False
    if not has_kernels(attention.shape, dtype_of(arrays[0].dtype)):
        return False
    strides = [stride for array in arrays for stride in array.strides[:3]]
    return not any(number % _ALIGNMENT for number in (*strides, *map(address, arrays)))


def has_terms(attention: Attention) -> bool:
    """Whether something is added to the scores, or a mask hides some."""
    return attention.scores.shifted or attention.scores.mask is not None


def has_terms_of_queries(attention: Attention) -> bool:
    """Whether one of these differs from query to query."""
    terms = (attention.scores.shift, attention.scores.mask)
    return any(term is not None and term.shape[2] > 1 for term in terms)


def has_tail(attention: Attention, columns: int, tile: int) -> bool:
    """Whether the last tile is half empty, and a second loop over tiles is worth the registers that it takes: terms of
    Float32 leave none."""
    wide = attention.operands[0].itemsize > 2 and has_terms_of_queries(attention)
    return not wide and 0 < columns % tile <= tile // 2


def can_group(device: Device, attention: Attention) -> bool:
    """Whether four warps can multiply together: halves, of rows that are whole panels."""
    panels, rest = divmod(padded(attention.shape.depth), PANEL)
    halves = attention.operands[0].itemsize == 2
    return device.warp_groups and halves and not rest and panels <= MOST_PANELS


def source_of(device: Device, attention: Attention, *parts: str, **sizes: int) -> str:
    """Return a kernel's text: constants of the attention, these sizes, the common part, these parts."""
    scores, dtype = attention.scores, dtype_of(attention.operands[0].dtype)
    shift = "float" if scores.shift is None else c_type(dtype_of(scores.shift.dtype))
    mask = "bool" if scores.mask is None else c_type(dtype_of(scores.mask.dtype))
    key_shift = "float" if scores.key_shift is None else c_type(dtype_of(scores.key_shift.dtype))
    names = {"E": c_type(dtype), "F": shift, "M": mask, "H": key_shift}
    if dtype in HALVES:
        names["PTX"] = f'"{c_type(dtype)}"'
        instructions, products = HALF_INSTRUCTIONS, HALF_PRODUCTS
    else:
        form = ROUNDED if device.tf32 else IN_PARTS
        instructions, products = TF32_INSTRUCTIONS, form + FLOAT32_PRODUCTS
    text = "".join(f"#define {name} {value}\n" for name, value in names.items())
    terms = ((1, scores.shift), (2, scores.mask), (4, scores.key_shift))
    shift_bit, masked, key_bit = (bit * (array is not None) for bit, array in terms)
    shifted = shift_bit | key_bit
    keyed = sum(bit for bit, array in terms if array is not None and array.shape[2] == 1)
    depth = attention.shape.depth
    raw = int(not has_terms(attention) and scores.scale > 0)
    grouped = bool(sizes.setdefault("GROUPED", 0))
    known = macros(D=padded(depth), DEPTH=depth, SHIFTED=shifted, MASKED=masked, KEYED=keyed, RAW=raw, **sizes)
    if grouped:
        instructions, products = instructions + GROUP_INSTRUCTIONS, products + GROUPS
    return "".join((text, known, INSTRUCTIONS, instructions, COMMON, draws_of(attention), products, *parts))


def terms_of(device: Device, attention: Attention, bits: Array) -> list[Any]:
    """Return the kernels' arguments TERMS. bits: see `draw`; any array if nothing was drawn before."""
    scores = attention.scores
    low, high = (
        limit if bound is None else max(-UNBOUNDED, min(UNBOUNDED, bound))
        for bound, limit in ((scores.low, -UNBOUNDED), (scores.high, UNBOUNDED))
    )
    return [*addends(attention), device.step, seed_of(scores.draws), bits, np.int32(low), np.int32(high)]
