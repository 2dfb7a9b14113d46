extern "C" __global__ void __launch_bounds__(THREADS) running_sum(const T* x, T* out) {
    __shared__ A sums[THREADS / 32];
    const Index line = blockIdx.x, begin = line / INNER * COUNT * INNER + line % INNER;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    A before = 0;
    for (Index start = 0; start < COUNT; start += THREADS) {
        const Index n = start + threadIdx.x, at = begin + (REVERSE ? COUNT - 1 - n : n) * INNER;
        const A own = n < COUNT ? (A)wide(x[at]) : (A)0;
        A total = own;
        for (int step = 1; step < 32; step <<= 1) {
            const A other = __shfl_sync(0xffffffffu, total, lane - step < 0 ? lane : lane - step);
            if (lane >= step) total += other;
        }
        __syncthreads();
        if (lane == 31) sums[warp] = total;
        __syncthreads();
        A all = 0, ahead = 0;
        for (int w = 0; w < THREADS / 32; ++w) {
            if (w == warp) ahead = all;
            all += sums[w];
        }
        total += before + ahead;
        if (n < COUNT) out[at] = narrow<T>(EXCLUSIVE ? (A)(total - own) : total);
        before += all;
    }
}
