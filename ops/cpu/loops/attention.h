// The C++ of attention and of its gradients.
//
// Work is shared out by pairs of a place in the batch and a head of the keys, and by pieces of the queries of the pair:
// blocks of ROWS queries of all heads that share the keys. For a piece keys and values are copied as matmuls read them,
// then each block of queries meets the blocks of KEYS keys one after the other, except those that limits exclude.
// Gradients make the weights again from the statistics of their rows. If there are several pieces, each has sums of its
// own for the gradients of keys and values, which are added up in the order of the pieces.

namespace n_NAME {
typedef @element@ T;

// Small matmuls in a core's cache, and copies that they read.

#if defined(__AVX512F__)
enum { LONG = 16, TALL = 12 };
#elif defined(__aarch64__)
enum { LONG = 4, TALL = 12 };
#elif defined(__AVX__)
enum { LONG = 8, TALL = 6 };
#else
enum { LONG = 4, TALL = 6 };
#endif
// A function that is compiled once and not wherever it is called, which would take a compiler twice as long.
#define ONCE static __attribute__((noinline))
typedef float V __attribute__((vector_size(4 * LONG), aligned(4), may_alias));

// How many rows a tile of so many vectors has: its sums lie in registers.
constexpr int rows_of(int vectors) { return vectors == 4 ? TALL / 2 : TALL; }
static inline i64 padded(const i64 count) { return (count + LONG - 1) / LONG * LONG; }
static inline i64 least(const i64 a, const i64 b) { return a < b ? a : b; }
static inline i64 most(const i64 a, const i64 b) { return a > b ? a : b; }

// c[R rows, W vectors] += a b, or = where `begins`. A row of a has its terms side by side, or, TURNED, a term its rows.
template <int R, int W, bool TURNED> ONCE void tile(
    const float* __restrict__ const a, const i64 a_apart, const float* __restrict__ b, const i64 b_apart,
    const i64 terms, float* __restrict__ const c, const i64 c_apart, const bool begins
) {
    V s[R][W];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int i = 0; i < W; ++i) s[r][i] = begins ? V{} : ((const V*)(c + r * c_apart))[i];
    }
    const float* p = a;
    for (i64 k = 0; k < terms; ++k, b += b_apart, p += TURNED ? a_apart : 1) {
        V w[W];
#pragma GCC unroll 4
        for (int i = 0; i < W; ++i) w[i] = ((const V*)b)[i];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const float x = TURNED ? p[r] : p[r * a_apart];
#pragma GCC unroll 4
            for (int i = 0; i < W; ++i) s[r][i] += x * w[i];
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int i = 0; i < W; ++i) ((V*)(c + r * c_apart))[i] = s[r][i];
    }
}

// As many tiles of R rows as there are, and behind them smaller ones.
template <int R, int W, bool TURNED> static void column(
    i64 rows, const float* a, const i64 a_apart, const float* const b, const i64 b_apart, const i64 terms, float* c,
    const i64 c_apart, const bool begins
) {
    for (; rows >= R; rows -= R, a += R * (TURNED ? 1 : a_apart), c += R * c_apart)
        tile<R, W, TURNED>(a, a_apart, b, b_apart, terms, c, c_apart, begins);
    if constexpr (R > 1) {
        if (rows) column<R / 2, W, TURNED>(rows, a, a_apart, b, b_apart, terms, c, c_apart, begins);
    }
}

// c[rows, lanes] += a b, or = where `begins`; lanes are whole vectors. Steps from row to row are in elements.
template <bool TURNED> ONCE void multiplied(
    const i64 rows, const i64 terms, const i64 lanes, const float* const a, const i64 a_apart, const float* const b,
    const i64 b_apart, float* const c, const i64 c_apart, const bool begins
) {
    i64 j = 0;
    for (; lanes - j >= 4 * LONG; j += 4 * LONG)
        column<rows_of(4), 4, TURNED>(rows, a, a_apart, b + j, b_apart, terms, c + j, c_apart, begins);
    for (; lanes - j >= 2 * LONG; j += 2 * LONG)
        column<rows_of(2), 2, TURNED>(rows, a, a_apart, b + j, b_apart, terms, c + j, c_apart, begins);
    for (; j < lanes; j += LONG)
        column<rows_of(1), 1, TURNED>(rows, a, a_apart, b + j, b_apart, terms, c + j, c_apart, begins);
}

// Rows side by side, zeros behind their elements. NaN where an element is not finite, else zero.
ONCE float rows_copied(
    float* to, const i64 width, const T* from, const i64 apart, const i64 count, const i64 depth
) {
    V odds = {};
    float odd = 0;
    for (i64 r = 0; r < count; ++r, to += width, from += apart) {
        i64 d = 0;
        if constexpr (sizeof(T) == sizeof(float)) {
            for (; d + LONG <= depth; d += LONG) {
                const V x = *(const V*)(from + d);
                *(V*)(to + d) = x;
                odds += x * 0.0f;
            }
        }
        for (; d < depth; ++d) {
            const float x = wide(from[d]);
            to[d] = x;
            odd += x * 0.0f;
        }
        for (; d < width; ++d) to[d] = 0;
    }
    for (int i = 0; i < LONG; ++i) odd += odds[i];
    return odd;
}

// Rows of floats as columns: to[d * width + r] = from[r * apart + d]. Zeros fill the columns up to whole vectors.
ONCE void columns_of(
    float* const to, const i64 width, const float* const from, const i64 apart, const i64 count, const i64 depth
) {
    const i64 whole_rows = count / 16 * 16, whole_depth = depth / 16 * 16;
    for (i64 d = 0; d < whole_depth; d += 16)
        for (i64 r = 0; r < whole_rows; r += 16) turned(from + r * apart + d, apart, to + d * width + r, width);
    for (i64 r = 0; r < count; ++r)
        for (i64 d = r < whole_rows ? whole_depth : 0; d < depth; ++d) to[d * width + r] = from[r * apart + d];
    for (i64 d = 0; d < depth; ++d)
        for (i64 r = count; r < padded(count); ++r) to[d * width + r] = 0;
}

ONCE void stored(T* to, const i64 apart, const float* from, const i64 width, const i64 count, const i64 depth) {
    for (i64 r = 0; r < count; ++r, to += apart, from += width) {
        _Pragma("omp simd")
        for (i64 d = 0; d < depth; ++d) to[d] = narrow<T>(from[d]);
    }
}

enum { ROWS = @rows@, KEYS = @keys@, LARGE = @large@ };
struct Numbers {
    i64 @numbers@;
    double scale, factor;
};
enum { @pointers@ };

// Operations on a row of scores, vector by vector.

typedef int I __attribute__((vector_size(4 * LONG)));
typedef unsigned char B __attribute__((vector_size(LONG), aligned(1), may_alias));
typedef void* const* Pointers;
static const float NOTHING = -__builtin_inff();
static __forceinline__ V same(const float x) { return V{} + x; }

// exp(v) as the function of one number has it, but zero from where it would be a denormal number, which takes a
// processor long. 2^n is made of the bits of n + 1.5 * 2^23, whose last ones are n. BELOW: v is at most a bit above 0.
template <bool BELOW> static __forceinline__ V power(const V v) {
    const I tiny = v < -87.0f, huge = v > 88.0f;
    V c = tiny ? same(-87.0f) : v;
    if (!BELOW) c = huge ? same(88.0f) : c;
    const V t = c * 1.44269504f + 12582912.0f, n = t - 12582912.0f;
    const V r = (c - n * 0.693359375f) + n * 2.12194440e-4f;
    V p = r * 0.0013814465f + 0.008368781f;
    p = p * r + 0.041668393f; p = p * r + 0.1666652f; p = p * r + 0.49999994f;
    V found = (r * r * p + r + 1.0f) * (V)(((I)t << 23) + 0x3f800000);
    if (!BELOW) found = huge ? same(-NOTHING) : found;
    return tiny ? V{} : found;
}
static inline float power(const float v) { return power<true>(same(v))[0]; }

template <class How, int N> static __forceinline__ float across(float* const lanes) {
    if constexpr (N == 2) {
        return How::of(lanes[0], lanes[1]);
    } else {
        typedef float Half __attribute__((vector_size(2 * N), aligned(4), may_alias));
        *(Half*)lanes = How::of(*(const Half*)lanes, *(const Half*)(lanes + N / 2));
        return across<How, N / 2>(lanes);
    }
}
template <class How> static __forceinline__ float across(const V v) {
    float lanes[LONG];
    *(V*)lanes = v;
    return across<How, LONG>(lanes);
}
struct Added { template <class X> static __forceinline__ X of(const X a, const X b) { return a + b; } };
struct Greater { template <class X> static __forceinline__ X of(const X a, const X b) { return a < b ? b : a; } };

static inline float row_top(const float* const s, const i64 width) {
    V top = same(NOTHING);
    for (i64 k = 0; k < width; k += LONG) top = Greater::of(top, *(const V*)(s + k));
    return across<Greater>(top);
}
// Scores become exp(score - top); their sum.
template <bool BELOW> static inline float row_powers(float* const s, const i64 width, const float top) {
    const V subtracted = same(top);
    V sum = {};
    for (i64 k = 0; k < width; k += LONG) {
        const V weight = power<BELOW>(*(const V*)(s + k) - subtracted);
        *(V*)(s + k) = weight;
        sum += weight;
    }
    return across<Added>(sum);
}
static inline void row_times(float* const s, const i64 width, const float factor) {
    const V by = same(factor);
    for (i64 k = 0; k < width; k += LONG) *(V*)(s + k) *= by;
}
static inline void row_times(float* const s, const i64 width, const float* const factors) {
    for (i64 k = 0; k < width; k += LONG) *(V*)(s + k) *= *(const V*)(factors + k);
}
// Scores become weights as far as they remain, d gradients of scores from those of weights.
static inline void row_gradients(
    float* const s, float* const d, const i64 width, const float logarithm, const float share, const float sum,
    const float scale, const float* const factors
) {
    const V subtracted = same(logarithm), shared = same(share), total = same(sum), by = same(scale);
    if (factors)
        for (i64 k = 0; k < width; k += LONG) {
            const V weight = power<false>(*(const V*)(s + k) - subtracted) * shared, remains = *(const V*)(factors + k);
            *(V*)(s + k) = weight * remains;
            *(V*)(d + k) = weight * (*(const V*)(d + k) * remains - total) * by;
        }
    else
        for (i64 k = 0; k < width; k += LONG) {
            const V weight = power<false>(*(const V*)(s + k) - subtracted) * shared;
            *(V*)(s + k) = weight;
            *(V*)(d + k) = weight * (*(const V*)(d + k) - total) * by;
        }
}

// Keys that a query looks at: from the first one to before the last.
static inline i64 first_key(const Numbers& n, const i64 query) { return most(0, query + n.low); }
static inline i64 last_key(const Numbers& n, const i64 query) { return most(0, least(n.keys, query + n.high + 1)); }

// Products of a query and neighbouring keys become scores; nothing is looked at behind `count`, up to `width`.
ONCE void scored(
    const Numbers& n, Pointers a, float* const s, const i64 batch, const i64 head, const i64 query, const i64 key,
    const i64 count, const i64 width
) {
    const float scale = (float)n.scale;
    if (n.has_shift) {
        const float* const add = (const float*)a[P_shift] + batch * n.shift_batch + head * n.shift_head
                                 + query * n.shift_row + key * n.shift_key;
        const V first = same(*add);
        i64 k = 0;
        for (; k + LONG <= count; k += LONG) {
            const V more = n.shift_key ? *(const V*)(add + k) : first;
            *(V*)(s + k) = *(const V*)(s + k) * scale + more;
        }
        for (; k < count; ++k) s[k] = s[k] * scale + add[k * n.shift_key];
    } else {
        row_times(s, width, scale);
    }
    if (n.has_mask) {
        const unsigned char* const mask = (const unsigned char*)a[P_mask] + batch * n.mask_batch + head * n.mask_head
                                          + query * n.mask_row + key * n.mask_key;
        if (n.mask_key) {
            i64 k = 0;
            for (; k + LONG <= count; k += LONG) {
                const I hidden = __builtin_convertvector(*(const B*)(mask + k), I) != 0;
                *(V*)(s + k) = hidden ? same(NOTHING) : *(const V*)(s + k);
            }
            for (; k < count; ++k) s[k] = mask[k] ? NOTHING : s[k];
        } else if (*mask) {
            for (i64 k = 0; k < count; ++k) s[k] = NOTHING;
        }
    }
    const i64 low = least(count, first_key(n, query) - key), high = most(0, last_key(n, query) - key);
    for (i64 k = 0; k < low; ++k) s[k] = NOTHING;
    for (i64 k = least(high, count); k < width; ++k) s[k] = NOTHING;
}

// What a block of queries and one of keys have to do with each other.
struct Meeting { i64 first_row, rows, key, keys; };
static inline Meeting met(const Numbers& n, const i64 query, const i64 rows, const i64 key) {
    i64 first = 0, last = rows;
    const i64 end = least(n.keys, key + KEYS);
    while (first < last && (last_key(n, query + first) <= key || first_key(n, query + first) >= end)) ++first;
    while (first < last && (last_key(n, query + last - 1) <= key || first_key(n, query + last - 1) >= end)) --last;
    const i64 keys = last > first ? least(end, last_key(n, query + last - 1)) - key : 0;
    return {first, last - first, key, keys};
}

// The place of a row's first weight among those of all ranks, in elements.
static inline u64 place_of_row(const Numbers& n, const i64 batch, const i64 head, const i64 query) {
    u64 rest = (u64)((batch * n.heads + head) * n.queries + query), place = 0, stride = (u64)n.keys;
    for (i64 d = n.drawn_dims - 1; d >= 0; --d) {
        place += (rest % (u64)n.local[d] + (u64)n.begin[d]) * stride;
        rest /= (u64)n.local[d];
        stride *= (u64)n.drawn[d];
    }
    return place;
}
struct Factors { float of[KEYS + 32]; };
// Factors of 16 elements by the four words that decide them: word t has 2t, 2t + 1, 2t + 8 and 2t + 9.
static inline void factors_of_words(
    float* const to, const u64* const words, const unsigned int count, const float factor
) {
#if defined(__AVX512F__)
    typedef unsigned short Fields __attribute__((vector_size(32), aligned(8), may_alias));
    const I fields = __builtin_convertvector(*(const Fields*)words, I);
    const V kept = fields < (int)count ? same(factor) : V{};
#if defined(__clang__)
    *(V*)to = __builtin_shufflevector(kept, kept, 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
#else
    *(V*)to = __builtin_shuffle(kept, I{0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15});
#endif
#else
    for (int e = 0; e < 16; ++e) {
        const unsigned int bits = (unsigned int)(words[e >> 1 & 3] >> (((e & 1) | (e >> 2 & 2)) * 16)) & 0xffff;
        to[e] = bits < count ? factor : 0.0f;
    }
#endif
}
// By what the weights of neighbouring keys are multiplied: 0 or 1 / keep_prob.
ONCE const float* factors(
    const Numbers& n, Pointers a, Factors& made, const i64 batch, const i64 head, const i64 query, const i64 key,
    const i64 width
) {
    const float factor = (float)n.factor;
    if (n.has_draws) {
        const u64 place = place_of_row(n, batch, head, query) + (u64)key;
        const u64 begin = place & ~15ull, end = (place + (u64)width + 15) & ~15ull;
        u64 words[(KEYS + 32) / 4];
        const i64 count = (i64)(end - begin) / 4;
        const u64 first = (begin >> 2) * GOLDEN + (u64)n.key + GOLDEN;
        _Pragma("omp simd")
        for (i64 w = 0; w < count; ++w) words[w] = mixed(first + (u64)w * GOLDEN);
        for (i64 w = 0; w < count; w += 4) factors_of_words(made.of + w * 4, words + w, (unsigned int)n.count, factor);
        return made.of + (place - begin);
    }
    const unsigned char* const keep = (const unsigned char*)a[P_keep] + batch * n.keep_batch + head * n.keep_head
                                      + query * n.keep_row + key * n.keep_key;
    const i64 count = least(width, n.keys - key);
    for (i64 k = 0; k < count; ++k) made.of[k] = keep[k * n.keep_key] ? factor : 0.0f;
    for (i64 k = count; k < width; ++k) made.of[k] = 0.0f;
    return made.of;
}

// A part's pair, its blocks of queries, and the keys that these look at.
struct Piece { i64 batch, key_head, group, blocks, first, last, begin, end; };
static inline i64 blocks_of(const Numbers& n) { return (n.queries + n.block - 1) / n.block; }
static inline Piece piece_of(const Numbers& n, const i64 pair, const i64 piece) {
    Piece p;
    p.batch = pair / n.key_heads, p.key_head = pair % n.key_heads, p.group = n.heads / n.key_heads;
    p.blocks = blocks_of(n);
    const i64 units = p.group * p.blocks;
    p.first = units * piece / n.pieces, p.last = units * (piece + 1) / n.pieces;
    p.begin = n.keys, p.end = 0;
    for (i64 unit = p.first; unit < p.last; ++unit) {
        const i64 query = unit % p.blocks * n.block, rows = least(n.block, n.queries - query);
        p.begin = least(p.begin, first_key(n, query));
        p.end = most(p.end, last_key(n, query + rows - 1));
    }
    p.begin = p.begin / KEYS * KEYS;
    p.end = most(p.begin, p.end);
    return p;
}

// Memory of a call, whose arrays begin at lines of the cache.
struct Memory {
    char* raw;
    char* free;
    explicit Memory(const i64 floats) : raw((char*)__builtin_malloc(floats * sizeof(float) + 64)) {
        free = (char*)(((unsigned long long)raw + 63) / 64 * 64);
    }
    ~Memory() { __builtin_free(raw); }
    float* take(const i64 floats) {
        float* const found = (float*)free;
        free += padded_line(floats) * sizeof(float);
        return found;
    }
    static i64 padded_line(const i64 floats) { return (floats + 15) / 16 * 16; }
};
template <class X> static inline X* at(
    Pointers a, const int pointer, const i64 batch, const i64 by_batch, const i64 head, const i64 by_head,
    const i64 row, const i64 by_row
) {
    return (X*)a[pointer] + batch * by_batch + head * by_head + row * by_row;
}
#define AT(X, name, batch, head, row) \
    at<X>(a, P_##name, batch, n.name##_batch, head, n.name##_head, row, n.name##_row)

static inline i64 padded_keys(const Numbers& n) { return (n.keys + KEYS - 1) / KEYS * KEYS; }

// Keys or values of a piece as columns, a block of KEYS behind the other, and as rows where these are wanted.
ONCE float columns_copied(
    const Numbers& n, float* const columns, float* const rows, const T* const from, const i64 apart, const i64 depth,
    const i64 begin, const i64 end, float* const line
) {
    const i64 width = padded(depth);
    float odd = 0;
    for (i64 key = begin; key < end; key += KEYS) {
        const i64 count = least(KEYS, n.keys - key);
        float* const some = rows ? rows + key * width : line;
        odd += rows_copied(some, width, from + key * apart, apart, count, depth);
        columns_of(columns + key * width, KEYS, some, width, count, width);
    }
    return odd;
}
