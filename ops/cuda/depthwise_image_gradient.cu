#include "depthwise_window.cuh"

// Rows and columns are counted from the first place that a window may look at: FIRST is a multiple of the stride, and
// TILE and ROWS are. A step reads a row of the result's gradient and completes STRIDEY rows.
constexpr int DEEP = (SIZEY - 1) * DILATIONY + 1 > STRIDEY ? (SIZEY - 1) * DILATIONY + 1 : STRIDEY;
constexpr int ABOVE = (SIZEY - 1) * DILATIONY / STRIDEY, LEFT = (SIZEX - 1) * DILATIONX / STRIDEX;
constexpr int SPAN = (TILE - 1) / STRIDEX + LEFT + 1;
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise_image_gradient(
        const T* __restrict__ given, const T* __restrict__ weight, T* __restrict__ image) {
    const int lane = threadIdx.x % LANES, first = blockIdx.x % CHANNEL_TILES * LANES, channel = first + lane;
    __shared__ A held[LANES * PITCH];
    const int number = blockIdx.x / CHANNEL_TILES * GROUPS + threadIdx.x / LANES;
    const bool works = number < ITEMS && channel < CHANNELS;
    const Item item = item_of(number, INY + BEFOREY);
    const int left = item.column / STRIDEX - LEFT, top = item.begin / STRIDEY - ABOVE;
    given += channel;
    image += channel;
    Row<SPAN> x;
    load<OUTY, OUTX, CHANNELS>(x, given, item.image, !works ? -1 : top < 0 ? 0 : top, left);
    Window window;
    load_window(window, held, weight, first, lane);
    if (!works) return;
    A total[DEEP][TILE];
    #pragma unroll
    for (int r = 0; r < DEEP; ++r)
        #pragma unroll
        for (int u = 0; u < TILE; ++u) total[r][u] = 0;
    const auto complete = [&](int q) {
        #pragma unroll
        for (int t = 0; t < STRIDEY; ++t) {
            const int row = q * STRIDEY + t;
            if (row >= item.begin && row < item.end && row >= BEFOREY)
                store<INY, INX>(image, total[t], item.image, row - BEFOREY, item.column - BEFOREX);
        }
        #pragma unroll
        for (int r = 0; r < DEEP; ++r)
            #pragma unroll
            for (int u = 0; u < TILE; ++u) total[r][u] = r + STRIDEY < DEEP ? total[r + STRIDEY][u] : 0;
    };
    int q = top;
    #pragma unroll 1
    for (; q < 0 && q * STRIDEY < item.end; ++q) complete(q);  // above the result
    #pragma unroll 1
    for (; q < OUTY && q * STRIDEY < item.end; ++q) {
        const T* place = place_of<OUTY, OUTX, CHANNELS>(given, item.image, q + 1, left);
        #pragma unroll
        for (int v = SPAN - 1; v >= 0; --v) {
            const A own = (A)wide(x.at[v]);
            #pragma unroll
            for (int a = 0; a < SIZEY; ++a)
                #pragma unroll
                for (int b = 0; b < SIZEX; ++b) {
                    const int u = (v - LEFT) * STRIDEX + b * DILATIONX;
                    if (u >= 0 && u < TILE) total[a * DILATIONY][u] += own * window.at[a][b];
                }
            replace<false, OUTX, CHANNELS>(x, place, q + 1 < OUTY, left, v);
        }
        complete(q);
    }
    #pragma unroll 1
    for (; q * STRIDEY < item.end; ++q) complete(q);  // below it
}
