namespace n_NAME {
@structs@
enum { LANES = @lanes@, TERMS = @terms@, TOGETHER = 64 };
#if defined(__AVX512F__)
enum { LONG = 16, ROWS = 8, PAIRED = 2 };
#elif defined(__AVX__)
enum { LONG = 8, ROWS = 6, PAIRED = 1 };
#elif defined(__aarch64__)
enum { LONG = 4, ROWS = 6, PAIRED = 1 };
#else
enum { LONG = 4, ROWS = 3, PAIRED = 1 };
#endif
enum { PIECES = LANES / LONG };
typedef float V __attribute__((vector_size(4 * LONG), aligned(4), may_alias));

// ROWS rows of sums over some terms, which are in registers meanwhile, for COUNT inner indices, whose packed operands
// are `b_apart` apart, their sums `apart`. NEAR: the rows are neighbours, so that one pointer finds all of them.
template <bool SPREAD, int COUNT, bool NEAR = false> static inline void tile(
    const float* const x, const i64* const rows, const i64* const columns, const i64 terms, const float* b,
    const i64 b_apart, float* const sums, const i64 apart, const bool begins
) {
    enum { APART = SPREAD ? LANES : 1, ALL = COUNT * PIECES };
    const float* p[ROWS];
    V s[ROWS][ALL];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
        p[r] = NEAR ? x + rows[0] + r : x + rows[r] * APART;
#pragma GCC unroll 16
        for (int i = 0; i < ALL; ++i)
            s[r][i] = begins ? V{} : ((const V*)(sums + i / PIECES * apart))[r * PIECES + i % PIECES];
    }
    for (i64 k = 0; k < terms; ++k, b += LANES) {
        const i64 place = columns[k] * APART;
        V w[ALL];
#pragma GCC unroll 16
        for (int i = 0; i < ALL; ++i) w[i] = ((const V*)(b + i / PIECES * b_apart))[i % PIECES];
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 16
            for (int i = 0; i < ALL; ++i) {
                if (SPREAD) s[r][i] += *(const V*)(p[r] + place + i % PIECES * LONG) * w[i];
                else s[r][i] += (NEAR ? p[0][place + r] : p[r][place]) * w[i];
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 16
        for (int i = 0; i < ALL; ++i) ((V*)(sums + i / PIECES * apart))[r * PIECES + i % PIECES] = s[r][i];
    }
}

// Some terms of all rows for one inner index, or for PAIRED ones where an element of the image serves all lanes. The
// last rows are made again where they fill no tile.
static void added(
    const bool spread, const float* const x, const i64* const rows, const i64 count, const i64* const columns,
    const i64 terms, const float* const b, const i64 b_apart, float* const sums, const i64 apart, const i64 inners,
    const bool begins
) {
    for (i64 row = 0; row < count; row += ROWS) {
        i64 some[ROWS];
        for (int r = 0; r < ROWS; ++r) some[r] = rows[row + r < count ? row + r : count - 1];
        float* const to = sums + row * LANES;
        const bool near = row + ROWS <= count && some[ROWS - 1] - some[0] == ROWS - 1;  // rows ascend
        if (spread) tile<true, 1>(x, some, columns, terms, b, 0, to, 0, begins);
        else if (inners > 1 && near) tile<false, PAIRED, true>(x, some, columns, terms, b, b_apart, to, apart, begins);
        else if (inners > 1) tile<false, PAIRED>(x, some, columns, terms, b, b_apart, to, apart, begins);
        else tile<false, 1>(x, some, columns, terms, b, 0, to, 0, begins);
    }
}

// Lanes that are there, of LANES at an index.
static inline i64 present(const i64 lanes, const i64 index) {
    return lanes - index * LANES < LANES ? lanes - index * LANES : LANES;
}

// Whether sixteen places follow one another.
static inline bool neighbours(const i64* const places) {
    bool found = true;
    for (int k = 1; k < 16; ++k) found &= places[k] == places[0] + k;
    return found;
}

// The lanes of every term side by side, zeros where there are none. True where an element is not finite.
static bool packed(
    float* const to, const float* const from, const i64* const places, const i64 terms, const i64 lanes,
    const i64 stride
) {
    float odd = 0;
    for (i64 begin = 0; begin < terms; begin += TOGETHER) {
        const i64 count = terms - begin < TOGETHER ? terms - begin : TOGETHER;
        float* const some = to + begin * LANES;
        if (lanes < LANES) filled<float>(some, count * LANES, 0.0f);
        i64 done = 0;
        for (; lanes == LANES && done + 16 <= count && neighbours(places + begin + done); done += 16)
            turned(from + places[begin + done], stride, some + done * LANES, LANES);
        for (i64 lane = 0; lane < lanes; ++lane) {
            const float* const line = from + lane * stride;
            for (i64 k = done; k < count; ++k) some[k * LANES + lane] = line[places[begin + k]];
        }
        _Pragma("omp simd reduction(+:odd)")
        for (i64 k = 0; k < count * LANES; ++k) odd += some[k] * 0.0f;
    }
    return odd != odd;
}

// Sums to where their rows and lanes lie in the result.
static void stored(
    float* const y, const float* const sums, const i64* const made, const i64 count, const i64 lanes, const i64 stride
) {
    for (i64 begin = 0; begin < count; begin += 16) {
        const i64 length = count - begin < 16 ? count - begin : 16;
        const float* const some = sums + begin * LANES;
        const bool together = length == 16 && neighbours(made + begin);
        if (together && lanes == LANES) {
            turned(some, LANES, y + made[begin], stride);
            continue;
        }
        for (i64 lane = 0; lane < lanes; ++lane) {
            float* const to = y + lane * stride;
            if (together)
                for (int r = 0; r < 16; ++r) to[made[begin] + r] = some[r * LANES + lane];
            else
                for (i64 r = 0; r < length; ++r) to[made[begin + r]] = some[r * LANES + lane];
        }
    }
}

// to[k] = from[k * stride] for low <= k < high, and zeros elsewhere in [0, length). Lines are short, so that calls of
// memset and memcpy would take most of the time: the zeros at both ends and the last elements are vectors that overlap.
static inline void padded_line(
    float* const to, const float* const from, const i64 stride, const i64 low, const i64 high, const i64 length
) {
    if (stride != 1 || high - low < LONG || low > LONG || length - high > LONG) {
        filled<float>(to, low, 0.0f);
        for (i64 k = low; k < high; ++k) to[k] = from[k * stride];
        filled<float>(to + high, length - high, 0.0f);
        return;
    }
    *(V*)to = V{};
    *(V*)(to + length - LONG) = V{};
    for (i64 k = low; k + LONG <= high; k += LONG) *(V*)(to + k) = *(const V*)(from + k);
    *(V*)(to + high - LONG) = *(const V*)(from + high - LONG);
}

// The same for a line of LANES channels, whose elements at a place become neighbours; zeros in lanes that are missing.
template <class N> static void spread_line(
    float* const to, const float* const row, const N& n, const i64 low, const i64 high, const i64 lanes
) {
    if (n.x_2 == 1 && lanes == LANES && high - low >= 16) {
        filled<float>(to, low * LANES, 0.0f);
        for (i64 k = low; k + 16 <= high; k += 16) turned(row + k, n.x_lane, to + k * LANES, LANES);
        turned(row + high - 16, n.x_lane, to + (high - 16) * LANES, LANES);
        filled<float>(to + high * LANES, (n.slab_2 - high) * LANES, 0.0f);
        return;
    }
    filled<float>(to, n.slab_2 * LANES, 0.0f);
    for (i64 lane = 0; lane < lanes; ++lane)
        for (i64 k = low; k < high; ++k) to[k * LANES + lane] = row[lane * n.x_lane + k * n.x_2];
}

// The places of an image that windows read, from the place `start` on, with zeros in the padding.
template <class N> static void copied(
    float* to, const float* const from, const N& n, const i64 channels, const i64* const start, const i64 lanes
) {
    const i64 apart = n.spread ? LANES : 1;
    const i64 low = start[2] < 0 ? -start[2] : 0;
    const i64 high = n.length_2 - start[2] < n.slab_2 ? n.length_2 - start[2] : n.slab_2;
    for (i64 c = 0; c < channels; ++c)
        for (i64 z = start[0]; z < start[0] + n.slab_0; ++z)
            for (i64 y = start[1]; y < start[1] + n.slab_1; ++y, to += n.slab_2 * apart) {
                if (z < 0 || z >= n.length_0 || y < 0 || y >= n.length_1 || low >= high) {
                    filled<float>(to, n.slab_2 * apart, 0.0f);
                    continue;
                }
                const float* const row = from + c * n.x_channel + z * n.x_0 + y * n.x_1 + start[2] * n.x_2;
                if (n.spread) spread_line(to, row, n, low, high, lanes);
                else padded_line(to, row, n.x_2, low, high, n.slab_2);
            }
}

// Memory of a call: sums, and behind them a slab.
static float* fresh(const i64 sums, const i64 slab, void** const raw) {
    *raw = __builtin_malloc((sums + slab) * sizeof(float) + 64);
    return (float*)(((unsigned long long)*raw + 63) / 64 * 64);
}
}
extern "C" void NAME(void* const* const a, const i64 first, const i64 last) {
    using namespace n_NAME;
    const float* const x = (const float*)a[0];
    const float* const b = (const float*)a[1];
    float* const y = (float*)a[2];
    float* const ready = (float*)a[3];
    const i64* const t = (const i64*)a[4];
    const Numbers& n = *(const Numbers*)t;
