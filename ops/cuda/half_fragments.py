"""What the kernels of fused attention of Float16 and BFloat16 share: products of fragments, copies, and the
terms that make scores of them.

Tensor cores multiply fragments: A 16x16, B 16x8, C 16x8, of which lane 4g + t of a warp holds C[g, 2t], C[g, 2t + 1],
C[g + 8, 2t], C[g + 8, 2t + 1], in a pair each A[g, 2t..], A[g + 8, 2t..], A[g, 2t + 8..], A[g + 8, 2t + 8..] and
B[2t.., g], B[2t + 8.., g] (PTX ISA, fragments of mma.m16n8k16). Two neighbouring C are thus the A of the next product.
Rows of D + 8 elements in shared memory are an odd multiple of 16 bytes: eight of them meet no conflict of banks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mspc.ir.types import dtype_of
from mspc.ops.cuda.attention import Attention, addends
from mspc.ops.cuda.flash import UNBOUNDED, macros
from mspc.ops.cuda.source import address
from mspc.ops.device import Array, Device, c_type
from mspc.ops.nn.attention_draws import draws_source, seed_of

_ALIGNMENT = 16
_LEAST_STEP = 16
"""Elements of the depth that a product of fragments goes over."""
DEEPEST = 128
"""The largest head whose sums fit into registers."""
HALVES = ("float16", "bfloat16")

INSTRUCTIONS = r"""
typedef unsigned int u32;
struct Part { u32 at[4]; };
// c += A B
__device__ __forceinline__ void multiply(float (&c)[4], const Part& a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." PTX "." PTX ".f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ u32 shared_address(const void* at) {
    u32 found;
    asm("{ .reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a; }" : "=r"(found) : "l"(at));
    return found;
}
// Four matrices of 8 x 8 elements; lane 8 m + r says where row r of matrix m is, and gets its part of every one.
__device__ __forceinline__ Part load_matrices(const E* row) {
    Part to;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3]) : "r"(shared_address(row)));
    return to;
}
// The same of the transposed matrices.
__device__ __forceinline__ Part load_transposed(const E* row) {
    Part to;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3]) : "r"(shared_address(row)));
    return to;
}
__device__ __forceinline__ u32 pair(float low, float high) {
    u32 r; asm("cvt.rn." PTX "x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
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
constexpr int THREADS = 32 * WARPS, PITCH = D + 8, STEPS = D / 16, ACROSS = D / 8, ROWS = 16 * BANDS * WARPS;
constexpr float LOG2_E = 1.4426950408889634f;
#define INFINITE __int_as_float(0x7f800000)

alignas(16) extern __shared__ unsigned char memory[];

// Copy COUNT rows of which `left` are there; the others, and elements behind DEPTH, become zeros.
template <int COUNT> __device__ __forceinline__ void fetch(E* to, const E* from, i64 step, int left) {
#pragma unroll
    for (int i = 0; i < (COUNT * ACROSS + THREADS - 1) / THREADS; ++i) {
        const int at = i * THREADS + threadIdx.x, row = at / ACROSS, column = at % ACROSS * 8;
        if (COUNT * ACROSS % THREADS && row >= COUNT) break;
        const bool there = row < left && (DEPTH == D || column < DEPTH);
        copy_async(to + row * PITCH + column, there ? from + row * step + column : from, there);
    }
}
// Where a lane reads for load_matrices: as rows of A, as columns of B, as rows of B.
__device__ __forceinline__ int of_a(int lane) { return (lane & 15) * PITCH + (lane >> 4) * 8; }
__device__ __forceinline__ int of_columns(int lane) { return ((lane >> 4) * 8 + (lane & 7)) * PITCH + (lane & 8); }

// The two A of 16 columns that neighbouring accumulators are.
__device__ __forceinline__ Part as_a(const float (&x)[4], const float (&y)[4]) {
    return {pair(x[0], x[1]), pair(x[2], x[3]), pair(y[0], y[1]), pair(y[2], y[3])};
}
// sum += A B for all D columns, B being the 16 rows from `rows` on.
template <int BANDS_> __device__ __forceinline__ void accumulate(
    float (&sum)[BANDS_][2 * STEPS][4], const Part (&a)[BANDS_], const E* rows, int lane) {
#pragma unroll
    for (int j = 0; j < STEPS; ++j) {
        const Part b = load_transposed(rows + of_a(lane) + 16 * j);
#pragma unroll
        for (int m = 0; m < BANDS_; ++m) {
            multiply(sum[m][2 * j], a[m], b.at[0], b.at[1]);
            multiply(sum[m][2 * j + 1], a[m], b.at[2], b.at[3]);
        }
    }
}
// A lane's part of a row, rows g and g + 8 being h = 0 and 1.
__device__ __forceinline__ void store(E* row, const float (&sum)[2 * STEPS][4], int h, int t, float factor) {
#pragma unroll
    for (int j = 0; j < 2 * STEPS; ++j)
        if (DEPTH == D || 8 * j < DEPTH)
            *(u32*)(row + 8 * j + 2 * t) = pair(sum[j][2 * h] * factor, sum[j][2 * h + 1] * factor);
}

#define TERMS const F* shift, i64 f_b, i64 f_n, i64 f_i, i64 f_j, const M* mask, i64 m_b, i64 m_n, i64 m_i, i64 m_j, \
    const i64* step, u64 seed, int low, int high
// What is added to a score to the base 2, minus infinity where the query does not look at the key: of a key for all
// queries, and of a query beside it. KEYED: the shift (1) and the mask (2) that are the same for all queries.
#define OF_KEY(j) added<SHIFTED & KEYED, MASKED & KEYED>(shift + (j) * f_j, mask + (j) * m_j)
#define ANY_KEYED ((SHIFTED | MASKED) & KEYED)
#define OF_QUERY(i, j) \
    added<SHIFTED & ~KEYED, MASKED & ~KEYED>(shift + (i) * f_i + (j) * f_j, mask + (i) * m_i + (j) * m_j)
template <int SHIFTS, int MASKS> __device__ __forceinline__ float added(const F* shift, const M* mask) {
    float found = 0;
    if constexpr (SHIFTS != 0) found = (float)wide(*shift) * LOG2_E;
    if constexpr (MASKS != 0) found = *mask ? -INFINITE : found;
    return found;
}
"""
"""What the forward and the backward kernels share. D: DEPTH, the depth of a head, as a multiple of 16. E: elements, F:
those of the shift, M: those of the mask."""


def padded(depth: int) -> int:
    """The depth of a head as kernels go over it."""
    return -(-depth // _LEAST_STEP) * _LEAST_STEP


def takes(attention: Attention, arrays: Sequence[Array]) -> bool:
    """Whether the kernels here compute this attention; `arrays` are all by head that they read or write."""
    shape, scores = attention.shape, attention.scores
    kinds = {array.dtype.name for array in arrays}
    if len(kinds) != 1 or kinds.isdisjoint(HALVES) or scores.keep_mask is not None:
        return False
    if shape.depth != shape.value_depth or shape.depth % 8 or shape.depth > DEEPEST:
        return False
    if 0 in (shape.batch, shape.queries, shape.keys) or max(shape.queries, shape.keys) >= UNBOUNDED:
        return False
    strides = [stride for array in arrays for stride in array.strides[:3]]
    return not any(number % _ALIGNMENT for number in (*strides, *map(address, arrays)))


def has_terms(attention: Attention) -> bool:
    """Whether something is added to the scores, or a mask hides some."""
    return attention.scores.shift is not None or attention.scores.mask is not None


def settings(attention: Attention) -> str:
    """What kernels know of the attention when they are compiled."""
    scores, dtype = attention.scores, dtype_of(attention.operands[0].dtype)
    shift = "float" if scores.shift is None else c_type(dtype_of(scores.shift.dtype))
    mask = "bool" if scores.mask is None else c_type(dtype_of(scores.mask.dtype))
    names = {"E": c_type(dtype), "F": shift, "M": mask, "PTX": f'"{c_type(dtype)}"'}
    text = "".join(f"#define {name} {value}\n" for name, value in names.items())
    terms = ((1, scores.shift), (2, scores.mask))
    shifted, masked = (bit * (array is not None) for bit, array in terms)
    keyed = sum(bit for bit, array in terms if array is not None and array.shape[2] == 1)
    depth = attention.shape.depth
    sizes = macros(D=padded(depth), DEPTH=depth, SHIFTED=shifted, MASKED=masked, KEYED=keyed)
    return text + sizes + draws_source(scores.draws)


def terms_of(device: Device, attention: Attention) -> list[object]:
    """The kernels' argument `Terms`, member by member."""
    scores = attention.scores
    low, high = (
        limit if bound is None else max(-UNBOUNDED, min(UNBOUNDED, bound))
        for bound, limit in ((scores.low, -UNBOUNDED), (scores.high, UNBOUNDED))
    )
    return [*addends(attention), device.step, seed_of(scores.draws), np.int32(low), np.int32(high)]
