#include "depthwise_window.cuh"

// Positions whose windows hold a row of the image are LATE rows at most; a step reads the STRIDEY rows from one
// position to the next, and completes a row of positions.
constexpr int LATE = (SIZEY - 1) * DILATIONY / STRIDEY + 1;
constexpr int SPAN = (TILE - 1) * STRIDEX + (SIZEX - 1) * DILATIONX + 1;
constexpr int STEP = STRIDEY < (SIZEY - 1) * DILATIONY + 1 ? STRIDEY : (SIZEY - 1) * DILATIONY + 1;
constexpr int ABOVE = BEFOREY < STEP ? 0 : (BEFOREY - STEP) / STRIDEY + 1;  // steps that read nothing
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise(
        const T* __restrict__ image, const T* __restrict__ weight, T* __restrict__ result) {
    const int lane = threadIdx.x % LANES, first = blockIdx.x % CHANNEL_TILES * LANES, channel = first + lane;
    __shared__ A held[LANES * PITCH];
    const int number = blockIdx.x / CHANNEL_TILES * GROUPS + threadIdx.x / LANES;
    const bool works = number < ITEMS && channel < CHANNELS;
    const Item item = item_of(number, OUTY);
    const int left = item.column * STRIDEX - BEFOREX, last = item.end + LATE - 1;
    const int start = item.begin > ABOVE ? item.begin : last < ABOVE ? last : ABOVE;
    image += channel / MULTIPLIER;
    result += channel;
    Row<SPAN> x[STEP];
    #pragma unroll
    for (int t = 0; t < STEP; ++t)
        load<INY, INX, READ>(x[t], image, item.image, works ? start * STRIDEY - BEFOREY + t : -1, left);
    Window window;
    load_window(window, held, weight, first, lane);
    if (!works) return;
    A total[LATE][TILE];
    #pragma unroll
    for (int r = 0; r < LATE; ++r)
        #pragma unroll
        for (int u = 0; u < TILE; ++u) total[r][u] = 0;
    const auto complete = [&](int q) {
        const int row = q - (LATE - 1);
        if (row >= item.begin) store<OUTY, OUTX>(result, total[0], item.image, row, item.column);
        #pragma unroll
        for (int r = 0; r < LATE; ++r)
            #pragma unroll
            for (int u = 0; u < TILE; ++u) total[r][u] = r + 1 < LATE ? total[r + 1][u] : 0;
    };
    int q = item.begin;
    #pragma unroll 1
    for (; q < start; ++q) complete(q);
    #pragma unroll 1
    for (; q < last && q * STRIDEY - BEFOREY < INY; ++q) {
        #pragma unroll
        for (int t = 0; t < STEP; ++t) {
            const int next = (q + 1) * STRIDEY - BEFOREY + t;
            const T* place = place_of<INY, INX, READ>(image, item.image, next, left);
            #pragma unroll
            for (int v = 0; v < SPAN; ++v) {
                const A own = (A)wide(x[t].at[v]);
                #pragma unroll
                for (int a = SIZEY - 1; a >= 0; --a)
                    #pragma unroll
                    for (int b = 0; b < SIZEX; ++b) {
                        const int u = (v - b * DILATIONX) / STRIDEX;
                        if (a * DILATIONY % STRIDEY == t && v == u * STRIDEX + b * DILATIONX && u >= 0 && u < TILE)
                            total[LATE - 1 - a * DILATIONY / STRIDEY][u] += own * window.at[a][b];
                    }
                replace<(STRIDEY > 1), INX, READ>(x[t], place, next < INY, left, v);
            }
        }
        complete(q);
    }
    #pragma unroll 1
    for (; q < last; ++q) complete(q);  // below it
}
