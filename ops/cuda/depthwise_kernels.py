"""The CUDA C++ of convolutions of single channels and of their gradients; `depthwise.py` chooses the sizes.

A thread works on one channel of a tile of columns, and goes down the rows of it. Sums of the rows that are not complete
(or, for the gradient of the weights, the rows that are still needed) stay in registers and move up by one at every
step, so that a row is read once and every element of it is used for all places of the window. Lanes of a warp have
neighbouring channels, which lie side by side in memory.

Along a dimension, place p of the image and position q of the result meet at place k of the window where
p = q * STRIDE - BEFORE + k * DILATION. What is made of rows `begin` to `end` is in the hands of one thread.

Constants of all kernels (ending in Y for rows, in X for columns): IMAGES, CHANNELS of the result, MULTIPLIER results of
each channel of the image; IN, OUT, SIZE (of the window), STRIDE, DILATION, BEFORE; LANES channels by GROUPS items, the
THREADS of a block; TILE columns of an item and ROWS of it; COLUMNS tiles and SLABS, which make up an image; FIRST, from
which they are counted; ITEMS, all of them. T is the element type, A that of sums.
"""

COMMON = r"""
constexpr int TAPS = SIZEY * SIZEX, CHANNEL_TILES = (CHANNELS + LANES - 1) / LANES;
constexpr int THREADS = LANES * GROUPS, READ = CHANNELS / MULTIPLIER;

struct Item { int image, begin, end, column; };  // rows begin to end - 1, and columns from `column` on
__device__ __forceinline__ Item item_of(int number, int last) {
    Item item;
    item.column = FIRSTX + number % COLUMNS * TILE; number /= COLUMNS;
    item.begin = FIRSTY + number % SLABS * ROWS;
    item.image = number / SLABS;
    item.end = item.begin + ROWS < last ? item.begin + ROWS : last;
    return item;
}

// What one thread reads of a row: COUNT columns from `column` on, and zeros beside the image.
template <int COUNT> struct Row { T at[COUNT]; };
template <int HEIGHT, int WIDTH, int PITCH> __device__ __forceinline__ const T* place_of(
        const T* from, int image, int row, int column) {
    return from + (((long long)image * HEIGHT + row) * WIDTH + column) * PITCH;
}
template <int HEIGHT, int WIDTH, int PITCH, int COUNT> __device__ __forceinline__ void load(
        Row<COUNT>& to, const T* __restrict__ from, int image, int row, int column) {
    const bool there = row >= 0 && row < HEIGHT;
    const T* place = place_of<HEIGHT, WIDTH, PITCH>(from, image, row, column);
    #pragma unroll
    for (int v = 0; v < COUNT; ++v)
        to.at[v] = there && (unsigned int)(column + v) < WIDTH ? place[v * (long long)PITCH] : T{};
}
// One of its columns, v, in the next row at `place`. What is beside the image remains 0, and so does what is left of a
// row that is not there, where CLEARS is not set.
template <bool CLEARS, int WIDTH, int PITCH, int COUNT> __device__ __forceinline__ void replace(
        Row<COUNT>& to, const T* __restrict__ place, bool there, int column, int v) {
    if (there && (unsigned int)(column + v) < WIDTH) to.at[v] = place[v * (long long)PITCH];
    else if (CLEARS) to.at[v] = T{};
}
// Columns of a row that a thread has made, as far as there are any.
template <int HEIGHT, int WIDTH> __device__ __forceinline__ void store(
        T* __restrict__ to, const A (&made)[TILE], int image, int row, int column) {
    T* place = to + (((long long)image * HEIGHT + row) * WIDTH + column) * CHANNELS;
    #pragma unroll
    for (int u = 0; u < TILE; ++u)
        if ((unsigned int)(column + u) < WIDTH) place[u * (long long)CHANNELS] = narrow<T>(made[u]);
}
"""

WINDOW = r"""
// The weights of a channel, which the block brings through shared memory.
constexpr int PITCH = TAPS | 1;
struct Window { A at[SIZEY][SIZEX]; };
__device__ __forceinline__ void load_window(
        Window& to, A (&held)[LANES * PITCH], const T* __restrict__ weight, int first, int lane) {
    for (int i = threadIdx.x; i < LANES * TAPS; i += THREADS)
        if (first + i / TAPS < CHANNELS)
            held[i / TAPS * PITCH + i % TAPS] = (A)wide(weight[(long long)first * TAPS + i]);
    __syncthreads();
    #pragma unroll
    for (int a = 0; a < SIZEY; ++a)
        #pragma unroll
        for (int b = 0; b < SIZEX; ++b) to.at[a][b] = held[lane * PITCH + a * SIZEX + b];
}
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

FORWARD = r"""
// Positions whose windows hold a row of the image are LATE rows at most; a step reads the STRIDEY rows from one
// position to the next, and completes a row of positions.
constexpr int LATE = (SIZEY - 1) * DILATIONY / STRIDEY + 1;
constexpr int SPAN = (TILE - 1) * STRIDEX + (SIZEX - 1) * DILATIONX + 1;
constexpr int STEP = STRIDEY < (SIZEY - 1) * DILATIONY + 1 ? STRIDEY : (SIZEY - 1) * DILATIONY + 1;
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise(
        const T* __restrict__ image, const T* __restrict__ weight, T* __restrict__ result) {
    const int lane = threadIdx.x % LANES, first = blockIdx.x % CHANNEL_TILES * LANES, channel = first + lane;
    __shared__ A held[LANES * PITCH];
    Window window;
    load_window(window, held, weight, first, lane);
    const int number = blockIdx.x / CHANNEL_TILES * GROUPS + threadIdx.x / LANES;
    if (number >= ITEMS || channel >= CHANNELS) return;
    const Item item = item_of(number, OUTY);
    const int left = item.column * STRIDEX - BEFOREX;
    image += channel / MULTIPLIER;
    result += channel;
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
    const int last = item.end + LATE - 1;
    int q = item.begin;
    #pragma unroll 1
    for (; q < last && q * STRIDEY - BEFOREY + STEP <= 0; ++q) complete(q);  // above the image
    Row<SPAN> x[STEP];
    #pragma unroll
    for (int t = 0; t < STEP; ++t) load<INY, INX, READ>(x[t], image, item.image, q * STRIDEY - BEFOREY + t, left);
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
"""

IMAGE_GRADIENT = r"""
// Rows and columns are counted from the first place that a window may look at: FIRST is a multiple of the stride, and
// TILE and ROWS are. A step reads a row of the result's gradient and completes STRIDEY rows.
constexpr int DEEP = (SIZEY - 1) * DILATIONY + 1 > STRIDEY ? (SIZEY - 1) * DILATIONY + 1 : STRIDEY;
constexpr int ABOVE = (SIZEY - 1) * DILATIONY / STRIDEY, LEFT = (SIZEX - 1) * DILATIONX / STRIDEX;
constexpr int SPAN = (TILE - 1) / STRIDEX + LEFT + 1;
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise_image_gradient(
        const T* __restrict__ given, const T* __restrict__ weight, T* __restrict__ image) {
    const int lane = threadIdx.x % LANES, first = blockIdx.x % CHANNEL_TILES * LANES, channel = first + lane;
    __shared__ A held[LANES * PITCH];
    Window window;
    load_window(window, held, weight, first, lane);
    const int number = blockIdx.x / CHANNEL_TILES * GROUPS + threadIdx.x / LANES;
    if (number >= ITEMS || channel >= CHANNELS) return;
    const Item item = item_of(number, INY + BEFOREY);
    const int left = item.column / STRIDEX - LEFT, top = item.begin / STRIDEY - ABOVE;
    given += channel;
    image += channel;
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
    Row<SPAN> x;
    load<OUTY, OUTX, CHANNELS>(x, given, item.image, q, left);
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

WEIGHT_GRADIENT = r"""
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
"""

WEIGHT_TOTALS = r"""
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
"""
