r"""Products of fragments on tensor cores, in which the kernels of fused attention differ by the type of their elements.

Tensor cores multiply fragments; lane 4g + t of a warp holds a part of each (PTX ISA). C is 16 x 8: the lane holds
C[g, 2t], C[g, 2t + 1], C[g + 8, 2t], C[g + 8, 2t + 1]. Registers of A hold 4 bytes each of row g, row g + 8, and of
both again 16 bytes further on; those of B 4 bytes of column g, and again 16 bytes further on:

* halves, mma.m16n8k16: two elements in a register, so that two neighbouring C are the A of the next product;
* Float32, mma.m16n8k8 of TF32: one element. A sum does not mind in which order its terms come: of the next product
  places t and t + 4 stand for columns 2t and 2t + 1 of C, so that a C is an A.

Either way 32 bytes of a row are a step of a product over the depth, and ldmatrix loads what a lane needs of them.
"""

from __future__ import annotations

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
"""Products of TF32, and what goes before them: `cvt.rna.tf32.f32` takes two instructions of half rate (a comparison and
an addition to the bits) for every element that a warp loads, and the product leaves out the same bits after it.
v (1 + 187 / 2^19) without them is off by 0.31 units of the last bit (root of the mean square; the nearest 0.29, v
without them 0.58) and by 0.73 at most (0.5; 1), is v where v has no more bits than are kept, and is neither larger nor
smaller in the mean (by less than 1e-5 of v; v without them is smaller by 3.5e-4 of v).
"""
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
"""Products of Float32 by three of TF32."""

_DECLARED = r"""
// sum += A B for all D columns: A is 16 columns of accumulators from `j` on, B the rows from `rows` on that they stand
// for.
template <int BANDS_, int TILES_> __device__ __forceinline__ void accumulate(
    float (&sum)[BANDS_][OUTPUTS][4], const float (&weights)[BANDS_][TILES_][4], int j, const E* rows, int lane) {
"""
HALVES = (
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
FLOAT32 = (
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
"""What the kernels call, by the type of their elements."""
