"""The CUDA C++ of depthwise convolutions whose windows do not fit into registers, beside `depthwise_kernels.py`.

A thread makes a tile of columns of one row. The rows of the window come through shared memory, one after the other. The
constants are those of the other kernels; ROWS is 1.
"""

WINDOW_ROWS = r"""
// A row of the weights of all channels of a block, in shared memory until the next one is asked for.
constexpr int ROW_PITCH = SIZEX | 1;
__device__ __forceinline__ void load_window_row(
        A (&held)[LANES * ROW_PITCH], const T* __restrict__ weight, int first, int row) {
    __syncthreads();
    for (int i = threadIdx.x; i < LANES * SIZEX; i += THREADS)
        if (first + i / SIZEX < CHANNELS)
            held[i / SIZEX * ROW_PITCH + i % SIZEX] =
                (A)wide(weight[((long long)(first + i / SIZEX) * SIZEY + row) * SIZEX + i % SIZEX]);
    __syncthreads();
}
"""

WIDE_FORWARD = r"""
// For windows that do not fit into registers: a row of the window after the other, PIECE places of it at a time.
// FLIPPED, the window counts from its end, as it does in the gradient of an image without stride.
constexpr int SPAN = (TILE - 1) * STRIDEX + (PIECE - 1) * DILATIONX + 1;
extern "C" __global__ void __launch_bounds__(THREADS) depthwise_wide(
        const T* __restrict__ image, const T* __restrict__ weight, T* __restrict__ result) {
    const int lane = threadIdx.x % LANES, first = blockIdx.x % CHANNEL_TILES * LANES, channel = first + lane;
    const int number = blockIdx.x / CHANNEL_TILES * GROUPS + threadIdx.x / LANES;
    const Item item = item_of(number, OUTY);
    const bool works = number < ITEMS && channel < CHANNELS;
    __shared__ A held[LANES * ROW_PITCH];
    A total[TILE];
    #pragma unroll
    for (int u = 0; u < TILE; ++u) total[u] = 0;
    for (int a = 0; a < SIZEY; ++a) {
        load_window_row(held, weight, first, FLIPPED ? SIZEY - 1 - a : a);
        const int row = item.begin * STRIDEY - BEFOREY + a * DILATIONY;
        if (!works || row < 0 || row >= INY) continue;
        #pragma unroll 1
        for (int begin = 0; begin < SIZEX; begin += PIECE) {
            Row<SPAN> x;
            load<INY, INX, READ>(x, image + channel / MULTIPLIER, item.image, row,
                                 item.column * STRIDEX - BEFOREX + begin * DILATIONX);
            #pragma unroll
            for (int b = 0; b < PIECE; ++b) {
                if (begin + b >= SIZEX) break;
                const A factor = held[lane * ROW_PITCH + (FLIPPED ? SIZEX - 1 - begin - b : begin + b)];
                #pragma unroll
                for (int u = 0; u < TILE; ++u) total[u] += (A)wide(x.at[u * STRIDEX + b * DILATIONX]) * factor;
            }
        }
    }
    if (works) store<OUTY, OUTX>(result + channel, total, item.image, item.begin, item.column);
}
"""

WIDE_IMAGE_GRADIENT = r"""
// The same for the gradient of an image that is looked at with strides.
extern "C" __global__ void __launch_bounds__(THREADS) depthwise_wide_image_gradient(
        const T* __restrict__ given, const T* __restrict__ weight, T* __restrict__ image) {
    const int lane = threadIdx.x % LANES, first = blockIdx.x % CHANNEL_TILES * LANES, channel = first + lane;
    const int number = blockIdx.x / CHANNEL_TILES * GROUPS + threadIdx.x / LANES;
    const Item item = item_of(number, INY + BEFOREY);
    const bool works = number < ITEMS && channel < CHANNELS;
    __shared__ A held[LANES * ROW_PITCH];
    A total[TILE];
    #pragma unroll
    for (int u = 0; u < TILE; ++u) total[u] = 0;
    for (int a = 0; a < SIZEY; ++a) {
        load_window_row(held, weight, first, a);
        const int down = item.begin - a * DILATIONY;
        if (!works || down < 0 || down % STRIDEY || down / STRIDEY >= OUTY) continue;
        const T* row = given + ((long long)item.image * OUTY + down / STRIDEY) * OUTX * CHANNELS + channel;
        #pragma unroll 1
        for (int b = 0; b < SIZEX; ++b)
            #pragma unroll
            for (int u = 0; u < TILE; ++u) {
                const int across = item.column + u - b * DILATIONX;
                if (across >= 0 && across % STRIDEX == 0 && across / STRIDEX < OUTX)
                    total[u] += (A)wide(row[across / STRIDEX * (long long)CHANNELS]) * held[lane * ROW_PITCH + b];
            }
    }
    if (works) store<INY, INX>(image + channel, total, item.image, item.begin - BEFOREY, item.column - BEFOREX);
}
"""
