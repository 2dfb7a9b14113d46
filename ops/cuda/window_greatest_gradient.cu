#include "windows.cuh"

// Every place gets the gradients of the positions that chose it.
extern "C" __global__ void __launch_bounds__(256) greatest_gradient(
        const Tap* __restrict__ chosen, const T* __restrict__ dout, T* __restrict__ out) {
    const Index t = (Index)blockIdx.x * 256 + threadIdx.x;
    if (t >= THREADS) return;
    const Spot p = spot_of<IN0, IN1, IN2>(t);
    A total[V] = {};
    POSITIONS(0, q0, t0) POSITIONS(1, q1, t1) POSITIONS(2, q2, t2) {
        const Index at = at_result(p, q0, q1, q2);
        const auto tap = pack_at<Tap, V>(chosen + at);
        const auto given = pack_at<T, V>(dout + at);
        const int own = (t0 * SIZE1 + t1) * SIZE2 + t2;
        #pragma unroll
        for (int v = 0; v < V; ++v) if (tap.at[v] == own) total[v] += (A)wide(given.at[v]);
    }
    put_sums(out + t * V, total);
}
