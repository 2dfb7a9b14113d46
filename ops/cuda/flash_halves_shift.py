"""This is the gradient of what is added to the scores of an attention of Float16 or BFloat16 on a GPU: the gradients of
the scores, summed over batch and heads as far as the addend is the same for them.

A block owns a tile of queries and keys and goes over what is summed, so that the sum is in registers and has the same
bits each time; the gradients of the scores of a batch are never in memory. See `flash_halves_gradient`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mspc.ir.types import dtype_of
from mspc.ops.cuda.attention import Attention, first_row
from mspc.ops.cuda.flash import macros, strides_of
from mspc.ops.cuda.flash_halves_gradient import NOTE, NOTES, notes_of
from mspc.ops.cuda.half_fragments import COMMON, INSTRUCTIONS, padded, settings, takes, terms_of
from mspc.ops.device import Array, Device, Launch, c_type

WARPS, COLUMNS = 4, 64
SHIFT = r"""
constexpr int TILES = COLUMNS / 8, OWN = ROWS * PITCH, OTHER = COLUMNS * PITCH;
struct Buffer { E query[OWN], slope[OWN], key[OTHER], value[OTHER]; Note notes[ROWS]; };

extern "C" __global__ void __launch_bounds__(THREADS, 1) halves_shift(
    const E* __restrict__ q, const E* __restrict__ slopes, const E* __restrict__ k, const E* __restrict__ v,
    G* __restrict__ out, const Note* __restrict__ notes, TERMS,
    int heads, int group, int queries, int keys, float scale, int batch, int out_batch, int out_heads,
    i64 a_b, i64 a_n, i64 a_s, i64 c_b, i64 c_n, i64 c_s, i64 x_b, i64 x_n, i64 x_s, i64 y_b, i64 y_n, i64 y_s) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int row_blocks = (queries + ROWS - 1) / ROWS, column_blocks = (keys + COLUMNS - 1) / COLUMNS;
    int place = blockIdx.x;
    const int here = place % column_blocks * COLUMNS; place /= column_blocks;
    const int begin = place % row_blocks * ROWS; place /= row_blocks;
    const int own_head = place % out_heads, own_batch = place / out_heads;
    const int inside = (threadIdx.x >> 5) * 16, row = begin + inside;
    const int each = out_heads > 1 ? 1 : heads, count = each * (out_batch > 1 ? 1 : batch);
    const float factor = scale * LOG2_E;
    Buffer* buffers = (Buffer*)memory;

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
        commit_copies();
    };

    float sum[TILES][4];
#pragma unroll
    for (int j = 0; j < TILES; ++j) sum[j][0] = sum[j][1] = sum[j][2] = sum[j][3] = 0;
    // Does no query of this tile look at any key?
    const bool none = here >= begin + ROWS + high || here + COLUMNS <= begin + low;
    if (!none) copy(buffers[0], 0);
    for (int member = 0; !none && member < count; ++member) {
        const Buffer& tile = buffers[member & 1];
        wait_for_copies();
        __syncthreads();  // this tile is there, and nobody reads the other buffer any more
        if (member + 1 < count) copy(buffers[~member & 1], member + 1);
        const int n = out_heads > 1 ? own_head : member % each, b = out_batch > 1 ? own_batch : member / each;

        float s[1][TILES][4], d[1][TILES][4];
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[0][j][e] = d[0][j][e] = 0;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const int own = inside * PITCH + of_a(lane) + 16 * step;
            const Part a = load_matrices(tile.query + own), c = load_matrices(tile.slope + own);
#pragma unroll
            for (int j = 0; j < TILES; j += 2) {
                const int at = 8 * j * PITCH + of_columns(lane) + 16 * step;
                const Part x = load_matrices(tile.key + at), y = load_matrices(tile.value + at);
                multiply(s[0][j], a, x.at[0], x.at[1]);
                multiply(s[0][j + 1], a, x.at[2], x.at[3]);
                multiply(d[0][j], c, y.at[0], y.at[1]);
                multiply(d[0][j + 1], c, y.at[2], y.at[3]);
            }
        }

        const F* all_shifts = shift + b * f_b + n * f_n;
        const M* all_masks = mask + b * m_b + n * m_n;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int i = row + 8 * h + g;
            const Note note = tile.notes[inside + 8 * h + g];
            const Word word = word_of_row(((i64)b * heads + n) * queries + i, step, seed) + word_of_key(here + 2 * t);
            Bits bits;
#pragma unroll
            for (int j = 0; j < TILES; ++j)
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {
                    if (j % 2 + odd == 0) bits = drawn(word + word_of_key(8 * j));
                    const int e = 2 * h + odd, key = here + 8 * j + 2 * t + odd;
                    const F* shift = all_shifts;
                    const M* mask = all_masks;
                    float score = s[0][j][e] * factor;
                    if (i < queries && key < keys) score += OF_KEY(key) + OF_QUERY(i, key);
                    if (key >= keys || i >= queries || key > i + high || key < i + low) score = -INFINITE;
                    const float weight = power_of_2(score - note.base) * note.share;
                    const float slope = stays(bits, j % 2, odd) ? d[0][j][e] * KEPT_FACTOR : 0.0f;
                    sum[j][e] = fmaf(weight, slope - note.mean, sum[j][e]);
                }
        }
    }

    out += ((i64)own_batch * out_heads + own_head) * queries * keys;
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int i = row + 8 * (e >> 1) + g, key = here + 8 * j + 2 * t + (e & 1);
            if (i < queries && key < keys) out[(i64)i * keys + key] = narrow<G>(sum[j][e]);
        }
}
"""


def _source(attention: Attention, gradient: str) -> str:
    sizes = macros(WARPS=WARPS, BANDS=1, COLUMNS=COLUMNS, SHARED=_shared(attention))
    return f"#define G {gradient}\n" + settings(attention) + sizes + INSTRUCTIONS + COMMON + NOTES + SHIFT


def _shared(attention: Attention) -> int:
    """Bytes of shared memory: two buffers of rows, columns and notes."""
    rows = 16 * WARPS
    return 2 * (2 * (padded(attention.shape.depth) + 8) * 2 * (rows + COLUMNS) + NOTE * rows)


def halves_shift(device: Device, attention: Attention, result: Array, out: Array) -> Launch | None:
    """Fill `out`, the gradient of the shift; `result` is attention_out by head. None where the kernels do not take the
    operands, or the shift is the same for all queries or keys."""
    shape, shift = attention.shape, attention.scores.shift
    q, k, v, dout = attention.operands
    if shift.shape[2:] != (shape.queries, shape.keys) or not takes(attention, [q, k, v, dout, result]):
        return None
    notes, noting = notes_of(device, attention, result)
    kernel = device.kernel(_source(attention, c_type(dtype_of(out.dtype))), "halves_shift")
    batch, heads = shift.shape[:2]
    rows = 16 * WARPS
    grid = batch * heads * math.ceil(shape.queries / rows) * math.ceil(shape.keys / COLUMNS)
    arrays = (q, dout, k, v)
    sizes = (shape.heads, shape.group, shape.queries, shape.keys)
    arguments: list[Any] = [
        *map(first_row, arrays), out, notes, *terms_of(device, attention), *map(np.int32, sizes),
        np.float32(attention.scores.scale), np.int32(shape.batch), np.int32(batch), np.int32(heads),
        *strides_of(*arrays),
    ]  # fmt: skip

    def launch() -> None:
        noting()
        kernel(grid, 32 * WARPS, arguments, _shared(attention))

    return launch
