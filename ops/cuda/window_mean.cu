#include "windows.cuh"

extern "C" __global__ void __launch_bounds__(256) mean(
        const T* __restrict__ x, const T* __restrict__ shares, T* __restrict__ out) {
    const Index t = (Index)blockIdx.x * 256 + threadIdx.x;
    if (t >= THREADS) return;
    const Spot p = spot_of<OUT0, OUT1, OUT2>(t);
    A total[V] = {};
    TAPS(0, a, i, p.i[0]) TAPS(1, b, j, p.i[1]) TAPS(2, c, k, p.i[2]) {
        const auto own = pack_at<T, V>(x + at_image(p, i, j, k));
        #pragma unroll
        for (int v = 0; v < V; ++v) total[v] += (A)wide(own.at[v]);
    }
    const A share = (A)wide(shares[SINGLE ? 0 : (p.i[0] * OUT1 + p.i[1]) * OUT2 + p.i[2]]);
    #pragma unroll
    for (int v = 0; v < V; ++v) total[v] /= share;
    put_sums(out + t * V, total);
}
