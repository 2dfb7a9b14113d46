#include "depthwise.cuh"

// A block sums up PARTY by PARTX places of the window over items of every TURN-th number, one after the other; then
// over its groups. Another kernel adds up what blocks have found.
constexpr int PARTSX = (SIZEX + PARTX - 1) / PARTX, PARTS = PARTSX * ((SIZEY + PARTY - 1) / PARTY);
constexpr int LATE = (PARTY - 1) * DILATIONY / STRIDEY + 1;
constexpr int SPAN = (TILE - 1) * STRIDEX + (PARTX - 1) * DILATIONX + 1;
constexpr int STEP = STRIDEY < (PARTY - 1) * DILATIONY + 1 ? STRIDEY : (PARTY - 1) * DILATIONY + 1;
constexpr int ROOM = 32768 / (THREADS * (int)sizeof(A)), CHUNK = ROOM < PARTY * PARTX ? ROOM : PARTY * PARTX;
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise_weight_gradient(
        const T* __restrict__ given, const T* __restrict__ image, A* __restrict__ partial) {
    __shared__ A found[CHUNK * THREADS];
    const int lane = threadIdx.x % LANES, channel = blockIdx.x % CHANNEL_TILES * LANES + lane;
    const int part = blockIdx.x / CHANNEL_TILES % PARTS, share = blockIdx.x / CHANNEL_TILES / PARTS;
    const int above = part / PARTSX * PARTY, before = part % PARTSX * PARTX;
    A sum[PARTY * PARTX];
    #pragma unroll
    for (int i = 0; i < PARTY * PARTX; ++i) sum[i] = 0;
    given += channel;
    image += channel / MULTIPLIER;
    #pragma unroll 1
    for (int number = share * GROUPS + threadIdx.x / LANES; number < ITEMS && channel < CHANNELS; number += TURN) {
        const Item item = item_of(number, OUTY);
        const int left = item.column * STRIDEX - BEFOREX + before * DILATIONX;
        const int top = above * DILATIONY - BEFOREY;
        A dout[LATE][TILE];
        #pragma unroll
        for (int r = 0; r < LATE; ++r)
            #pragma unroll
            for (int u = 0; u < TILE; ++u) dout[r][u] = 0;
        Row<TILE> next;
        load<OUTY, OUTX, CHANNELS>(next, given, item.image, item.begin, item.column);
        const auto advance = [&](int q) {
            #pragma unroll
            for (int r = 0; r < LATE; ++r)
                #pragma unroll
                for (int u = 0; u < TILE; ++u) dout[r][u] = r + 1 < LATE ? dout[r + 1][u] : (A)wide(next.at[u]);
            const T* place = place_of<OUTY, OUTX, CHANNELS>(given, item.image, q + 1, item.column);
            #pragma unroll
            for (int u = 0; u < TILE; ++u) replace<true, OUTX, CHANNELS>(next, place, q + 1 < item.end, item.column, u);
        };
        const int last = item.end + LATE - 1;
        int q = item.begin;
        #pragma unroll 1
        for (; q < last && q * STRIDEY + top + STEP <= 0; ++q) advance(q);  // above the image
        Row<SPAN> x[STEP];
        #pragma unroll
        for (int t = 0; t < STEP; ++t) load<INY, INX, READ>(x[t], image, item.image, q * STRIDEY + top + t, left);
        #pragma unroll 1
        for (; q < last && q * STRIDEY + top < INY; ++q) {
            advance(q);
            #pragma unroll
            for (int t = 0; t < STEP; ++t) {
                const int row = (q + 1) * STRIDEY + top + t;
                const T* place = place_of<INY, INX, READ>(image, item.image, row, left);
                #pragma unroll
                for (int v = 0; v < SPAN; ++v) {
                    const A own = (A)wide(x[t].at[v]);
                    #pragma unroll
                    for (int a = 0; a < PARTY; ++a)
                        #pragma unroll
                        for (int b = 0; b < PARTX; ++b) {
                            const int u = (v - b * DILATIONX) / STRIDEX;
                            if (a * DILATIONY % STRIDEY == t && v == u * STRIDEX + b * DILATIONX && u >= 0 && u < TILE)
                                sum[a * PARTX + b] += dout[LATE - 1 - a * DILATIONY / STRIDEY][u] * own;
                        }
                    replace<(STRIDEY > 1), INX, READ>(x[t], place, row < INY, left, v);
                }
            }
        }
    }
    #pragma unroll
    for (int begin = 0; begin < PARTY * PARTX; begin += CHUNK) {
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < CHUNK; ++i)
            if (begin + i < PARTY * PARTX) found[i * THREADS + threadIdx.x] = sum[begin + i];
        __syncthreads();
        for (int i = threadIdx.x; i < CHUNK * LANES; i += THREADS) {
            const int place = begin + i / LANES, a = above + place / PARTX, b = before + place % PARTX;
            const int own = blockIdx.x % CHANNEL_TILES * LANES + i % LANES;
            if (place >= PARTY * PARTX || a >= SIZEY || b >= SIZEX || own >= CHANNELS) continue;
            A total = 0;
            for (int g = 0; g < GROUPS; ++g) total += found[i / LANES * THREADS + g * LANES + i % LANES];
            partial[((long long)share * CHANNELS + own) * TAPS + a * SIZEX + b] = total;
        }
    }
}
// The sums of SHARES blocks for each of COUNT weights: WIDE weights side by side, DEEP threads for each of them.
constexpr int WIDE = 32, DEEP = 8;
extern "C" __global__ void __launch_bounds__(WIDE * DEEP) depthwise_weight_totals(
        const A* __restrict__ partial, T* __restrict__ weight) {
    __shared__ A found[WIDE * DEEP];
    const long long own = (long long)blockIdx.x * WIDE + threadIdx.x % WIDE;
    A total = 0;
    if (own < COUNT)
        #pragma unroll 4
        for (int share = threadIdx.x / WIDE; share < SHARES; share += DEEP)
            total += partial[(long long)share * COUNT + own];
    found[threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.x >= WIDE || own >= COUNT) return;
    for (int deep = 1; deep < DEEP; ++deep) total += found[deep * WIDE + threadIdx.x];
    weight[own] = narrow<T>(total);
}
