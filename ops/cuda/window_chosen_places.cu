#include "windows.cuh"

// The first place of every window that holds the greatest value, counted along the window.
extern "C" __global__ void __launch_bounds__(256) chosen_places(
        const T* __restrict__ x, const T* __restrict__ found, Tap* __restrict__ out) {
    const Index t = (Index)blockIdx.x * 256 + threadIdx.x;
    if (t >= THREADS) return;
    const Spot p = spot_of<OUT0, OUT1, OUT2>(t);
    const auto best = pack_at<T, V>(found + t * V);
    Pack<Tap, V> made;
    #pragma unroll
    for (int v = 0; v < V; ++v) made.at[v] = NONE;
    TAPS(0, a, i, p.i[0]) TAPS(1, b, j, p.i[1]) TAPS(2, c, k, p.i[2]) {
        const auto own = pack_at<T, V>(x + at_image(p, i, j, k));
        #pragma unroll
        for (int v = 0; v < V; ++v) {
            const A one = (A)wide(own.at[v]), most = (A)wide(best.at[v]);
            if (made.at[v] == NONE && (one == most || (one != one && most != most)))
                made.at[v] = (a * SIZE1 + b) * SIZE2 + c;
        }
    }
    put_pack<Tap, V>(out + t * V, made);
}
