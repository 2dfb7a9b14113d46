extern "C" __global__ void __launch_bounds__(256) @name@(const I* ids, const T* rows, const T* base, T* out) {
    const Index at = (Index)blockIdx.x * 256 + threadIdx.x;
    if (at >= (Index)OUTER * INNER) return;
    const Index o = at / INNER, i = at % INNER;
    for (Index n = 0; n < SIZE; ++n) {
        const Index to = (o * SIZE + n) * INNER + i;
        if (BASED) out[to] = base[to]; else out[to] = narrow<T>((A)NEUTRAL);
    }
    for (Index p = 0; p < COUNT; ++p) {
        long long id = (long long)ids[(o * COUNT + p) * INNER + i];
        if (id < 0) id += SIZE;
        if (id < 0 || id >= SIZE) continue;
        const Index to = (o * SIZE + (Index)id) * INNER + i;
        out[to] = narrow<T>(How::of((A)wide(out[to]), (A)wide(rows[(o * COUNT + p) * INNER + i])));
    }
}
