"""The C++ of attention and of its gradients.

Work is shared out by pairs of a place in the batch and a head of the keys, and by pieces of what looks at the pair:
blocks of ROWS queries of all heads that share the keys. For a piece keys and values are copied as products read them,
then each block of queries meets the blocks of KEYS keys one after the other, and those that limits kill are left out.
Gradients make the weights again from the statistics of their rows. Of several pieces each has sums of its own for the
gradients of keys and values, which are added up in the order of the pieces.
"""

from __future__ import annotations

from collections.abc import Mapping

from mspc.ops.cpu.loops.attention.products import PRODUCTS
from mspc.ops.cpu.loops.attention.rows import ROWS_OF_SCORES
from mspc.ops.nn.attention_kernel import LARGE

ROWS = 72
"""Queries of a block at most."""
KEYS = 64
"""Keys of a block."""
DRAWN_DIMS = 8
"""Dimensions of rows that draws are numbered by, at most."""

STRIDED = ("q", "k", "v", "g", "o", "dq", "dk", "dv")
"""Operands and results with heads: queries, keys, values, the result's gradient, the result, and three gradients."""
ADDED = ("shift", "mask", "keep", "total")
"""What has numbers for each query and key, or fewer: 0 is the step along a dimension that it does not have."""
NUMBERS: Mapping[str, int] = {
    **dict.fromkeys((
        "pairs", "pieces", "block", "heads", "key_heads", "queries", "keys", "depth", "value_depth", "low", "high",
        "has_shift", "has_mask", "has_keep", "has_draws", "drawn_dims", "count", "key", "own_batch", "own_heads",
        "own_queries", "of_shift",
        *(f"{name}_{side}" for name in STRIDED for side in ("batch", "head", "row")),
        *(f"{name}_{side}" for name in ADDED for side in ("batch", "head", "row", "key")),
    ), 1),
    **dict.fromkeys(("drawn", "begin", "local"), DRAWN_DIMS),
}  # fmt: skip
"""How many Int64 numbers a function is given by each name, in their order; `scale` and `factor` are behind them in
Float64."""
POINTERS = (*STRIDED, *ADDED, "statistics", "shares", "numbers", "odd")
"""What the addresses point to, in their order. shares: memory for the sums of pieces. odd: an Int64 that is set to 1
where an operand is not finite, and results are to be made otherwise."""

_HEAD = (
    f"enum {{ ROWS = {ROWS}, KEYS = {KEYS}, LARGE = {LARGE} }};\n"
    + "struct Numbers {\n"
    + "".join(f"    i64 {name}{f'[{count}]' if count > 1 else ''};\n" for name, count in NUMBERS.items())
    + "    double scale, factor;\n};\n"
    + f"enum {{ {', '.join('P_' + name for name in POINTERS)} }};\n"
)

PIECES = r"""
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
"""


def source(element: str, functions: str) -> str:
    """The C++ of functions on operands of a C++ type, in a namespace of their own."""
    return f"namespace n_NAME {{\ntypedef {element} T;\n" + PRODUCTS + _HEAD + ROWS_OF_SCORES + PIECES + functions
