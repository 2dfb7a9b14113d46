"""This is fused attention on a GPU, backward; the scores are computed again, tile by tile.

With weights P = exp(scale Q K^T + shift - statistics), of which a mask Z (0 or 1 / keep_prob) drops some, and slopes
dP = Z * (dO V^T): dV = (Z * P)^T dO, dS = P (dP - rowsum(dO O)), dQ = scale dS K, dK = scale dS^T Q (Dao et al., arXiv
2205.14135). One kernel in two forms, so that every sum has one owner and the same bits each time:

* of queries: a block holds Q and dO of some queries, goes over K and V and writes dQ. It also writes, for the other
  form, each query's statistics (to the base 2), rowsum(dO O) and the factor of its weights.
* of keys: a block holds K and V of some keys, goes over Q and dO of all queries that look at them and writes dK and dV.

That factor is 1, but for a query to all of whose keys a number as -1e9 is added: beside it the logarithm of the sum is
rounded away, and the weights are added up again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import dtype_of
from mspc.ops.cuda.attention_kernels import Attention, aligned_bytes, first_row
from mspc.ops.cuda.flash_parts import (
    LONG,
    MIDDLE,
    PANEL,
    SHORT,
    bits_bytes,
    can_group,
    column_bytes,
    draw,
    has_tail,
    has_terms,
    has_terms_of_queries,
    padded,
    row_bytes,
    source_of,
    strides_of,
    takes,
    terms_of,
)
from mspc.ops.device import Array, Device, Launch, c_type, in_order
from mspc.ops.nn.attention_kernel import LARGE

# This is the text of the kernel of fused attention's backward pass; see `flash_backward`.


NOTE = 16
"""Bytes that the form of queries notes of each."""

FIRST, SECOND = 1, 2
"""Flags for a form's first and second result."""
NOTES = """
struct alignas(16) Note { float base, mean, share, unused; };  // of a query
"""
BACKWARD = r"""
constexpr int TILE = COLUMNS * PITCH, OWN = ROWS * PITCH, UNROLLED = HELD > 0 ? STEPS : 8;
struct alignas(GROUPED ? 1024 : 16) Buffer {
    E other[TILE], other_slope[TILE]; Note notes[COLUMNS]; Column columns[COLUMNS]; float keyed[COLUMNS];
};
static_assert(sizeof(Buffer) % 16 == 0, "copies are aligned");

// own and other: what the scores are made of; own_slope and other_slope: what the slopes are made of. notes are written
// by the form of queries.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) flash_backward(
    const E* __restrict__ own, const E* __restrict__ own_slope, const E* __restrict__ other,
    const E* __restrict__ other_slope, const E* __restrict__ result, E* __restrict__ first_out,
    E* __restrict__ second_out, const float* __restrict__ statistics, Note* __restrict__ all_notes, TERMS,
    int heads, int group, int queries, int keys, float scale,
    i64 a_b, i64 a_n, i64 a_s, i64 c_b, i64 c_n, i64 c_s, i64 x_b, i64 x_n, i64 x_s, i64 y_b, i64 y_n, i64 y_s,
    i64 r_b, i64 r_n, i64 r_s, i64 u_b, i64 u_n, i64 u_s, i64 v_b, i64 v_n, i64 v_s) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int rows = OF_KEYS ? keys : queries, own_heads = OF_KEYS ? heads / group : heads;
    const int blocks = (rows + ROWS - 1) / ROWS;
    // Blocks with most to do begin first where keys are limited: early keys, late queries.
    const int begin = (OF_KEYS ? blockIdx.x % blocks : blocks - 1 - blockIdx.x % blocks) * ROWS;
    const int n = blockIdx.x / blocks % own_heads, b = blockIdx.x / blocks / own_heads;
    const int inside = (threadIdx.x >> 5) * 16 * BANDS, row = begin + inside, top = row + 16 * BANDS;  // of the warp

    // The columns to go over: from `start` to `stop`, of `count` heads from `head` on.
    const int columns = OF_KEYS ? queries : keys, last = begin + ROWS < rows ? begin + ROWS : rows;
    const int least = OF_KEYS ? begin - high : begin + low, most = OF_KEYS ? last - low : last + high;
    const int start = least > 0 ? least / COLUMNS * COLUMNS : 0, stop = most < columns ? most : columns;
    const int head = OF_KEYS ? n * group : n / group, count = OF_KEYS ? group : 1;
    own += b * a_b + n * a_n + begin * a_s;
    own_slope += b * c_b + n * c_n + begin * c_s;
    other += b * x_b + head * x_n;
    other_slope += b * y_b + head * y_n;
    const F* all_shifts = shift + b * f_b;
    const M* all_masks = mask + b * m_b;
    const H* all_key_shifts = key_shift + b * h_b;
    const i64 first_query = ((i64)b * heads + (OF_KEYS ? head : n)) * queries;
    all_notes += first_query;
    E* held = (E*)memory;
    Buffer* buffers = (Buffer*)(held + 2 * OWN);

    auto copy = [&](Buffer& to, int at, int first) {
        fetch<COLUMNS>(to.other, other + at * x_n + first * x_s, x_s, columns - first);
        fetch<COLUMNS>(to.other_slope, other_slope + at * y_n + first * y_s, y_s, columns - first);
        if (OF_KEYS && threadIdx.x < COLUMNS) {
            const int i = first + threadIdx.x;
            copy_async(to.notes + threadIdx.x, all_notes + (i64)at * queries + i, i < queries);
            to.columns[threadIdx.x] =
                column_of(first_query + (i64)at * queries + i, keys, begin, step, seed, bits_of_weights);
        }
        if (!OF_KEYS && ANY_KEYED && threadIdx.x < COLUMNS) {
            const int key = first + threadIdx.x;
            const F* shift = all_shifts + n * f_n;
            const M* mask = all_masks + n * m_n;
            const H* key_shift = all_key_shifts + n * h_n;
            to.keyed[threadIdx.x] = key < keys ? OF_KEY(key) : 0.0f;
        }
        commit_copies();
    };
    fetch<ROWS>(held, own, a_s, rows - begin);
    fetch<ROWS>(held + OWN, own_slope, c_s, rows - begin);
    commit_copies();
    wait_for_copies();
    settle<ROWS>(held);
    settle<ROWS>(held + OWN);
#if GROUPED
    const Tile own_tile = own_tile_at(held), own_slope_tile = own_tile_at(held + OWN);
#endif

    Note notes[BANDS][2];
    Word words[BANDS][2];
    bool large = false;
    if constexpr (!OF_KEYS) {
        result += b * r_b + n * r_n;
#pragma unroll
        for (int m = 0; m < BANDS; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int i = row + 16 * m + 8 * h + g;
                const bool there = i < queries;
                float mean = 0;
                for (int at = EACH * t; there && at < DEPTH; at += 4 * EACH) {
                    const Pack<E, EACH> x = *(const Pack<E, EACH>*)(own_slope + (i - begin) * c_s + at);
                    const Pack<E, EACH> y = *(const Pack<E, EACH>*)(result + i * r_s + at);
#pragma unroll
                    for (int e = 0; e < EACH; ++e) mean = fmaf(wide(x.at[e]), wide(y.at[e]), mean);
                }
                mean += __shfl_xor_sync(0xffffffffu, mean, 1);
                mean += __shfl_xor_sync(0xffffffffu, mean, 2);
                const float known = there ? statistics[first_query + i] : 0.0f;
                large = large || (known != -INFINITE && (known > LARGE || known < -LARGE));
                notes[m][h] = {known == -INFINITE ? 0.0f : known * LOG2_E, mean, 1.0f, 0.0f};
                words[m][h] = word_of(first_query + i, keys, step, seed);
            }
    }

    float sum[BANDS][OUTPUTS][4], sum_slope[BANDS][OUTPUTS][4], weights[BANDS][2];
#pragma unroll
    for (int m = 0; m < BANDS; ++m) {
        weights[m][0] = weights[m][1] = 0;
#pragma unroll
        for (int j = 0; j < OUTPUTS; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[m][j][e] = sum_slope[m][j][e] = 0;
    }
    Part kept[HELD > 0 ? BANDS : 1][STEPS], kept_slope[HELD > 1 ? BANDS : 1][STEPS];
    const float factor = scale * LOG2_E;
    // Slopes and their products for WIDTH columns of a tile that begins at `first`, behind those that are skipped.
    int pass = 1;
    auto look = [&](auto width, int first, int skipped, int at_head, const Buffer& tile) {
        constexpr int WIDTH = decltype(width)::value;  // without `if constexpr`: nvcc 13 then loses what is captured
        const int here = first + skipped;
        float s[BANDS][WIDTH / 8][4], d[BANDS][WIDTH / 8][4];
#if GROUPED
        const Tile x = ahead(tile_at(tile.other), skipped * 128), y = ahead(tile_at(tile.other_slope), skipped * 128);
        begin_products();
        over_depth<COLUMNS>(s[0], own_tile, x);
        if (SUMS & 1) over_depth<COLUMNS>(d[0], own_slope_tile, y);
        end_products();
        made(s[0]);
        if (SUMS & 1) made(d[0]);
#else
#pragma unroll
        for (int m = 0; m < BANDS; ++m)
#pragma unroll
            for (int j = 0; j < WIDTH / 8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) s[m][j][e] = d[m][j][e] = 0;
#pragma unroll UNROLLED
        for (int step = 0; step < STEPS; ++step) {
            Part a[BANDS], c[BANDS];
#pragma unroll
            for (int m = 0; m < BANDS; ++m) {
                const E* at = held + (inside + 16 * m) * PITCH + of_a(lane) + STEP * step;
                a[m] = HELD > 0 ? kept[m][step] : load_matrices(at);
                c[m] = HELD > 1 ? kept_slope[m][step] : load_matrices(at + OWN);
            }
#pragma unroll
            for (int j = 0; j < WIDTH / 8; j += 2) {
                const int at = (skipped + 8 * j) * PITCH + of_columns(lane) + STEP * step;
                const Part x = ready(load_matrices(tile.other + at));
                const Part y = ready(load_matrices(tile.other_slope + at));
#pragma unroll
                for (int m = 0; m < BANDS; ++m) {
                    multiply(s[m][j], a[m], x.at[0], x.at[1]);
                    multiply(s[m][j + 1], a[m], x.at[2], x.at[3]);
                    if (SUMS & 1) {
                        multiply(d[m][j], c[m], y.at[0], y.at[1]);
                        multiply(d[m][j + 1], c[m], y.at[2], y.at[3]);
                    }
                }
            }
        }
#endif

        const F* shift = all_shifts + (OF_KEYS ? at_head : n) * f_n;
        const M* mask = all_masks + (OF_KEYS ? at_head : n) * m_n;
        const H* key_shift = all_key_shifts + (OF_KEYS ? at_head : n) * h_n;
        float own_keyed[BANDS][2];  // of own rows that are keys
#pragma unroll
        for (int m = 0; m < BANDS; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int key = row + 16 * m + 8 * h + g;
                own_keyed[m][h] = 0;
                if (OF_KEYS && ANY_KEYED)
                    if (key < keys) own_keyed[m][h] = OF_KEY(key);
            }
        // Scores, to the base 2 and less what is known of the query's sum: last where a number of keys is added, which
        // may be so large, as the sum is then, that scores are rounded away beside it as they were in the forward pass.
        constexpr bool LAST = (SHIFTED & KEYED) != 0;
#pragma unroll
        for (int j = 0; j < WIDTH / 8; ++j)
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                const int column = skipped + 8 * j + 2 * t + odd;
                const float keyed = !OF_KEYS && ANY_KEYED ? tile.keyed[column] : 0.0f;
                const float known = OF_KEYS ? tile.notes[column].base : 0.0f;
#pragma unroll
                for (int m = 0; m < BANDS; ++m)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const int mine = row + 16 * m + 8 * h + g;
                        const int i = OF_KEYS ? first + column : mine, key = OF_KEYS ? mine : first + column;
                        const float base = OF_KEYS ? known : notes[m][h].base;
                        float more = LAST ? 0.0f : -base;
                        if (ANY_KEYED) more += OF_KEYS ? own_keyed[m][h] : keyed;
                        float& score = s[m][j][2 * h + odd];
                        score = fmaf(score, factor, more);
                        if ((SHIFTED | MASKED) & ~KEYED)
                            if (i < queries && key < keys) score += OF_QUERY(i, key);
                        if (LAST) score -= base;
                    }
            }
        if (OF_KEYS
                ? top > keys || here + WIDTH > queries || top > here + high + 1 || row < here + WIDTH - 1 + low
                : here + WIDTH > keys || here + WIDTH > row + high + 1 || here < top - 1 + low)
#pragma unroll
            for (int m = 0; m < BANDS; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int mine = row + 16 * m + 8 * (e >> 1) + g;
#pragma unroll
                    for (int j = 0; j < WIDTH / 8; ++j) {
                        const int other = here + 8 * j + 2 * t + (e & 1);
                        const int i = OF_KEYS ? other : mine, key = OF_KEYS ? mine : other;
                        if (key >= keys || i >= queries || key > i + high || key < i + low)
                            s[m][j][e] = -INFINITE;
                    }
                }
        Bits bits[BANDS][2];
        decltype(window_of<WIDTH>(words[0][0], 0, bits_of_weights)) windows[BANDS][2];
#pragma unroll
        for (int m = 0; m < BANDS; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                if (!OF_KEYS) windows[m][h] = window_of<WIDTH>(words[m][h], here + 2 * t, bits_of_weights);
#pragma unroll
        for (int j = 0; j < WIDTH / 8; ++j)
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                const int column = skipped + 8 * j + 2 * t + odd;
                Note note;
                if (OF_KEYS) note = tile.notes[column];
#pragma unroll
                for (int m = 0; m < BANDS; ++m)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        if (OF_KEYS && odd + h == 0)
                            bits[m][0] = drawn_of_keys(
                                row + 16 * m + g, inside + 16 * m + g, tile.columns + column, g & 1);
                        if (!OF_KEYS && j % 2 + odd == 0) bits[m][h] = drawn(windows[m][h], 8 * j);
                        const int e = 2 * h + odd;
                        if (!OF_KEYS) note = notes[m][h];
                        float weight = power_of_2(s[m][j][e]);
                        if (SHIFTED) {
                            if (!OF_KEYS && pass == 0) weights[m][h] += weight;
                            weight *= note.share;
                        }
                        const bool stay =
                            OF_KEYS ? stays(bits[m][0], odd, h) : stays(bits[m][h], j % 2, odd);
                        s[m][j][e] = stay ? weight : 0.0f;
                        d[m][j][e] = weight * ((stay ? d[m][j][e] * KEPT_FACTOR : 0.0f) - note.mean);
                    }
            }
        if (SHIFTED && !OF_KEYS && pass == 0) return;

#if GROUPED
        Part a[WIDTH / 16], c[WIDTH / 16];
        as_parts(a, d[0]);
        as_parts(c, s[0]);
        begin_products();
        if (SUMS & 1) over_rows<COLUMNS>(sum[0], a, x);
        if (SUMS & 2) over_rows<COLUMNS>(sum_slope[0], c, y);
        end_products();
        if (SUMS & 1) made(sum[0]);
        if (SUMS & 2) made(sum_slope[0]);
#else
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j += 2) {
            if (SUMS & 1) accumulate(sum, d, j, tile.other + (skipped + 8 * j) * PITCH, lane);
            if (SUMS & 2) accumulate(sum_slope, s, j, tile.other_slope + (skipped + 8 * j) * PITCH, lane);
        }
#endif
    };
    // A first pass adds up the weights where their sum is not known well enough.
    if constexpr (SHIFTED && !OF_KEYS) pass = __syncthreads_or(large) ? 0 : 1;
    for (; pass < (SUMS != 0 ? 2 : 1); ++pass) {
        if (start < stop) copy(buffers[0], 0, start);
        wait_for_copies();
        SHOW_COPIES;
        __syncthreads();
#pragma unroll
        for (int m = 0; m < BANDS; ++m)
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const E* at = held + (inside + 16 * m) * PITCH + of_a(lane) + STEP * step;
                if constexpr (HELD > 0) kept[m][step] = load_matrices(at);
                if constexpr (HELD > 1) kept_slope[m][step] = load_matrices(at + OWN);
            }
        int buffer = 0, done = 0;
        bool begun = false;
        for (int first = start; first < stop && done < count; buffer ^= 1) {
            const Buffer& tile = buffers[buffer];
            const int here = first, at_head = head + done;
            first += COLUMNS;
            if (first >= stop) first = start, ++done;
            if (done == count) first = stop;
            if (begun) {
                wait_for_copies();
                SHOW_COPIES;
                __syncthreads();  // this tile is there, and nobody reads the other buffer any more
            }
            begun = true;
            if (first < stop) copy(buffers[buffer ^ 1], done, first);
            // The columns of this tile that rows of this warp, or of all that multiply together, meet; a few at a time
            // in a half empty tile.
            const int own_begin = GROUPED ? begin + first_of_group() : row, own_end = GROUPED ? own_begin + 64 : top;
            const int from = OF_KEYS ? own_begin - high : own_begin + low;
            const int until = OF_KEYS ? own_end - low : own_end + high;
            const int skipped = from > here ? (from - here) / FEW * FEW : 0;
            const int end = min(min(until, stop), here + COLUMNS) - here;
            if (own_begin >= rows || skipped >= end) continue;
            if (!TAIL || end - skipped > COLUMNS / 2) look(Width<COLUMNS>(), here, 0, at_head, tile);
            else
                for (int at = skipped; at < end; at += FEW) look(Width<FEW>(), here, at, at_head, tile);
        }
        if (SHIFTED && !OF_KEYS && pass == 0) {
#pragma unroll
            for (int m = 0; m < BANDS; ++m)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    float all = weights[m][h];
                    all += __shfl_xor_sync(0xffffffffu, all, 1);
                    all += __shfl_xor_sync(0xffffffffu, all, 2);
                    const float base = notes[m][h].base;
                    const bool known = base <= LARGE * LOG2_E && base >= -LARGE * LOG2_E;
                    notes[m][h].share = known || all == 0 ? 1.0f : 1 / all;
                }
            __syncthreads();
        }
    }

    first_out += b * u_b + n * u_n;
    second_out += b * v_b + n * v_n;
#pragma unroll
    for (int m = 0; m < BANDS; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int i = row + 16 * m + 8 * h + g;
            if (i >= rows) continue;
            if constexpr (SUMS & 1) store(first_out + i * u_s, sum[m], h, t, scale);
            if constexpr (SUMS & 2) store(second_out + i * v_s, sum_slope[m], h, t, KEPT_FACTOR);
            if (!OF_KEYS && t == 0) all_notes[i] = notes[m][h];
        }
}
"""


@dataclass(frozen=True, slots=True)
class BackwardTiles:
    """How one form of the kernel divides its work.

    warps: of a block. bands: of 16 own rows, that a warp holds. columns: of a tile of the others, a multiple of 16 and
    no more than threads of a block. held: how many of its two matrices a warp keeps in registers; the others are read
    from shared memory. blocks: that a multiprocessor should hold at once, which limits the registers. grouped: whether
    the warps, fours of one band each, multiply together (`flash_groups`); columns is 64 or 32 then, and held 0.
    """

    warps: int
    bands: int
    columns: int
    held: int
    blocks: int
    grouped: bool = False

    def source(self, device: Device, attention: Attention, of_keys: bool, sums: int) -> str:
        columns = attention.shape.queries if of_keys else attention.shape.keys
        sizes = {
            "WARPS": self.warps, "BANDS": self.bands, "COLUMNS": self.columns, "HELD": self.held,
            "BLOCKS": self.blocks, "OF_KEYS": int(of_keys), "SUMS": sums, "LARGE": LARGE,
            "GROUPED": int(self.grouped), "SHARED": self.shared(attention),
            "TAIL": int(has_tail(attention, columns, self.columns)),
        }  # fmt: skip
        return source_of(device, attention, NOTES, BACKWARD, **sizes)

    def shared(self, attention: Attention) -> int:
        """Return the bytes of shared memory: own rows, and two buffers with notes, words and terms of the columns."""
        row = row_bytes(attention, self.grouped)
        buffer = self.columns * (2 * row + NOTE + column_bytes(attention, self.rows()) + 4)
        aligned = 1024 if self.grouped else 16
        return 2 * self.rows() * row + 2 * (-(-buffer // aligned) * aligned)

    def rows(self) -> int:
        return 16 * self.bands * self.warps


def tiles_of_queries(device: Device, attention: Attention) -> BackwardTiles:
    """Return how the form of queries divides its work, by the times of tests/gpu/test_flash_gpu.py."""
    row, terms = row_bytes(attention), has_terms(attention)
    if can_group(device, attention):
        blocks = 2 if padded(attention.shape.depth) > PANEL else 3 if terms or attention.scores.draws else 4
        return BackwardTiles(4, 1, PANEL // 2 if has_terms_of_queries(attention) else PANEL, 0, blocks, grouped=True)
    if row > MIDDLE:
        return _deep(attention)
    if attention.operands[0].itemsize > 2:
        return BackwardTiles(4, 1, 32, 0, 3) if terms or not device.tf32 else BackwardTiles(4, 2, 32, 1, 2)
    if row > SHORT:
        return BackwardTiles(4, 1, 32, 1, 2)
    return BackwardTiles(4, 1, 32, 0, 4) if terms else BackwardTiles(4, 1, 64, 2, 2)


def tiles_of_keys(device: Device, attention: Attention) -> BackwardTiles:
    """Return how the form of keys divides its work; many terms take registers."""
    row, by_query = row_bytes(attention), has_terms_of_queries(attention)
    if can_group(device, attention):
        blocks = 2 if padded(attention.shape.depth) > PANEL else 3
        return BackwardTiles(4, 1, PANEL // 2 if by_query else PANEL, 0, blocks, grouped=True)
    if row > MIDDLE:
        return _deep(attention)
    if attention.operands[0].itemsize > 2:
        return BackwardTiles(4, 1, 32, 0, 3) if by_query or not device.tf32 else BackwardTiles(4, 2, 32, 0, 2)
    if row > SHORT:
        return BackwardTiles(4, 1, 32, 0, 2)
    return BackwardTiles(4, 1, 32, 1, 3) if by_query else BackwardTiles(4, 1, 64, 1, 2)


def _deep(attention: Attention) -> BackwardTiles:
    """Return True for long rows, of which few fit into shared memory."""
    if row_bytes(attention) > LONG:
        return BackwardTiles(2, 1, 16, 0, 1)
    return BackwardTiles(8, 1, 32, 0, 1) if padded(attention.shape.depth) <= 128 else BackwardTiles(4, 1, 16, 0, 2)


def flash_backward(
    device: Device, attention: Attention, result: Array, grads: Sequence[Array],
    of_queries: BackwardTiles | None = None, of_keys: BackwardTiles | None = None,
) -> Launch | None:  # fmt: skip
    """Fill the gradients of query, key and value (by head); None if the kernels do not take the operands."""
    q, k, v, dout = attention.operands
    dq, dk, dv = grads
    if not takes(attention, [q, k, v, dout, result, *grads]):
        return None
    of_queries, of_keys = of_queries or tiles_of_queries(device, attention), of_keys or tiles_of_keys(device, attention)
    _, *scratch = _scratch(device, attention)
    arrays = (q, dout, k, v, result, dq, dq)
    launches = [_form(device, attention, scratch, of_queries, arrays, of_keys=False, sums=FIRST)]
    # Sums of both for deep heads do not fit into registers.
    for sums in (FIRST | SECOND,) if padded(attention.shape.depth) <= 128 else (FIRST, SECOND):
        arrays = (k, v, q, dout, result, dk, dv)
        launches.append(_form(device, attention, scratch, of_keys, arrays, of_keys=True, sums=sums))
    return in_order(draw(device, attention, scratch[1]), *launches)


def notes_of(device: Device, attention: Attention, result: Array, ahead: int) -> tuple[Array, Array, Array, Launch]:
    """Return (`ahead` bytes, the notes of queries, the bits of weights, all in scratch memory, the launch that fills
    the latter two); `takes` must hold."""
    own, *scratch = _scratch(device, attention, ahead)
    q, k, v, dout = attention.operands
    tiles, arrays = tiles_of_queries(device, attention), (q, dout, k, v, result, q, q)
    noting = _form(device, attention, scratch, tiles, arrays, of_keys=False, sums=0)
    drawing = draw(device, attention, scratch[1])

    def launch() -> None:
        drawing()
        noting()

    return own, *scratch, launch


def _scratch(device: Device, attention: Attention, ahead: int = 0) -> tuple[Array, Array, Array]:
    """Return scratch memory: `ahead` bytes, the notes of queries, and the bits of weights if these are drawn before."""
    shape, begin = attention.shape, aligned_bytes(ahead)
    end = begin + NOTE * shape.batch * shape.heads * shape.queries
    memory = device.scratch(end + max(4, bits_bytes(attention)))
    return memory[:ahead], memory[begin:end].view(np.float32), memory[end:]


def _form(
    device: Device, attention: Attention, scratch: Sequence[Array], tiles: BackwardTiles,
    arrays: Sequence[Array], *, of_keys: bool, sums: int,
) -> Launch:  # fmt: skip
    """Return one form of the kernel on its arrays, in the order of its arguments; it writes FIRST and SECOND of the
    last two as `sums` says, or notes alone."""
    shape, (notes, bits) = attention.shape, scratch
    heads, rows = (shape.key_heads, shape.keys) if of_keys else (shape.heads, shape.queries)
    kernel = device.kernel(tiles.source(device, attention, of_keys, sums), "flash_backward")
    grid = shape.batch * heads * math.ceil(rows / tiles.rows())
    arguments: list[Any] = [
        *map(first_row, arrays), attention.statistics, notes, *terms_of(device, attention, bits), np.int32(shape.heads),
        np.int32(shape.group), np.int32(shape.queries), np.int32(shape.keys), np.float32(attention.scores.scale),
        *strides_of(*arrays),
    ]  # fmt: skip

    return partial(kernel, grid, 32 * tiles.warps, arguments, tiles.shared(attention))


# This is the gradient of the addend of the scores of fused attention on a GPU: the gradients of the scores, summed over
# batch and heads as far as the addend is the same for them.
#
# A block owns a tile of queries and keys and loops over the summed dimensions, so that the sum is in registers and has
# the same bits each time; the gradients of the scores of a batch are never in memory. If there are few tiles and much
# to sum, several blocks sum a part each for one tile, and their sums are added up at last. See `flash_backward`.


SHIFT = r"""
constexpr bool LAST = (SHIFTED & KEYED) != 0;
constexpr int TILES = COLUMNS / 8, OWN = ROWS * PITCH, OTHER = COLUMNS * PITCH;
struct alignas(GROUPED ? 1024 : 16) Buffer {
    E query[OWN], slope[OWN], key[OTHER], value[OTHER]; Note notes[ROWS]; float keyed[COLUMNS];
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) flash_shift(
    const E* __restrict__ q, const E* __restrict__ slopes, const E* __restrict__ k, const E* __restrict__ v,
    G* __restrict__ out, const Note* __restrict__ notes, TERMS,
    int heads, int group, int queries, int keys, float scale, int batch, int out_batch, int out_heads, int parts,
    i64 a_b, i64 a_n, i64 a_s, i64 c_b, i64 c_n, i64 c_s, i64 x_b, i64 x_n, i64 x_s, i64 y_b, i64 y_n, i64 y_s) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int row_blocks = (queries + ROWS - 1) / ROWS, column_blocks = (keys + COLUMNS - 1) / COLUMNS;
    int place = blockIdx.x;
    const int here = place % column_blocks * COLUMNS; place /= column_blocks;
    const int begin = place % row_blocks * ROWS; place /= row_blocks;
    const int own_head = place % out_heads; place /= out_heads;
    const int own_batch = place % out_batch, part = place / out_batch;
    const int inside = (threadIdx.x >> 5) * 16, row = begin + inside;
    const int each = out_heads > 1 ? 1 : heads, all = each * (out_batch > 1 ? 1 : batch);
    const int start = (int)((i64)all * part / parts), count = (int)((i64)all * (part + 1) / parts);
    const float factor = scale * LOG2_E;
    Buffer* buffers = (Buffer*)memory;

    const F* all_shifts = shift;
    const M* all_masks = mask;
    const H* all_key_shifts = key_shift;
    auto copy = [&](Buffer& to, int member) {
        const int n = out_heads > 1 ? own_head : member % each, b = out_batch > 1 ? own_batch : member / each;
        fetch<ROWS>(to.query, q + b * a_b + n * a_n + begin * a_s, a_s, queries - begin);
        fetch<ROWS>(to.slope, slopes + b * c_b + n * c_n + begin * c_s, c_s, queries - begin);
        fetch<COLUMNS>(to.key, k + b * x_b + n / group * x_n + here * x_s, x_s, keys - here);
        fetch<COLUMNS>(to.value, v + b * y_b + n / group * y_n + here * y_s, y_s, keys - here);
        if (threadIdx.x < ROWS) {
            const int i = begin + threadIdx.x;
            copy_async(to.notes + threadIdx.x, notes + ((i64)b * heads + n) * queries + i, i < queries);
        }
        if (ANY_KEYED && threadIdx.x < COLUMNS) {
            const int key = here + threadIdx.x;
            const F* shift = all_shifts + b * f_b + n * f_n;
            const M* mask = all_masks + b * m_b + n * m_n;
            const H* key_shift = all_key_shifts + b * h_b + n * h_n;
            to.keyed[threadIdx.x] = key < keys ? OF_KEY(key) : 0.0f;
        }
        commit_copies();
    };

    float sum[TILES][4];
#pragma unroll
    for (int j = 0; j < TILES; ++j) sum[j][0] = sum[j][1] = sum[j][2] = sum[j][3] = 0;
    // Does no query of this tile look at any key?
    const bool none = here >= begin + ROWS + high || here + COLUMNS <= begin + low;
    if (!none) copy(buffers[start & 1], start);
    const bool border = here + COLUMNS > keys || begin + ROWS > queries || here + COLUMNS > row + high + 1
        || here < row + 15 + low;
    for (int member = start; !none && member < count; ++member) {
        const Buffer& tile = buffers[member & 1];
        wait_for_copies();
        SHOW_COPIES;
        __syncthreads();  // this tile is there, and nobody reads the other buffer any more
        if (member + 1 < count) copy(buffers[~member & 1], member + 1);
        const int n = out_heads > 1 ? own_head : member % each, b = out_batch > 1 ? own_batch : member / each;

        float s[1][TILES][4], d[1][TILES][4];
#if GROUPED
        begin_products();
        over_depth<COLUMNS>(s[0], own_tile_at(tile.query), tile_at(tile.key));
        over_depth<COLUMNS>(d[0], own_tile_at(tile.slope), tile_at(tile.value));
        end_products();
        made(s[0]);
        made(d[0]);
#else
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[0][j][e] = d[0][j][e] = 0;
#pragma unroll 8
        for (int step = 0; step < STEPS; ++step) {
            const int own = inside * PITCH + of_a(lane) + STEP * step;
            const Part a = ready(load_matrices(tile.query + own)), c = ready(load_matrices(tile.slope + own));
#pragma unroll
            for (int j = 0; j < TILES; j += 2) {
                const int at = 8 * j * PITCH + of_columns(lane) + STEP * step;
                const Part x = ready(load_matrices(tile.key + at)), y = ready(load_matrices(tile.value + at));
                multiply(s[0][j], a, x.at[0], x.at[1]);
                multiply(s[0][j + 1], a, x.at[2], x.at[3]);
                multiply(d[0][j], c, y.at[0], y.at[1]);
                multiply(d[0][j + 1], c, y.at[2], y.at[3]);
            }
        }
#endif

        const F* shift = all_shifts + b * f_b + n * f_n;
        const M* mask = all_masks + b * m_b + n * m_n;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int i = row + 8 * h + g;
            const Note note = tile.notes[inside + 8 * h + g];
            const Word word = word_of(((i64)b * heads + n) * queries + i, keys, step, seed);
            const auto window = window_of<COLUMNS>(word, here + 2 * t, bits_of_weights);
#pragma unroll
            for (int j = 0; j < TILES; ++j)
#pragma unroll
                for (int e = 2 * h; e < 2 * h + 2; ++e) {
                    const int column = 8 * j + 2 * t + (e & 1), key = here + column;
                    float& score = s[0][j][e];
                    score = fmaf(score, factor, LAST ? tile.keyed[column] : -note.base);  // see `flash_backward`
                    if (ANY_KEYED && !LAST) score += tile.keyed[column];
                    if ((SHIFTED | MASKED) & ~KEYED)
                        if (i < queries && key < keys) score += OF_QUERY(i, key);
                    if (LAST) score -= note.base;
                }
            if (border)
#pragma unroll
                for (int j = 0; j < TILES; ++j)
#pragma unroll
                    for (int e = 2 * h; e < 2 * h + 2; ++e) {
                        const int key = here + 8 * j + 2 * t + (e & 1);
                        if (key >= keys || i >= queries || key > i + high || key < i + low) s[0][j][e] = -INFINITE;
                    }
            Bits bits;
#pragma unroll
            for (int j = 0; j < TILES; ++j)
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {
                    if (j % 2 + odd == 0) bits = drawn(window, 8 * j);
                    const int e = 2 * h + odd;
                    const float weight = power_of_2(s[0][j][e]) * note.share;
                    const float slope = stays(bits, j % 2, odd) ? d[0][j][e] * KEPT_FACTOR : 0.0f;
                    sum[j][e] = fmaf(weight, slope - note.mean, sum[j][e]);
                }
        }
    }

    out += (((i64)part * out_batch + own_batch) * out_heads + own_head) * queries * keys;
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int i = row + 8 * (e >> 1) + g, key = here + 8 * j + 2 * t + (e & 1);
            if (i < queries && key < keys) out[(i64)i * keys + key] = narrow<G>(sum[j][e]);
        }
}
"""


TOTAL = """
typedef long long i64;
// The sum of so many parts, one behind the other.
extern "C" __global__ void shift_total(const float* from, G* to, i64 count, int parts) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    float total = 0;
    for (int part = 0; part < parts; ++part) total += from[part * count + at];
    to[at] = narrow<G>(total);
}
"""
THREADS = 256
FEWEST = 2
"""Gradients of scores that a block sums: less are not worth the way through memory."""


def _tile(attention: Attention, grouped: bool) -> tuple[int, int]:
    if grouped:
        return 4, PANEL
    row = row_bytes(attention)
    if row > MIDDLE:
        return (2, 32) if row <= LONG else (1, 16)
    return (4, 64) if attention.operands[0].itemsize == 2 else (4, 32)


def _shared(attention: Attention, grouped: bool) -> int:
    """Return the bytes of shared memory: two buffers of rows and columns, with their notes and terms."""
    warps, columns = _tile(attention, grouped)
    buffer = 2 * row_bytes(attention, grouped) * (16 * warps + columns) + NOTE * 16 * warps + 4 * columns
    aligned = 1024 if grouped else 16
    return 2 * (-(-buffer // aligned) * aligned)


def _blocks(attention: Attention, grouped: bool) -> int:
    """Return the blocks of a multiprocessor, which limit the registers."""
    return 3 if grouped and padded(attention.shape.depth) == PANEL else 1


def _source(device: Device, attention: Attention, gradient: str) -> str:
    grouped = can_group(device, attention)
    warps, columns = _tile(attention, grouped)
    sizes = {
        "WARPS": warps, "BANDS": 1, "BLOCKS": _blocks(attention, grouped), "COLUMNS": columns,
        "SHARED": _shared(attention, grouped), "GROUPED": int(grouped),
    }  # fmt: skip
    return f"#define G {gradient}\n" + source_of(device, attention, NOTES, SHIFT, **sizes)


def flash_shift(device: Device, attention: Attention, result: Array, out: Array) -> Launch | None:
    """Fill `out`, the gradient of the shift or its sum over batch or heads; `result` is attention_out by head.

    None if the kernels do not take the operands, or `out` is the same for all queries or keys.
    """
    shape, wanted = attention.shape, (1,) * (4 - out.ndim) + tuple(out.shape)
    q, k, v, dout = attention.operands
    if wanted[2:] != (shape.queries, shape.keys) or not takes(attention, [q, k, v, dout, result]):
        return None
    batch, heads = wanted[:2]
    grouped = can_group(device, attention)
    warps, columns = _tile(attention, grouped)
    grid = batch * heads * math.ceil(shape.queries / (16 * warps)) * math.ceil(shape.keys / columns)
    summed = (shape.batch if batch == 1 else 1) * (shape.heads if heads == 1 else 1)
    parts = max(1, min(summed // FEWEST, device.multiprocessors * _blocks(attention, grouped) // grid))
    apart = parts > 1
    room, notes, bits, noting = notes_of(device, attention, result, 4 * parts * out.size * apart)
    element = c_type(dtype_of(out.dtype))
    kernel = device.kernel(_source(device, attention, "float" if apart else element), "flash_shift")
    target = room.view(np.float32) if apart else out
    total = device.kernel(f"#define G {element}\n{TOTAL}", "shift_total") if apart else None
    arrays = (q, dout, k, v)
    sizes = (shape.heads, shape.group, shape.queries, shape.keys)
    arguments: list[Any] = [
        *map(first_row, arrays), target, notes, *terms_of(device, attention, bits), *map(np.int32, sizes),
        np.float32(attention.scores.scale), np.int32(shape.batch), np.int32(batch), np.int32(heads), np.int32(parts),
        *strides_of(*arrays),
    ]  # fmt: skip

    def launch() -> None:
        noting()
        kernel(grid * parts, 32 * warps, arguments, _shared(attention, grouped))
        if total is not None:
            total(math.ceil(out.size / THREADS), THREADS, (target, out, np.int64(out.size), np.int32(parts)))

    return launch
