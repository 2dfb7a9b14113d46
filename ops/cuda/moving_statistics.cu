#include "moved_statistics.cuh"

extern "C" __global__ void __launch_bounds__(256) moving_statistics(
        const R* __restrict__ mean, M* moving_mean, M* moving_variance, const R* __restrict__ variance,
        R* __restrict__ out, const int* stop) {
    const int channel = blockIdx.x * 256 + threadIdx.x;
    if (channel >= CHANNELS) return;
    const A own = (A)wide(mean[channel]), spread = (A)wide(variance[channel]);
    out[channel] = mean[channel];
    if (!*stop) moved(moving_mean, moving_variance, channel, own, COUNT > 1 ? spread * COUNT / (COUNT - 1) : spread);
}
