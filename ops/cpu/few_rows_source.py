"""The C++ of products of few rows, as those of one step of a decoder: y, a weight mostly, is read once, and the time of
that is theirs.

Where y lies row by row, some of its rows are passed over together, to whose multiples the sums of all rows of x are
added, which stay in the cache. Where it is turned, an element of the result is a sum along two lines in memory: vectors
of partial sums of a tile stay in registers, and are added up in the end. Each element is added up in an order that
neither the tile nor the number of rows changes; where y is not turned it is that of all other loops.
"""

from __future__ import annotations

FEW_ROWS = 16
"""Rows up to which a product is one of few."""

FEW_ROWS_SOURCE = r"""
const i64 FEW_ROWS = 16, TOGETHER = 8, SUMS = 8192, SPAN = 1024;
const i64 BESIDE = 48;   // sums of a row that are written together, a multiple of all tiles' columns
const i64 APART = PAIR;  // elements between lines in a row, which else would lie in the same places of the cache

// The first `count` of 16 elements, behind them zeros.
V read_some(const float* p, i64 count) {
    if (count >= W) return read(p);
    V v = V{};
    for (i64 j = 0; j < count; ++j) v[j] = p[j];
    return v;
}

// Put the rows of x from element k0 on behind one another.
void copy_rows(const Part<float>& p, i64 k0, i64 depth, float* to) {
    const i64 row = p.x_turned ? 1 : p.x_step, column = p.x_turned ? p.x_step : 1;
    for (i64 i = 0; i < p.rows; ++i)
        for (i64 k = 0; k < depth; ++k) to[i * (depth + APART) + k] = p.x[i * row + (k0 + k) * column];
}

// Write sums to their places in row i, from column n on.
void put(const Part<float>& p, i64 i, i64 n, const float* sums, i64 count, bool adds, bool last) {
    float* const to = p.out + i * p.step + n;
    const float *const addend = last && p.addend ? p.addend + i * p.step + n : nullptr,
                *const bias = last && p.bias ? p.bias + n : nullptr;
    for (i64 j = 0; j < count; j += W) {
        const i64 some = least(W, count - j);
        V v = read(sums + j);
        if (adds) v += read_some(to + j, some);
        if (addend) v += read_some(addend + j, some);
        if (bias) v += read_some(bias + j, some);
        if (some == W) write(to + j, v);
        else
            for (i64 k = 0; k < some; ++k) to[j + k] = v[k];
    }
}

// Add K rows of y, from y on, each times an element of every row of x, to sums [rows, width]; C vectors at a time.
template <int K, int C> void add_vectors(const float* x, i64 x_step, i64 rows, const float* y, i64 y_step, float* sums,
                                         i64 width, i64 count, bool first) {
    V right[K][C];
#pragma GCC unroll 8
    for (int k = 0; k < K; ++k)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) {
            right[k][c] = C > 1 ? read(y + k * y_step + c * W) : read_some(y + k * y_step, count);
            __builtin_prefetch(y + (K + k) * y_step + c * W);
        }
    for (i64 i = 0; i < rows; ++i, sums += width, x += x_step) {
        V made[C];
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) made[c] = first ? V{} : read(sums + c * W);
#pragma GCC unroll 8
        for (int k = 0; k < K; ++k) {
            const V left = x[k] - V{};
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) made[c] += left * right[k][c];
        }
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) write(sums + c * W, made[c]);
    }
}

template <int K> void add_rows(const float* x, i64 x_step, i64 rows, const float* y, i64 y_step, float* sums, i64 width,
                               i64 columns, bool first) {
    i64 n = 0;
    for (; n + PAIR <= columns; n += PAIR)
        add_vectors<K, 2>(x, x_step, rows, y + n, y_step, sums + n, width, W, first);
    for (; n < columns; n += W)
        add_vectors<K, 1>(x, x_step, rows, y + n, y_step, sums + n, width, columns - n, first);
}

void few_by_rows(const Part<float>& p) {
    alignas(64) static thread_local float sums[SUMS], x[FEW_ROWS * (DEPTH + APART)];
    const i64 blocks = (p.depth + DEPTH - 1) / DEPTH, step = SUMS / (p.rows + TOGETHER / 2) / PAIR * PAIR;
    const i64 width = step - APART;
    for (i64 n0 = 0; n0 < p.columns; n0 += width)
        for (i64 block = 0; block < blocks; ++block) {
            const i64 k0 = p.depth * block / blocks, depth = p.depth * (block + 1) / blocks - k0;
            const i64 apart = depth + APART, columns = least(width, p.columns - n0);
            const float* const y = p.y + k0 * p.y_step + n0;
            copy_rows(p, k0, depth, x);
            i64 k = 0;
            for (; k + TOGETHER <= depth; k += TOGETHER)
                add_rows<TOGETHER>(x + k, apart, p.rows, y + k * p.y_step, p.y_step, sums, step, columns, k == 0);
            for (; k < depth; ++k)
                add_rows<1>(x + k, apart, p.rows, y + k * p.y_step, p.y_step, sums, step, columns, k == 0);
            for (i64 i = 0; i < p.rows; ++i)
                put(p, i, n0, sums + i * step, columns, block > 0, block == blocks - 1);
        }
}

// made[i * BESIDE + j] = the sum of row i of x times row j of y; of more rows than M and N the first.
template <int M, int N>
void dots(const float* x, i64 x_step, i64 rows, const float* y, i64 y_step, i64 columns, i64 depth, float* made) {
    const float *xs[M], *ys[N];
    V sums[M][N];
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) xs[i] = x + least(i, rows - 1) * x_step;
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) ys[j] = y + least(j, columns - 1) * y_step;
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) sums[i][j] = V{};
    for (i64 k = 0; k < depth; k += W) {
        const i64 some = least(W, depth - k);
        V right[N];
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) {
            right[j] = read_some(ys[j] + k, some);
            __builtin_prefetch(ys[j] + N * y_step + k);
        }
#pragma GCC unroll 8
        for (int i = 0; i < M; ++i) {
            const V left = read_some(xs[i] + k, some);
#pragma GCC unroll 8
            for (int j = 0; j < N; ++j) sums[i][j] += left * right[j];
        }
    }
    alignas(64) float lines[(M * N + W - 1) / W * W * W], turns[W * W];
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) write(lines + (i * N + j) * W, sums[i][j]);
    for (int first = 0; first < M * N; first += W) {
        turned(lines + first * W, W, turns, W);
        V all = read(turns);
#pragma GCC unroll 15
        for (int k = 1; k < W; ++k) all += read(turns + k * W);
        write(lines + first, all);
    }
    for (i64 i = 0; i < rows && i < M; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < N; ++j) made[i * BESIDE + j] = lines[i * N + j];
}

void few_by_dots(const Part<float>& p) {
    alignas(64) static thread_local float x[FEW_ROWS * (SPAN + APART)], made[FEW_ROWS * BESIDE];
    const i64 spans = (p.depth + SPAN - 1) / SPAN, group = p.rows > 4 ? 3 : p.rows > 2 ? 6 : 8;
    for (i64 span = 0; span < spans; ++span) {
        const i64 k0 = p.depth * span / spans, depth = p.depth * (span + 1) / spans - k0, step = depth + APART;
        copy_rows(p, k0, depth, x);
        for (i64 n0 = 0; n0 < p.columns; n0 += BESIDE) {
            const i64 columns = least(BESIDE, p.columns - n0);
            for (i64 n = 0; n < columns; n += group) {
                const float* const y = p.y + (n0 + n) * p.y_step + k0;
                const i64 some = columns - n;
                if (group == 8 && p.rows == 1) dots<1, 8>(x, step, 1, y, p.y_step, some, depth, made + n);
                else if (group == 8) dots<2, 8>(x, step, 2, y, p.y_step, some, depth, made + n);
                else if (group == 6) dots<4, 6>(x, step, p.rows, y, p.y_step, some, depth, made + n);
                else
                    for (i64 i = 0; i < p.rows; i += 8)
                        dots<8, 3>(x + i * step, step, p.rows - i, y, p.y_step, some, depth, made + i * BESIDE + n);
            }
            for (i64 i = 0; i < p.rows; ++i) put(p, i, n0, made + i * BESIDE, columns, span > 0, span == spans - 1);
        }
    }
}
"""
