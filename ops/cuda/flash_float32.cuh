#include "flash_tf32_instructions.cuh"

#if TF32
// Matmuls of TF32, and the rounding before them: `cvt.rna.tf32.f32` takes two instructions of half rate (a comparison
// and an addition to the bits) for every element that a warp loads, and the matmul leaves out the same bits after it. v
// (1 + 187 / 2^19) without them is off by 0.31 units of the last bit (root of the mean square; the nearest 0.29, v
// without them 0.58) and by 0.73 at most (0.5; 1), is v if v has no more bits than TF32, and is neither larger nor
// smaller in the mean (by less than 1e-5 of v; v without them is smaller by 3.5e-4 of v).
__device__ __forceinline__ void multiply(float (&c)[4], const Part& a, u32 b0, u32 b1) {
    multiply_rounded(c, a, b0, b1);
}
// Half a unit of what tensor cores keep, in the mean, makes the error even.
__device__ __forceinline__ u32 operand(float v) { return __float_as_uint(v * 1.000356674194336f); }
#else
// Products of Float32 by three of TF32.
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
#endif

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
__device__ __forceinline__ Pack<float, 2> two(const E* at) { return *(const Pack<float, 2>*)at; }
// sum += A B for all D columns: A is 16 columns of accumulators from `j` on, B the rows from `rows` on that they stand
// for.
template <int BANDS_, int TILES_> __device__ __forceinline__ void accumulate(
    float (&sum)[BANDS_][OUTPUTS][4], const float (&weights)[BANDS_][TILES_][4], int j, const E* rows, int lane) {

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
