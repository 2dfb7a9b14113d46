extern "C" __global__ void __launch_bounds__(THREADS) running_sum(const T* x, T* out) {
    const Index line = (Index)blockIdx.x * THREADS + threadIdx.x;
    if (line >= LINES) return;
    const Index begin = line / INNER * COUNT * INNER + line % INNER;
    A total = 0;
    for (Index n = 0; n < COUNT; ++n) {
        const Index at = begin + (REVERSE ? COUNT - 1 - n : n) * INNER;
        const A own = (A)wide(x[at]);
        total += own;
        out[at] = narrow<T>(EXCLUSIVE ? (A)(total - own) : total);
    }
}
