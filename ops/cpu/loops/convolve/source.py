"""The C++ of convolutions and of their gradients.

All of them are sums y[row, lane] = sum over k of x[rows[row] + columns[k]] * b[k, lane]: an element of the image is
found by two tables of offsets, so that no column is ever written out, whatever strides and dilations are. Lanes are
neighbouring in memory, which makes them vectors: output channels, for which an element of the image is the same
(`spread` is false), or groups, which have an element each (`spread` is true).

Of the result and of the image's gradient a row is a position, k an input channel with a place of the window, and b the
weights. Of the weights' gradient a row is an input channel with a place of the window, k a position, and b the
gradient of the result. Both come in two stages, whose parts are numbered one behind the other: first b is packed, so
that the lanes of every k lie side by side, then the sums are made. A part copies what it reads of the image to a slab,
padded, unless the windows never leave the image.
"""

from __future__ import annotations

LANES = 16
"""Neighbouring elements of packed operands, whatever the length of a processor's vectors."""
TERMS = 256
"""Terms of a sum that are added up in registers: their packed operands stay in the cache that is next to a core."""

COMMON = (
    "x_outer", "x_lane", "x_channel", "x_image", "x_0", "x_1", "x_2", "length_0", "length_1", "length_2", "slab_0",
    "slab_1", "slab_2", "start_0", "start_1", "start_2", "b_outer", "b_inner", "b_lane", "y_outer", "y_inner", "y_lane",
    "prepared", "spread", "direct", "outers", "inners", "lanes", "channels", "batch", "most_rows",
    "pieces", "images",
)  # fmt: skip
IMAGES = (
    *COMMON, "chunks", "move_0", "move_1", "y_image", "y_move", "shares", "first_share",
)  # fmt: skip
SHARE = ("terms", "columns", "rows", "made", "factors", "packed", "positions", "last_positions")
WEIGHTS = (
    *COMMON, "all_channels", "blocks", "window", "positions", "b_image", "columns", "rows", "made", "factors",
)  # fmt: skip
"""The numbers that a function is given, in their order; tables lie behind them, at the places that some of them say.

Strides are in elements. An image has an outer index (a group, or LANES groups), lanes where it is spread, channels and
three dimensions, of which the first has one place in an image of two. b and y have an outer and an inner index (LANES
output channels of a group, or one output channel of every group) and lanes."""


def _struct(name: str, fields: tuple[str, ...]) -> str:
    return f"struct {name} {{ i64 {', '.join(fields)}; }};\n"


_PRODUCTS = (
    f"enum {{ LANES = {LANES}, TERMS = {TERMS}, TOGETHER = 64 }};"
    + r"""
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

// ROWS rows of sums over some terms, which lie in registers meanwhile, for COUNT inner indices, whose packed operands
// are `b_apart` apart, their sums `apart`.
template <bool SPREAD, int COUNT> static inline void tile(
    const float* const x, const i64* const rows, const i64* const columns, const i64 terms, const float* b,
    const i64 b_apart, float* const sums, const i64 apart, const bool begins
) {
    enum { APART = SPREAD ? LANES : 1, ALL = COUNT * PIECES };
    const float* p[ROWS];
    V s[ROWS][ALL];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
        p[r] = x + rows[r] * APART;
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
                else s[r][i] += p[r][place] * w[i];
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
        if (spread) tile<true, 1>(x, some, columns, terms, b, 0, to, 0, begins);
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

// What windows look at of an image, from the place `start` on, zeros where it is padding.
template <class N> static void copied(
    float* to, const float* const from, const N& n, const i64 channels, const i64* const start, const i64 lanes
) {
    const i64 apart = n.spread ? LANES : 1;
    const i64 low = start[2] < 0 ? -start[2] : 0;
    const i64 high = n.length_2 - start[2] < n.slab_2 ? n.length_2 - start[2] : n.slab_2;
    for (i64 c = 0; c < channels; ++c)
        for (i64 z = start[0]; z < start[0] + n.slab_0; ++z)
            for (i64 y = start[1]; y < start[1] + n.slab_1; ++y, to += n.slab_2 * apart) {
                const bool there = z >= 0 && z < n.length_0 && y >= 0 && y < n.length_1 && low < high;
                if (!there || n.spread) {
                    filled<float>(to, n.slab_2 * apart, 0.0f);
                    if (!there) continue;
                }
                const float* const row = from + c * n.x_channel + z * n.x_0 + y * n.x_1 + start[2] * n.x_2;
                if (n.spread) {
                    for (i64 lane = 0; lane < lanes; ++lane)
                        for (i64 k = low; k < high; ++k) to[k * LANES + lane] = row[lane * n.x_lane + k * n.x_2];
                    continue;
                }
                filled<float>(to, low, 0.0f);
                if (n.x_2 == 1) for (i64 k = low; k < high; ++k) to[k] = row[k];
                else for (i64 k = low; k < high; ++k) to[k] = row[k * n.x_2];
                filled<float>(to + high, n.slab_2 - high, 0.0f);
            }
}

// Memory of a call: sums, and behind them a slab.
static float* fresh(const i64 sums, const i64 slab, void** const raw) {
    *raw = __builtin_malloc((sums + slab) * sizeof(float) + 64);
    return (float*)(((unsigned long long)*raw + 63) / 64 * 64);
}
"""
)
_OPENING = r"""
}
extern "C" void NAME(void* const* const a, const i64 first, const i64 last) {
    using namespace n_NAME;
    const float* const x = (const float*)a[0];
    const float* const b = (const float*)a[1];
    float* const y = (float*)a[2];
    float* const ready = (float*)a[3];
    const i64* const t = (const i64*)a[4];
    const Numbers& n = *(const Numbers*)t;
"""

OF_IMAGES = (
    "namespace n_NAME {\n" + _struct("Numbers", IMAGES) + _struct("Share", SHARE) + _PRODUCTS + _OPENING
    + r"""
    const i64 plane = n.slab_0 * n.slab_1 * n.slab_2 * (n.spread ? LANES : 1);
    const i64 size = (n.most_rows + ROWS) * LANES;
    void* raw;
    float* const sums = fresh(PAIRED * size, n.direct ? 0 : n.images * n.channels * plane, &raw);
    float* const slab = sums + PAIRED * size;
    const Share* const shares = (const Share*)(t + n.first_share);
    for (i64 part = first; part < last; ++part) {
        if (part < n.prepared) {
            const Share& s = shares[part % n.shares];
            const i64 inner = part / n.shares % n.inners, outer = part / n.shares / n.inners;
            float* const to = ready + s.packed + (outer * n.inners + inner) * s.terms * LANES;
            const i64 lanes = present(n.lanes, n.spread ? outer : inner);
            if (packed(to, b + outer * n.b_outer + inner * n.b_inner, t + s.factors, s.terms, lanes, n.b_lane))
                *(i64*)a[5] = 1;
            continue;
        }
        const i64 piece = (part - n.prepared) % n.pieces, outer = (part - n.prepared) / n.pieces % n.outers;
        const i64 begin = n.inners * piece / n.pieces, end = n.inners * (piece + 1) / n.pieces;
        const i64 number = (part - n.prepared) / n.pieces / n.outers;
        const i64 chunk = number % n.chunks, image = number / n.chunks * n.images;
        const i64 images = n.batch - image < n.images ? n.batch - image : n.images;
        const i64 start[3] = {n.start_0 + chunk * n.move_0, n.start_1 + chunk * n.move_1, n.start_2};
        const float* const from = x + image * n.x_image + outer * n.x_outer;
        const float* looked = slab;
        if (n.direct) looked = from + start[0] * n.x_0 + start[1] * n.x_1 + start[2] * n.x_2;
        else
            for (i64 i = 0; i < images; ++i)
                copied(slab + i * n.channels * plane, from + i * n.x_image, n, n.channels, start,
                       present(n.lanes, outer));
        for (i64 each = 0; each < n.shares; ++each) {
            const Share& s = shares[each];
            const i64 count = images * (chunk == n.chunks - 1 ? s.last_positions : s.positions);
            if (!count) continue;
            for (i64 inner = begin, some; inner < end; inner += some) {
                some = n.spread || end - inner < PAIRED ? 1 : PAIRED;
                const float* const w = ready + s.packed + (outer * n.inners + inner) * s.terms * LANES;
                i64 k = 0;
                do {
                    const i64 terms = s.terms - k < TERMS ? s.terms - k : TERMS;
                    added(n.spread, looked, t + s.rows, count, t + s.columns + k, terms, w + k * LANES, s.terms * LANES,
                          sums, size, some, !k);
                    k += TERMS;
                } while (k < s.terms);
                float* const to = y + image * n.y_image + chunk * n.y_move + outer * n.y_outer;
                for (i64 i = 0; i < some; ++i)
                    stored(to + (inner + i) * n.y_inner, sums + i * size, t + s.made, count,
                           present(n.lanes, n.spread ? outer : inner + i), n.y_lane);
            }
        }
    }
    __builtin_free(raw);
}
"""
)
"""The function of results and of images' gradients. a: image, weights, result, memory of packed weights, numbers, and
an Int64 that is set to 1 where a weight is not finite."""

OF_WEIGHTS = (
    "namespace n_NAME {\n" + _struct("Numbers", WEIGHTS) + _PRODUCTS + _OPENING
    + r"""
    const i64 size = (n.most_rows + ROWS) * LANES, width = (n.inners + n.pieces - 1) / n.pieces;
    const i64 plane = n.slab_0 * n.slab_1 * n.slab_2 * (n.spread ? LANES : 1);
    void* raw;
    float* const sums = fresh(size * width, n.direct ? 0 : n.images * n.channels * plane, &raw);
    float* const slab = sums + size * width;
    const i64 start[3] = {n.start_0, n.start_1, n.start_2};
    for (i64 part = first; part < last; ++part) {
        if (part < n.prepared) {
            const i64 image = part % n.batch, inner = part / n.batch % n.inners, outer = part / n.batch / n.inners;
            const float* const from = b + image * n.b_image + outer * n.b_outer + inner * n.b_inner;
            const i64 lanes = present(n.lanes, n.spread ? outer : inner);
            packed(ready + part * n.positions * LANES, from, t + n.factors, n.positions, lanes, n.b_lane);
            continue;
        }
        const i64 number = part - n.prepared;
        const i64 piece = number % n.pieces, block = number / n.pieces % n.blocks, outer = number / n.pieces / n.blocks;
        const i64 begin = n.inners * piece / n.pieces, end = n.inners * (piece + 1) / n.pieces;
        const i64 channel = block * n.channels;
        const i64 channels = n.all_channels - channel < n.channels ? n.all_channels - channel : n.channels;
        const i64 count = channels * n.window;
        for (i64 image = 0; image < n.batch; image += n.images) {
            const i64 images = n.batch - image < n.images ? n.batch - image : n.images;
            const float* const from = x + image * n.x_image + outer * n.x_outer + channel * n.x_channel;
            const float* looked = slab;
            if (n.direct) looked = from + start[0] * n.x_0 + start[1] * n.x_1 + start[2] * n.x_2;
            else
                for (i64 i = 0; i < images; ++i)
                    copied(slab + i * n.channels * plane, from + i * n.x_image, n, channels, start,
                           present(n.lanes, outer));
            for (i64 k = 0; k < images * n.positions; k += TERMS) {
                const i64 terms = images * n.positions - k < TERMS ? images * n.positions - k : TERMS;
                for (i64 inner = begin, some; inner < end; inner += some) {
                    some = n.spread || end - inner < PAIRED ? 1 : PAIRED;
                    const i64 place = ((outer * n.inners + inner) * n.batch + image) * n.positions + k;
                    added(n.spread, looked, t + n.rows, count, t + n.columns + k, terms, ready + place * LANES,
                          n.batch * n.positions * LANES, sums + (inner - begin) * size, size, some, !image && !k);
                }
            }
        }
        for (i64 inner = begin; inner < end; ++inner) {
            float* const to = y + outer * n.y_outer + inner * n.y_inner + t[n.made + channel * n.window];
            stored(to, sums + (inner - begin) * size, t + n.made, count, present(n.lanes, n.spread ? outer : inner),
                   n.y_lane);
        }
    }
    __builtin_free(raw);
}
"""
)
"""The function of weights' gradients. a: image, gradient of the result, result, memory of the packed gradient, and
numbers."""
