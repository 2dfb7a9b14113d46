constexpr int TILE = KEYS * PITCH, UNROLLED = HELD > 0 ? STEPS : 8;

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) flash_forward(
    const E* __restrict__ q, const E* __restrict__ k, const E* __restrict__ v, E* __restrict__ out,
    float* __restrict__ statistics, TERMS,
    int heads, int group, int queries, int keys, float scale,
    i64 q_b, i64 q_n, i64 q_s, i64 k_b, i64 k_n, i64 k_s, i64 v_b, i64 v_n, i64 v_s, i64 o_b, i64 o_n, i64 o_s) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int blocks = (queries + ROWS - 1) / ROWS;
    // Late queries see most keys where keys are limited: they begin first.
    const int begin = (blocks - 1 - blockIdx.x % blocks) * ROWS;
    const int n = blockIdx.x / blocks % heads, b = blockIdx.x / blocks / heads;
    const int own = (threadIdx.x >> 5) * 16 * BANDS, row = begin + own;  // the warp's first, in the block and of all
    E* held = (E*)memory;
    E* buffers = held + ROWS * PITCH;
#if GROUPED
    const Tile own_tile = own_tile_at(held);
#endif
    float* all_keyed = (float*)(buffers + 4 * TILE);  // of the keys of a tile what is added for all queries
    q += b * q_b + n * q_n + begin * q_s;
    k += b * k_b + n / group * k_n;
    v += b * v_b + n / group * v_n;
    shift += b * f_b + n * f_n;
    mask += b * m_b + n * m_n;
    key_shift += b * h_b + n * h_n;
    const int end = begin + ROWS < queries ? begin + ROWS : queries;
    const int stop = end + high < keys ? end + high : keys;
    const int start = begin + low > 0 ? (begin + low) / KEYS * KEYS : 0;
    auto copy = [&](int buffer, int first) {
        fetch<KEYS>(buffers + buffer * 2 * TILE, k + first * k_s, k_s, keys - first);
        fetch<KEYS>(buffers + buffer * 2 * TILE + TILE, v + first * v_s, v_s, keys - first);
        if (ANY_KEYED && threadIdx.x < KEYS) {
            const int at = first + threadIdx.x;
            all_keyed[buffer * KEYS + threadIdx.x] = at < keys ? OF_KEY(at) : 0.0f;
        }
    };
    fetch<ROWS>(held, q, q_s, queries - begin);
    if (start < stop) copy(0, start);
    close_copies();
    await_copies<0>();
    SHOW_COPIES;
    settle<ROWS>(held);
    __syncthreads();

    Part kept[BANDS][HELD < STEPS ? HELD + 1 : STEPS];
    float sum[BANDS][OUTPUTS][4], top[BANDS][2], total[BANDS][2];
    Word words[BANDS][2];
#pragma unroll
    for (int m = 0; m < BANDS; ++m) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
            if (!GROUPED && step < HELD)
                kept[m][step] = load_matrices(held + (own + 16 * m) * PITCH + of_a(lane) + STEP * step);
#pragma unroll
        for (int j = 0; j < OUTPUTS; ++j) sum[m][j][0] = sum[m][j][1] = sum[m][j][2] = sum[m][j][3] = 0;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            top[m][h] = -INFINITE;
            total[m][h] = 0;
            words[m][h] = word_of(((i64)b * heads + n) * queries + row + 16 * m + 8 * h + g, keys, step, seed);
        }
    }
    const float factor = scale * LOG2_E;

    // Scores, weights and their products for WIDTH keys from `first` on, behind those of a tile that are skipped.
    auto look = [&](auto width, int first, int skipped, const E* tile, const float* keyed) {
        constexpr int WIDTH = decltype(width)::value;  // without `if constexpr`: nvcc 13 then loses what is captured
        float s[BANDS][WIDTH / 8][4];
#if GROUPED
        begin_products();
        over_depth<KEYS>(s[0], own_tile, ahead(tile_at(tile), skipped * 128));
        end_products();
        made(s[0]);
#else
#pragma unroll
        for (int m = 0; m < BANDS; ++m)
#pragma unroll
            for (int j = 0; j < WIDTH / 8; ++j) s[m][j][0] = s[m][j][1] = s[m][j][2] = s[m][j][3] = 0;
#pragma unroll UNROLLED
        for (int step = 0; step < STEPS; ++step) {
            Part a[BANDS];
#pragma unroll
            for (int m = 0; m < BANDS; ++m)
                a[m] = step < HELD ? kept[m][step]
                                   : load_matrices(held + (own + 16 * m) * PITCH + of_a(lane) + STEP * step);
#pragma unroll
            for (int j = 0; j < WIDTH / 8; j += 2) {
                const Part x = ready(load_matrices(tile + (skipped + 8 * j) * PITCH + of_columns(lane) + STEP * step));
#pragma unroll
                for (int m = 0; m < BANDS; ++m) {
                    multiply(s[m][j], a[m], x.at[0], x.at[1]);
                    multiply(s[m][j + 1], a[m], x.at[2], x.at[3]);
                }
            }
        }
#endif

        if (!RAW)
#pragma unroll
            for (int j = 0; j < WIDTH / 8; ++j)
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {
                    const int at = first + 8 * j + 2 * t + odd;
                    const float known = ANY_KEYED ? keyed[at - first] : 0.0f;
#pragma unroll
                    for (int m = 0; m < BANDS; ++m)
#pragma unroll
                        for (int h = 0; h < 2; ++h) {
                            const int i = row + 16 * m + 8 * h + g;
                            float& score = s[m][j][2 * h + odd];
                            score = fmaf(score, factor, known);
                            if ((SHIFTED | MASKED) & ~KEYED)
                                if (i < queries && at < keys) score += OF_QUERY(i, at);
                        }
                }
        if (first + WIDTH > keys || first + WIDTH > row + high + 1 || first < row + 16 * BANDS - 1 + low)
#pragma unroll
            for (int m = 0; m < BANDS; ++m)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int i = row + 16 * m + 8 * h + g, most = i + high < keys ? i + high : keys - 1;
#pragma unroll
                    for (int j = 0; j < WIDTH / 8; ++j)
#pragma unroll
                        for (int odd = 0; odd < 2; ++odd) {
                            const int at = first + 8 * j + 2 * t + odd;
                            if (at > most || at < i + low) s[m][j][2 * h + odd] = -INFINITE;
                        }
                }
#pragma unroll
        for (int m = 0; m < BANDS; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float most = top[m][h];
#pragma unroll
                for (int j = 0; j < WIDTH / 8; ++j) most = fmaxf(most, fmaxf(s[m][j][2 * h], s[m][j][2 * h + 1]));
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
                const float base = most == -INFINITE ? 0.0f : RAW ? most * factor : most;
                const float fade = power_of_2(RAW ? fmaf(top[m][h], factor, -base) : top[m][h] - base);
                top[m][h] = most;
                float added = 0;
                const auto window = window_of<WIDTH>(words[m][h], first + 2 * t, bits_of_weights);
                Bits bits;
#pragma unroll
                for (int j = 0; j < WIDTH / 8; ++j)
#pragma unroll
                    for (int odd = 0; odd < 2; ++odd) {
                        if (j % 2 + odd == 0) bits = drawn(window, 8 * j);
                        const float power = power_of_2(
                            RAW ? fmaf(s[m][j][2 * h + odd], factor, -base) : s[m][j][2 * h + odd] - base);
                        added += power;
                        s[m][j][2 * h + odd] = stays(bits, j % 2, odd) ? power : 0.0f;
                    }
                total[m][h] = fmaf(total[m][h], fade, added);
#pragma unroll
                for (int j = 0; j < OUTPUTS; ++j) {
                    sum[m][j][2 * h] *= fade;
                    sum[m][j][2 * h + 1] *= fade;
                }
            }

#if GROUPED
        Part a[WIDTH / 16];
        as_parts(a, s[0]);
        begin_products();
        over_rows<KEYS>(sum[0], a, ahead(tile_at(tile + TILE), skipped * 128));
        end_products();
        made(sum[0]);
#else
#pragma unroll
        for (int j = 0; j < WIDTH / 8; j += 2)
            accumulate(sum, s, j, tile + TILE + (skipped + 8 * j) * PITCH, lane);
#endif
    };

    int buffer = 0;
    for (int first = start; first < stop; first += KEYS, buffer ^= 1) {
        const E* tile = buffers + buffer * 2 * TILE;
        if (first > start) {
            await_copies<0>();
            SHOW_COPIES;
            __syncthreads();  // this tile is there, and nobody reads the other buffer any more
        }
        const int next = first + KEYS;
        if (next < stop) {
            copy(buffer ^ 1, next);
            close_copies();
        }
        // The keys of this tile that queries of this warp, or of all that multiply together, meet; a few at a time in
        // a half empty tile.
        const int own_begin = GROUPED ? begin + first_of_group() : row;
        const int own_end = own_begin + (GROUPED ? 64 : 16 * BANDS);
        const int skipped = own_begin + low > first ? (own_begin + low - first) / FEW * FEW : 0;
        const int end = min(min(own_end + high, stop), next) - first;
        if (own_begin >= queries || skipped >= end) continue;
        const float* keyed = all_keyed + buffer * KEYS;
        if (!TAIL || end - skipped > KEYS / 2) look(Width<KEYS>(), first, 0, tile, keyed);
        else
            for (int at = skipped; at < end; at += FEW) look(Width<FEW>(), first + at, at, tile, keyed + at);
    }

    out += b * o_b + n * o_n;
    statistics += ((i64)b * heads + n) * queries;
#pragma unroll
    for (int m = 0; m < BANDS; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int i = row + 16 * m + 8 * h + g;
            float all = total[m][h];
            all += __shfl_xor_sync(0xffffffffu, all, 1);
            all += __shfl_xor_sync(0xffffffffu, all, 2);
            if (i >= queries) continue;
            const float most = RAW ? top[m][h] * scale : top[m][h] / LOG2_E;
            if (t == 0) statistics[i] = all == 0 ? -INFINITE : most + logf(all);
            store(out + i * o_s, sum[m], h, t, all == 0 ? 0.0f : KEPT_FACTOR / all);
        }
}
