#include "windows.cuh"

extern "C" __global__ void __launch_bounds__(256) greatest(const T* __restrict__ x, T* __restrict__ out) {
    const Index t = (Index)blockIdx.x * 256 + threadIdx.x;
    if (t >= THREADS) return;
    const Spot p = spot_of<OUT0, OUT1, OUT2>(t);
    A best[V];
    #pragma unroll
    for (int v = 0; v < V; ++v) best[v] = LOWEST;
    TAPS(0, a, i, p.i[0]) TAPS(1, b, j, p.i[1]) TAPS(2, c, k, p.i[2]) {
        const auto own = pack_at<T, V>(x + at_image(p, i, j, k));
        #pragma unroll
        for (int v = 0; v < V; ++v) best[v] = Largest::of(best[v], (A)wide(own.at[v]));
    }
    Pack<T, V> made;
    #pragma unroll
    for (int v = 0; v < V; ++v) made.at[v] = narrow<T>(best[v]);
    put_pack<T, V>(out + t * V, made);
}
