// What the moving statistics of a channel become.
__device__ __forceinline__ void moved(M* moving_mean, M* moving_variance, int channel, A mean, A unbiased) {
    moving_mean[channel] = narrow<M>((A)wide(moving_mean[channel]) * (1 - MOMENTUM) + mean * MOMENTUM);
    moving_variance[channel] = narrow<M>((A)wide(moving_variance[channel]) * (1 - MOMENTUM) + unbiased * MOMENTUM);
}
