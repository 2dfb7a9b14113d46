#include "moved_statistics.cuh"

extern "C" __global__ void __launch_bounds__(256) joined_statistics(
        const R* __restrict__ gathered, M* moving_mean, M* moving_variance, R* __restrict__ mean,
        R* __restrict__ variance, const int* stop) {
    const int channel = blockIdx.x * 256 + threadIdx.x;
    if (channel >= CHANNELS) return;
    A own[PARTS], total = 0, spread = 0;
    #pragma unroll
    for (int p = 0; p < PARTS; ++p) total += own[p] = (A)wide(gathered[2 * p * CHANNELS + channel]);
    total /= PARTS;
    #pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const A apart = own[p] - total;
        spread += (A)wide(gathered[(2 * p + 1) * CHANNELS + channel]) + apart * apart;
    }
    spread /= PARTS;
    mean[channel] = narrow<R>(total);
    variance[channel] = narrow<R>(spread);
    if (!*stop) moved(moving_mean, moving_variance, channel, total, COUNT > 1 ? spread * COUNT / (COUNT - 1) : spread);
}
