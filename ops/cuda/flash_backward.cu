#include "flash_notes.cuh"

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
        close_copies();
    };
    fetch<ROWS>(held, own, a_s, rows - begin);
    fetch<ROWS>(held + OWN, own_slope, c_s, rows - begin);
    close_copies();
    await_copies<0>();
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
        await_copies<0>();
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
                await_copies<0>();
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
