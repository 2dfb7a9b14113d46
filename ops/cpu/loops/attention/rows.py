"""The C++ of what happens to a row of scores, vector by vector."""

from __future__ import annotations

ROWS_OF_SCORES = r"""
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
"""
"""Behind the functions of `products`, and the numbers of `source`."""
