"""This is fused attention of Float16 and BFloat16 on a GPU, backward; the scores are computed again, tile by tile.

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
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ops.cuda.attention import Attention, first_row
from mspc.ops.cuda.flash import macros, strides_of
from mspc.ops.cuda.half_fragments import COMMON, INSTRUCTIONS, has_terms, padded, settings, takes, terms_of
from mspc.ops.device import Array, Device, Launch
from mspc.ops.nn.attention_draws import word_bytes
from mspc.ops.nn.attention_kernel import LARGE

NOTE = 16
"""Bytes that the form of queries notes of each."""

NOTES = """
struct alignas(16) Note { float base, mean, share, unused; };  // of a query
"""
BACKWARD = r"""
constexpr int TILES = COLUMNS / 8, TILE = COLUMNS * PITCH, OWN = ROWS * PITCH;
struct Buffer { E other[TILE], other_slope[TILE]; Note notes[COLUMNS]; Word words[COLUMNS]; float keyed[COLUMNS]; };
static_assert(sizeof(Buffer) % 16 == 0, "copies are aligned");

// own and other: what the scores are made of; own_slope and other_slope: what the slopes are made of. notes are written
// by the form of queries.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) halves_backward(
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
    const int inside = (threadIdx.x >> 5) * 16 * BANDS, row = begin + inside;  // the warp's first

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
            to.words[threadIdx.x] = word_of_row(first_query + (i64)at * queries + i, step, seed);
        }
        if (!OF_KEYS && ANY_KEYED && threadIdx.x < COLUMNS) {
            const int key = first + threadIdx.x;
            const F* shift = all_shifts + n * f_n;
            const M* mask = all_masks + n * m_n;
            to.keyed[threadIdx.x] = key < keys ? OF_KEY(key) : 0.0f;
        }
        commit_copies();
    };
    fetch<ROWS>(held, own, a_s, rows - begin);
    fetch<ROWS>(held + OWN, own_slope, c_s, rows - begin);
    commit_copies();

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
                for (int at = 8 * t; there && at < DEPTH; at += 32) {
                    const Pack<E, 8> x = *(const Pack<E, 8>*)(own_slope + (i - begin) * c_s + at);
                    const Pack<E, 8> y = *(const Pack<E, 8>*)(result + i * r_s + at);
#pragma unroll
                    for (int e = 0; e < 8; ++e) mean = fmaf(wide(x.at[e]), wide(y.at[e]), mean);
                }
                mean += __shfl_xor_sync(0xffffffffu, mean, 1);
                mean += __shfl_xor_sync(0xffffffffu, mean, 2);
                const float known = there ? statistics[first_query + i] : 0.0f;
                large = large || (known != -INFINITE && (known > LARGE || known < -LARGE));
                notes[m][h] = {known == -INFINITE ? 0.0f : known * LOG2_E, mean, 1.0f, 0.0f};
                words[m][h] = word_of_row(first_query + i, step, seed);
            }
    }

    float sum[BANDS][2 * STEPS][4], sum_slope[BANDS][2 * STEPS][4], weights[BANDS][2];
#pragma unroll
    for (int m = 0; m < BANDS; ++m) {
        weights[m][0] = weights[m][1] = 0;
#pragma unroll
        for (int j = 0; j < 2 * STEPS; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[m][j][e] = sum_slope[m][j][e] = 0;
    }
    Part kept[HELD > 0 ? BANDS : 1][STEPS], kept_slope[HELD > 1 ? BANDS : 1][STEPS];
    const float factor = scale * LOG2_E;
    // A first pass adds up the weights where their sum is not known well enough.
    int pass = 1;
    if constexpr (SHIFTED && !OF_KEYS) pass = __syncthreads_or(large) ? 0 : 1;
    for (; pass < (NOTES_ALONE ? 1 : 2); ++pass) {
        if (start < stop) copy(buffers[0], 0, start);
        wait_for_copies();
        __syncthreads();
#pragma unroll
        for (int m = 0; m < BANDS; ++m)
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const E* at = held + (inside + 16 * m) * PITCH + of_a(lane) + 16 * step;
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
                __syncthreads();  // this tile is there, and nobody reads the other buffer any more
            }
            begun = true;
            if (first < stop) copy(buffers[buffer ^ 1], done, first);
            // Does no query of this warp and tile look at any key?
            const int top = row + 16 * BANDS;
            if (OF_KEYS ? row >= here + COLUMNS + high || top <= here + low
                        : here >= top + high || here + COLUMNS <= row + low) continue;

            float s[BANDS][TILES][4], d[BANDS][TILES][4];
#pragma unroll
            for (int m = 0; m < BANDS; ++m)
#pragma unroll
                for (int j = 0; j < TILES; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) s[m][j][e] = d[m][j][e] = 0;
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                Part a[BANDS], c[BANDS];
#pragma unroll
                for (int m = 0; m < BANDS; ++m) {
                    const E* at = held + (inside + 16 * m) * PITCH + of_a(lane) + 16 * step;
                    if constexpr (HELD > 0) a[m] = kept[m][step];
                    else a[m] = load_matrices(at);
                    if constexpr (HELD > 1) c[m] = kept_slope[m][step];
                    else c[m] = load_matrices(at + OWN);
                }
#pragma unroll
                for (int j = 0; j < TILES; j += 2) {
                    const int at = 8 * j * PITCH + of_columns(lane) + 16 * step;
                    const Part x = load_matrices(tile.other + at), y = load_matrices(tile.other_slope + at);
#pragma unroll
                    for (int m = 0; m < BANDS; ++m) {
                        multiply(s[m][j], a[m], x.at[0], x.at[1]);
                        multiply(s[m][j + 1], a[m], x.at[2], x.at[3]);
                        multiply(d[m][j], c[m], y.at[0], y.at[1]);
                        multiply(d[m][j + 1], c[m], y.at[2], y.at[3]);
                    }
                }
            }

            const F* shift = all_shifts + (OF_KEYS ? at_head : n) * f_n;
            const M* mask = all_masks + (OF_KEYS ? at_head : n) * m_n;
            float own_keyed[BANDS][2];  // of own rows that are keys
            Word own_words[BANDS][2];   // which of their weights stay, but for the columns' part
#pragma unroll
            for (int m = 0; m < BANDS; ++m)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int key = row + 16 * m + 8 * h + g;
                    own_keyed[m][h] = 0;
                    own_words[m][h] = OF_KEYS ? word_of_key(key - 8 * h) : words[m][h] + word_of_key(here + 2 * t);
                    if (OF_KEYS && ANY_KEYED)
                        if (key < keys) own_keyed[m][h] = OF_KEY(key);
                }
            const bool border = OF_KEYS
                ? top > keys || here + COLUMNS > queries || top > here + high + 1 || row < here + COLUMNS - 1 + low
                : here + COLUMNS > keys || here + COLUMNS > row + high + 1 || here < top - 1 + low;
            Bits bits[BANDS][2];
#pragma unroll
            for (int j = 0; j < TILES; ++j)
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {
                    const int column = 8 * j + 2 * t + odd;
                    Note note;
                    if constexpr (OF_KEYS) note = tile.notes[column];
                    const float keyed = !OF_KEYS && ANY_KEYED ? tile.keyed[column] : 0.0f;
#pragma unroll
                    for (int m = 0; m < BANDS; ++m)
#pragma unroll
                        for (int h = 0; h < 2; ++h) {
                            if (OF_KEYS && odd + h == 0)
                                bits[m][0] = drawn_of_keys(own_words[m][0], tile.words + column, g & 1);
                            if (!OF_KEYS && j % 2 + odd == 0) bits[m][h] = drawn(own_words[m][h] + word_of_key(8 * j));
                            const int mine = row + 16 * m + 8 * h + g, e = 2 * h + odd;
                            const int i = OF_KEYS ? here + column : mine, key = OF_KEYS ? mine : here + column;
                            if constexpr (!OF_KEYS) note = notes[m][h];
                            float score = fmaf(s[m][j][e], factor, OF_KEYS ? own_keyed[m][h] : keyed);
                            if ((SHIFTED | MASKED) & ~KEYED)
                                if (i < queries && key < keys) score += OF_QUERY(i, key);
                            if (border && (key >= keys || i >= queries || key > i + high || key < i + low))
                                score = -INFINITE;
                            float weight = power_of_2(score - note.base);
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
            if (SHIFTED && !OF_KEYS && pass == 0) continue;

#pragma unroll
            for (int j = 0; j < TILES; j += 2) {
                Part a[BANDS];
#pragma unroll
                for (int m = 0; m < BANDS; ++m) a[m] = as_a(d[m][j], d[m][j + 1]);
                accumulate<BANDS>(sum, a, tile.other + 8 * j * PITCH, lane);
                if constexpr (OF_KEYS) {
#pragma unroll
                    for (int m = 0; m < BANDS; ++m) a[m] = as_a(s[m][j], s[m][j + 1]);
                    accumulate<BANDS>(sum_slope, a, tile.other_slope + 8 * j * PITCH, lane);
                }
            }
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
            if (!NOTES_ALONE) store(first_out + i * u_s, sum[m], h, t, scale);
            if constexpr (OF_KEYS) store(second_out + i * v_s, sum_slope[m], h, t, KEPT_FACTOR);
            else if (t == 0) all_notes[i] = notes[m][h];
        }
}
"""


@dataclass(frozen=True, slots=True)
class HalfGradientTiles:
    """How one form of the kernel divides its work.

    warps: of a block. bands: of 16 own rows, that a warp holds. columns: of a tile of the others, a multiple of 16 and
    no more than threads of a block. held: how many of its two matrices a warp keeps in registers; the others are read
    from shared memory. blocks: that a multiprocessor should hold at once, which limits the registers.
    """

    warps: int
    bands: int
    columns: int
    held: int
    blocks: int

    def source(self, attention: Attention, of_keys: bool, notes_alone: bool = False) -> str:
        sizes = {
            "WARPS": self.warps, "BANDS": self.bands, "COLUMNS": self.columns, "HELD": self.held,
            "BLOCKS": self.blocks, "OF_KEYS": int(of_keys), "NOTES_ALONE": int(notes_alone), "LARGE": LARGE,
            "SHARED": self.shared(attention),
        }  # fmt: skip
        return settings(attention) + macros(**sizes) + INSTRUCTIONS + COMMON + NOTES + BACKWARD

    def shared(self, attention: Attention) -> int:
        """Bytes of shared memory: own rows, and two buffers with notes, words and terms of the columns."""
        pitch = 2 * (padded(attention.shape.depth) + 8)
        buffer = self.columns * (2 * pitch + NOTE + word_bytes(attention.scores.draws) + 4)
        return 2 * self.rows() * pitch + 2 * (-(-buffer // 16) * 16)

    def rows(self) -> int:
        return 16 * self.bands * self.warps


def tiles_of_queries(attention: Attention) -> HalfGradientTiles:
    """How the form of queries divides its work, by the times of tests/gpu/test_half_flash_gpu.py."""
    if padded(attention.shape.depth) > 64:
        return HalfGradientTiles(4, 1, 32, 1, 2)
    return HalfGradientTiles(4, 1, 32, 0, 4) if has_terms(attention) else HalfGradientTiles(4, 1, 64, 2, 2)


def tiles_of_keys(attention: Attention) -> HalfGradientTiles:
    """How the form of keys divides its work; many terms take registers."""
    if padded(attention.shape.depth) > 64:
        return HalfGradientTiles(4, 1, 32, 0, 2)
    terms = (attention.scores.shift, attention.scores.mask)
    by_query = any(term is not None and term.shape[2] > 1 for term in terms)
    return HalfGradientTiles(4, 1, 32, 1, 3) if by_query else HalfGradientTiles(4, 1, 64, 1, 2)


def halves_backward(
    device: Device, attention: Attention, result: Array, grads: Sequence[Array],
    of_queries: HalfGradientTiles | None = None, of_keys: HalfGradientTiles | None = None,
) -> Launch | None:  # fmt: skip
    """Fill the gradients of query, key and value (by head); None where the kernels do not take the operands."""
    q, k, v, dout = attention.operands
    dq, dk, dv = grads
    if not takes(attention, [q, k, v, dout, result, *grads]):
        return None
    of_queries, of_keys = of_queries or tiles_of_queries(attention), of_keys or tiles_of_keys(attention)
    notes = _notes(device, attention)
    first = _form(device, attention, notes, of_queries, (q, dout, k, v, result, dq, dq), of_keys=False)
    second = _form(device, attention, notes, of_keys, (k, v, q, dout, result, dk, dv), of_keys=True)

    def launch() -> None:
        first()
        second()

    return launch


def notes_of(device: Device, attention: Attention, result: Array) -> tuple[Array, Launch]:
    """(what the form of queries notes of each, in scratch memory, and what fills it alone); `takes` must hold."""
    notes = _notes(device, attention)
    q, k, v, dout = attention.operands
    tiles, arrays = tiles_of_queries(attention), (q, dout, k, v, result, q, q)
    return notes, _form(device, attention, notes, tiles, arrays, of_keys=False, notes_alone=True)


def _notes(device: Device, attention: Attention) -> Array:
    shape = attention.shape
    return device.scratch(NOTE * shape.batch * shape.heads * shape.queries).view(np.float32)


def _form(
    device: Device, attention: Attention, notes: Array, tiles: HalfGradientTiles, arrays: Sequence[Array], *,
    of_keys: bool, notes_alone: bool = False,
) -> Launch:  # fmt: skip
    """One form of the kernel on its arrays, in the order of its arguments."""
    shape = attention.shape
    heads, rows = (shape.key_heads, shape.keys) if of_keys else (shape.heads, shape.queries)
    kernel = device.kernel(tiles.source(attention, of_keys, notes_alone), "halves_backward")
    grid = shape.batch * heads * math.ceil(rows / tiles.rows())
    arguments: list[Any] = [
        *map(first_row, arrays), attention.statistics, notes, *terms_of(device, attention), np.int32(shape.heads),
        np.int32(shape.group), np.int32(shape.queries), np.int32(shape.keys), np.float32(attention.scores.scale),
        *strides_of(*arrays),
    ]  # fmt: skip

    def launch() -> None:
        kernel(grid, 32 * tiles.warps, arguments, tiles.shared(attention))

    return launch
