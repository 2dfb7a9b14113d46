#include "flash_notes.cuh"

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
        close_copies();
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
        await_copies<0>();
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
