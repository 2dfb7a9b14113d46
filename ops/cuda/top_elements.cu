// Whether element a at place i comes before b at place j: what is no number counts as the largest, equal ones in order.
__device__ __forceinline__ bool before(A a, int i, A b, int j) {
    const bool odd = a != a, other = b != b;
    if (odd || other) return odd && other ? i < j : SMALLEST ? other : odd;
    return (SMALLEST ? a < b : a > b) || (a == b && i < j);
}
extern "C" __global__ void __launch_bounds__(THREADS) top_elements(const T* x, T* values, Place* places) {
    __shared__ A best_of[THREADS / 32];
    __shared__ int place_of[THREADS / 32];
    const u64 row = blockIdx.x;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    A last = 0;
    int last_place = -1;
    for (int n = 0; n < K; ++n) {
        A best = 0;
        int place = COUNT;
        for (int i = threadIdx.x; i < COUNT; i += THREADS) {
            const A value = (A)wide(x[row * COUNT + i]);
            if (last_place >= 0 && !before(last, last_place, value, i)) continue;
            if (place == COUNT || before(value, i, best, place)) { best = value; place = i; }
        }
        for (int offset = 16; offset; offset >>= 1) {
            const A other = __shfl_xor_sync(0xffffffffu, best, offset);
            const int its = __shfl_xor_sync(0xffffffffu, place, offset);
            if (its < COUNT && (place == COUNT || before(other, its, best, place))) { best = other; place = its; }
        }
        if (THREADS > 32) {
            __syncthreads();
            if (lane == 0) { best_of[warp] = best; place_of[warp] = place; }
            __syncthreads();
            for (int w = 0; w < THREADS / 32; ++w)
                if (place_of[w] < COUNT && (place == COUNT || before(best_of[w], place_of[w], best, place))) {
                    best = best_of[w]; place = place_of[w];
                }
        }
        if (threadIdx.x == 0) { values[row * K + n] = x[row * COUNT + place]; places[row * K + n] = place; }
        last = best;
        last_place = place;
    }
}
