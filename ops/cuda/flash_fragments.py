"""What the kernels of fused attention share: copies to shared memory, and the terms that make scores of products.

Elements are Float16, BFloat16 or Float32 (see `flash_products`). Rows in shared
memory are an odd multiple of 16 bytes long: eight of them meet no conflict of banks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.types import FLOAT32, HALVES, DType, dtype_of
from mspc.ops.cuda import flash_products
from mspc.ops.cuda.attention import Attention, addends
from mspc.ops.cuda.flash_draws import draws_of
from mspc.ops.cuda.flash_groups import GROUP_INSTRUCTIONS, GROUPS, MOST_PANELS, PANEL
from mspc.ops.cuda.source import address
from mspc.ops.device import Array, Device, c_type
from mspc.ops.nn.attention_kernel import Shape, seed_of

_ALIGNMENT = 16
_LEAST_STEP = 16
"""Elements of the depth of which there is a multiple in shared memory."""
DEEPEST = 256
"""The largest head whose sums fit into registers."""
SHORT, MIDDLE, LONG = (n + _ALIGNMENT for n in (128, 256, 512))
"""Bytes in shared memory of a row of 64 halves; of 128 halves or 64 of Float32; of 256 halves or 128 of Float32."""
UNBOUNDED = 1 << 30
"""Stands for no limit of key - query."""

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
"""What all kernels share, in front of `flash_products`. D: DEPTH, the depth of a head, as a multiple of 16. E:
elements, F: those of the shift, M: those of the mask, H: those of the second addend. RAW: whether nothing is
added and the scale is above 0, so that products order queries' keys as scores do. GROUPED: whether tiles lie as
`flash_groups` says."""


def macros(**values: int) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def strides_of(*arrays: Array) -> list[np.int64]:
    """Strides of batch, head and sequence in elements."""
    return [np.int64(stride // array.itemsize) for array in arrays for stride in array.strides[:3]]


def padded(depth: int) -> int:
    """The depth of a head as kernels go over it."""
    return -(-depth // _LEAST_STEP) * _LEAST_STEP


def row_bytes(attention: Attention, grouped: bool = False) -> int:
    """Bytes of a row in shared memory. grouped: where tiles lie as `flash_groups` says."""
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
    """Whether the last tile is half empty, and a second way to go over tiles is worth the registers that it takes:
    terms of Float32 leave none."""
    wide = attention.operands[0].itemsize > 2 and has_terms_of_queries(attention)
    return not wide and 0 < columns % tile <= tile // 2


def can_group(device: Device, attention: Attention) -> bool:
    """Whether four warps can multiply together: halves, of rows that are whole panels."""
    panels, rest = divmod(padded(attention.shape.depth), PANEL)
    halves = attention.operands[0].itemsize == 2
    return device.warp_groups and halves and not rest and panels <= MOST_PANELS


def source_of(device: Device, attention: Attention, *parts: str, **sizes: int) -> str:
    """A kernel's text: what it knows of the attention when it is compiled, these sizes, what all share, these parts."""
    scores, dtype = attention.scores, dtype_of(attention.operands[0].dtype)
    shift = "float" if scores.shift is None else c_type(dtype_of(scores.shift.dtype))
    mask = "bool" if scores.mask is None else c_type(dtype_of(scores.mask.dtype))
    key_shift = "float" if scores.key_shift is None else c_type(dtype_of(scores.key_shift.dtype))
    names = {"E": c_type(dtype), "F": shift, "M": mask, "H": key_shift}
    if dtype in HALVES:
        names["PTX"] = f'"{c_type(dtype)}"'
        instructions, products = flash_products.HALF_INSTRUCTIONS, flash_products.HALVES
    else:
        form = flash_products.ROUNDED if device.tf32 else flash_products.IN_PARTS
        instructions, products = flash_products.TF32_INSTRUCTIONS, form + flash_products.FLOAT32
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
    """The kernels' arguments TERMS. bits: see `flash_draws.draw`; any array where nothing was drawn before."""
    scores = attention.scores
    low, high = (
        limit if bound is None else max(-UNBOUNDED, min(UNBOUNDED, bound))
        for bound, limit in ((scores.low, -UNBOUNDED), (scores.high, UNBOUNDED))
    )
    return [*addends(attention), device.step, seed_of(scores.draws), bits, np.int32(low), np.int32(high)]
