"""The C++ of small products of matrices that lie in a core's cache, and of copies that they read."""

from __future__ import annotations

PRODUCTS = r"""
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
"""
"""Behind the prelude of loops, and a definition of T, the element type of operands and results."""
