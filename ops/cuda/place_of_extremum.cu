__device__ __forceinline__ bool is_nan(A v) { return v != v; }
__device__ __forceinline__ bool wins(A v, long long at, A best, long long place) {  // like NumPy's: a NaN wins
    if (at < 0 || place < 0) return at >= 0;
    if (is_nan(v) != is_nan(best)) return is_nan(v);
    if (v == best || is_nan(v)) return at < place;
    return LARGEST ? v > best : v < best;
}
extern "C" __global__ void place_of_extremum(const T* x, R* out) {
    __shared__ A values[32];
    __shared__ long long places[32];
    const long long row = blockIdx.x;
    const T* from = x + row / INNER * COLUMNS * INNER + row % INNER;
    A best = 0;
    long long place = -1;
    for (long long at = threadIdx.x; at < COLUMNS; at += blockDim.x) {
        const A v = (A)wide(from[at * INNER]);
        if (wins(v, at, best, place)) { best = v; place = at; }
    }
    for (int offset = 16; offset; offset >>= 1) {
        const A v = __shfl_xor_sync(0xffffffffu, best, offset);
        const long long at = __shfl_xor_sync(0xffffffffu, place, offset);
        if (wins(v, at, best, place)) { best = v; place = at; }
    }
    if (threadIdx.x % 32 == 0) { values[threadIdx.x / 32] = best; places[threadIdx.x / 32] = place; }
    __syncthreads();
    if (threadIdx.x) return;
    for (int warp = 1; warp < blockDim.x / 32; ++warp) {
        if (wins(values[warp], places[warp], best, place)) { best = values[warp]; place = places[warp]; }
    }
    out[row] = (R)place;
}
