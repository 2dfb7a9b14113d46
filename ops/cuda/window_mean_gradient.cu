#include "windows.cuh"

extern "C" __global__ void __launch_bounds__(256) mean_gradient(
        const T* __restrict__ dout, const T* __restrict__ shares, T* __restrict__ out) {
    const Index t = (Index)blockIdx.x * 256 + threadIdx.x;
    if (t >= THREADS) return;
    const Spot p = spot_of<IN0, IN1, IN2>(t);
    A total[V] = {};
    POSITIONS(0, q0, t0) POSITIONS(1, q1, t1) POSITIONS(2, q2, t2) {
        const A share = (A)wide(shares[SINGLE ? 0 : (q0 * OUT1 + q1) * OUT2 + q2]);
        const auto given = pack_at<T, V>(dout + at_result(p, q0, q1, q2));
        #pragma unroll
        for (int v = 0; v < V; ++v) total[v] += (A)wide(given.at[v]) / share;
    }
    put_sums(out + t * V, total);
}
