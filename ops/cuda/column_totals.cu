// A block has `wide` columns of one total; of each a thread takes every slices-th of the partial totals.
extern "C" __global__ void __launch_bounds__(1024) column_totals(TARGETS, int parts, int columns, int wide) {
    __shared__ KIND sums[1024];
    const KIND* partial;
    RESULT* to;
    long long count;
    CHOICE
    const int slices = blockDim.x / wide, slice = threadIdx.x / wide;
    const int column = blockIdx.x * wide + threadIdx.x % wide;
    KIND total = NEUTRAL;
    #pragma unroll 8
    for (int part = slice; part < parts; part += slices)
        if (column < columns) total = HOW::of(total, partial[(size_t)part * columns + column]);
    sums[threadIdx.x] = total;
    for (int half = slices / 2; half; half /= 2) {
        __syncthreads();
        if (slice < half) sums[threadIdx.x] = HOW::of(sums[threadIdx.x], sums[threadIdx.x + half * wide]);
    }
    if (slice || column >= columns) return;
    total = sums[threadIdx.x];
    to[column] = narrow<RESULT>(count > 1 ? total / (KIND)count : total);
}
