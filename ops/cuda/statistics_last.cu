#include "combined_statistics.cuh"

// Channels come last: X threads side by side with V channels each, Y below each other.
extern "C" __global__ void __launch_bounds__(X * Y) statistics(const T* __restrict__ x, Own* __restrict__ partial) {
    const int lane = threadIdx.x % X, deep = threadIdx.x / X;
    const int part = blockIdx.x / TILES, tile = blockIdx.x % TILES;
    const int channel = (tile * X + lane) * V;
    const int begin = part * SHARE, end = begin + SHARE < LENGTH ? begin + SHARE : LENGTH;
    A first[V], sum[V], squares[V];
    #pragma unroll
    for (int j = 0; j < V; ++j) first[j] = sum[j] = squares[j] = 0;
    const bool within = channel < CHANNELS;
    if (within && begin + deep < end) {
        const auto pack = pack_at<T, V>(x + (Index)(begin + deep) * CHANNELS + channel);
        #pragma unroll
        for (int j = 0; j < V; ++j) first[j] = (A)wide(pack.at[j]);
        #pragma unroll 8
        for (int r = begin + deep; r < end; r += Y) {
            const auto own = pack_at<T, V>(x + (Index)r * CHANNELS + channel);
            #pragma unroll
            for (int j = 0; j < V; ++j) {
                const A apart = (A)wide(own.at[j]) - first[j];
                sum[j] += apart;
                squares[j] += apart * apart;
            }
        }
    }
    __shared__ Own all[Y][X * V];
    const A n = begin + deep < end ? (end - begin - deep + Y - 1) / Y : 0;
    #pragma unroll
    for (int j = 0; j < V; ++j) all[deep][j * X + lane] = finished(first[j], sum[j], squares[j], n);
    __syncthreads();
    for (int t = threadIdx.x; t < X * V; t += X * Y) {
        const int place = (tile * X + t % X) * V + t / X;
        if (place >= CHANNELS) continue;
        Own total = all[0][t];
        A m = (end - begin + Y - 1) / Y;
        for (int d = 1; d < Y; ++d) {
            const A more = begin + d < end ? (end - begin - d + Y - 1) / Y : 0;
            total = combined(total, m, all[d][t], more);
            m += more;
        }
        partial[(Index)part * CHANNELS + place] = total;
    }
}
