#include "combined_statistics.cuh"
#ifdef MOMENTUM
#include "moved_statistics.cuh"
#endif

extern "C" __global__ void __launch_bounds__(ACROSS * DEEP) statistics_totals(
        const Own* __restrict__ partial, R* __restrict__ mean, R* __restrict__ variance
#ifdef MOMENTUM
        , M* moving_mean, M* moving_variance, const int* stop
#endif
) {
    const int lane = threadIdx.x % ACROSS, deep = threadIdx.x / ACROSS;
    const int channel = blockIdx.x * ACROSS + lane;
    Own total = {0, 0};
    A m = 0;
    if (channel < CHANNELS) {
        for (int p = deep; p < PARTS; p += DEEP) {
            const A more = (A)((p + 1) * SHARE < LENGTH ? SHARE : LENGTH - p * SHARE) * EACH;
            total = combined(total, m, partial[(Index)p * CHANNELS + channel], more);
            m += more;
        }
    }
    __shared__ Own all[DEEP][ACROSS];
    __shared__ A counts[DEEP][ACROSS];
    all[deep][lane] = total;
    counts[deep][lane] = m;
    for (int half = DEEP / 2; half; half /= 2) {
        __syncthreads();
        if (deep < half) {
            all[deep][lane] = combined(all[deep][lane], counts[deep][lane], all[deep + half][lane],
                                       counts[deep + half][lane]);
            counts[deep][lane] += counts[deep + half][lane];
        }
    }
    if (deep || channel >= CHANNELS) return;
    const A own = all[0][lane].mean, spread = all[0][lane].squares / COUNT;
    mean[channel] = narrow<R>(own);
    variance[channel] = narrow<R>(spread);
#ifdef MOMENTUM
    if (*stop) return;
    const A unbiased = COUNT > 1 ? all[0][lane].squares / (COUNT - 1) : spread;
    moved(moving_mean, moving_variance, channel, own, unbiased);
#endif
}
