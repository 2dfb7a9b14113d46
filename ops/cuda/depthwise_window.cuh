#include "depthwise.cuh"

// The weights of a channel, which the block brings through shared memory.
constexpr int PITCH = TAPS | 1;
struct Window { A at[SIZEY][SIZEX]; };
__device__ __forceinline__ void load_window(
        Window& to, A (&held)[LANES * PITCH], const T* __restrict__ weight, int first, int lane) {
    #pragma unroll 16
    for (int n = 0; n < (LANES * TAPS + THREADS - 1) / THREADS; ++n) {
        const int i = n * THREADS + threadIdx.x;
        const long long place = (long long)first * TAPS + i;
        if (i < LANES * TAPS && place < (long long)CHANNELS * TAPS)
            held[i + i / TAPS * (PITCH - TAPS)] = (A)wide(weight[place]);
    }
    __syncthreads();
    #pragma unroll
    for (int a = 0; a < SIZEY; ++a)
        #pragma unroll
        for (int b = 0; b < SIZEX; ++b) to.at[a][b] = held[lane * PITCH + a * SIZEX + b];
}
