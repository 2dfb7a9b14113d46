#include "combined_statistics.cuh"

// Channels come second: a block adds up packs of one channel.
extern "C" __global__ void __launch_bounds__(Y) statistics(const T* __restrict__ x, Own* __restrict__ partial) {
    const int part = blockIdx.x / TILES, channel = blockIdx.x % TILES;
    const int begin = part * SHARE, end = begin + SHARE < LENGTH ? begin + SHARE : LENGTH;
    constexpr int PACKS = INNER / V;
    A first = 0, sum = 0, squares = 0;
    for (int r = begin + threadIdx.x; r < end; r += Y) {
        const Index image = r / PACKS, pack = r % PACKS;
        const auto own = pack_at<T, V>(x + (image * CHANNELS + channel) * INNER + pack * V);
        if (r == begin + threadIdx.x) first = (A)wide(own.at[0]);
        #pragma unroll
        for (int j = 0; j < V; ++j) {
            const A apart = (A)wide(own.at[j]) - first;
            sum += apart;
            squares += apart * apart;
        }
    }
    A n = begin + (int)threadIdx.x < end ? (end - begin - (int)threadIdx.x + Y - 1) / Y * V : 0;
    __shared__ Own all[Y];
    __shared__ A counts[Y];
    all[threadIdx.x] = finished(first, sum, squares, n);
    counts[threadIdx.x] = n;
    for (int half = Y / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            const int other = threadIdx.x + half;
            all[threadIdx.x] = combined(all[threadIdx.x], counts[threadIdx.x], all[other], counts[other]);
            counts[threadIdx.x] += counts[other];
        }
    }
    if (!threadIdx.x) partial[(Index)part * CHANNELS + channel] = all[0];
}
