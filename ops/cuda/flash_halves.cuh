#include "flash_half_instructions.cuh"

template <int COUNT> __device__ __forceinline__ void settle(E*) {}
__device__ __forceinline__ Part ready(const Part& part) { return part; }
// The two A of 16 columns that neighbouring accumulators are.
__device__ __forceinline__ Part as_a(const float (&x)[4], const float (&y)[4]) {
    return {pair(x[0], x[1]), pair(x[2], x[3]), pair(y[0], y[1]), pair(y[2], y[3])};
}
// sum += A B for all D columns: A is 16 columns of accumulators from `j` on, B the rows from `rows` on that they stand
// for.
template <int BANDS_, int TILES_> __device__ __forceinline__ void accumulate(
    float (&sum)[BANDS_][OUTPUTS][4], const float (&weights)[BANDS_][TILES_][4], int j, const E* rows, int lane) {

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
