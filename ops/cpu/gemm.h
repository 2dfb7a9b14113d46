// C++ of matmuls in parts for the thread pool.
//
// A part is a run of rows or of columns of one matrix of a batch. If vectors have 512 bits, loops here multiply: BLAS's
// own are made for large matrices, and reach half their speed if one side is short. They add up the products of an
// element in an order that does not depend on the parts. Elsewhere a part is a call of BLAS's with one thread, with
// last bits that may.
//
// The loops take blocks of DEPTH products of a sum. Columns of y are packed in pairs of vectors, DEPTH of which stay in
// the innermost cache; rows of x are packed by tiles, an element of each row beside one another. A tile of the result,
// as many rows as leave registers for all sums, stays in registers while both are read once.

namespace {

// What Python's `Plan` lays out: of a matrix, of how it is split, and of the batch's dimensions. Steps in elements.
struct Numbers {
    i64 rows, columns, depth, x_step, y_step, out_step, x_turned, y_turned;
    i64 loops, by_columns, pieces, unit, dims;
    i64 sizes[4], x_steps[4], y_steps[4], out_steps[4];
};

// x [rows, depth] times y [depth, columns], each stored the other way round where it is turned, to which `addend`, that
// lies as the result does, and `bias`, a number for every column, are added; null for none.
template <class T> struct Part {
    i64 rows, columns, depth;
    const T* x;
    i64 x_step;
    bool x_turned;
    const T* y;
    i64 y_step;
    bool y_turned;
    T* out;
    i64 step;
    const T *addend, *bias;
};

template <class T> using Gemm = void (*)(
    int, int, int, i64, i64, i64, T, const T*, i64, const T*, i64, T, T*, i64);
const int BY_ROWS = 101, AS_IT_IS = 111, TURNED = 112;

template <class T> void by_blas(Gemm<T> gemm, const Part<T>& p) {
    gemm(BY_ROWS, p.x_turned ? TURNED : AS_IT_IS, p.y_turned ? TURNED : AS_IT_IS, p.rows, p.columns, p.depth,
         1, p.x, p.x_step, p.y, p.y_step, 0, p.out, p.step);
    for (i64 i = 0; i < (p.addend || p.bias ? p.rows : 0); ++i) {
        T* const to = p.out + i * p.step;
        if (p.addend)
            for (i64 j = 0; j < p.columns; ++j) to[j] += p.addend[i * p.step + j];
        if (p.bias)
            for (i64 j = 0; j < p.columns; ++j) to[j] += p.bias[j];
    }
}

template <class T> bool by_loops(const Part<T>&, bool) { return false; }

#ifdef __AVX512F__

const int W = 16, PAIR = 2 * W, ROWS = 14, TILES = 8;
const i64 DEPTH = 256, COLUMNS = 512, FEW = 64, PAGE = 1024;
typedef float V __attribute__((vector_size(64)));
typedef float Loose __attribute__((vector_size(64), aligned(4), may_alias));

V read(const float* p) { return *(const Loose*)p; }
void write(float* p, V v) { *(Loose*)p = v; }
i64 least(i64 a, i64 b) { return a < b ? a : b; }

// The C++ of matmuls of few rows, as those of one step of a decoder: y, a weight mostly, is read once, which takes all
// of their time.
//
// If y is stored row by row, several of its rows are read together, and multiples of them are added to the sums of all
// rows of x, which stay in the cache. If it is transposed, an element of the result is a sum along two lines in memory:
// vectors of partial sums of a tile stay in registers, and are added up in the end. Each element is added up in an
// order that neither the tile nor the number of rows changes; if y is not transposed it is that of all other loops.

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

struct Place {
    float* place;
    i64 width;
};

// Lines are packed W at a time, the first ones being 0, `apart`, ... < `end`. `to(first)` is where their elements go,
// for each a vector of lines, and the step between these. Lines from `count` on are 0.
template <class To>
void packed(const float* from, i64 step, bool across, i64 count, i64 end, i64 apart, i64 depth, To to) {
    if (across) {  // elements of a line are `step` apart, lines beside one another
        Place places[COLUMNS / W];
        i64 whole = 0, all = 0;
        for (i64 first = 0; first < end; first += apart) {
            places[all++] = to(first);
            whole += count - first >= W;
        }
        for (i64 k = 0; k < depth; ++k, from += step) {
            for (i64 i = 0; i < whole; ++i) write(places[i].place + k * places[i].width, read(from + i * apart));
            for (i64 i = whole; i < all; ++i)
                for (int j = 0; j < W; ++j)
                    places[i].place[k * places[i].width + j] = i * apart + j < count ? from[i * apart + j] : 0;
        }
        return;
    }
    for (i64 first = 0; first < end; first += apart) {
        const auto [place, width] = to(first);
        const float* const lines = from + first * step;
        const i64 some = least(W, count - first);
        i64 k = 0;
        for (; some == W && k + W <= depth; k += W) {
            if (first + apart < end)
                for (int j = 0; j < W; ++j) __builtin_prefetch(lines + (apart + j) * step + k);
            turned(lines + k, step, place + k * width, width);
        }
        for (; k < depth; ++k)
            for (int j = 0; j < W; ++j) place[k * width + j] = j < some ? lines[j * step + k] : 0;
    }
}

// Where a tile's operands are: elements of x by row and by place in the sum, vectors of y by place in the sum.
struct Tile {
    i64 rows;
    const float *x, *y;
    i64 y_step, depth;
    float* out;
    i64 step;
    bool adds;  // to what is there
    i64 rest;   // elements of the last vector that are the result's
    const float *addend, *bias;
};

// Write a tile's sums, C vectors a row, to where they belong.
__attribute__((noinline)) void end(const Tile& t, const float* made, int C) {
    for (i64 i = 0; i < t.rows; ++i)
        for (int c = 0; c < C; ++c, made += W) {
            const i64 at = i * t.step + c * W;
            if (c < C - 1 || t.rest == W) {
                V v = read(made);
                if (t.adds) v += read(t.out + at);
                if (t.addend) v += read(t.addend + at);
                if (t.bias) v += read(t.bias + c * W);
                write(t.out + at, v);
                continue;
            }
            for (i64 j = 0; j < t.rest; ++j) {
                float v = made[j];
                if (t.adds) v += t.out[at + j];
                if (t.addend) v += t.addend[at + j];
                if (t.bias) v += t.bias[c * W + j];
                t.out[at + j] = v;
            }
        }
}

// R >= rows. Rows of x are packed, or lie x_step apart.
template <int R, int C, bool PACKED> void tile(const Tile& t, i64 x_step) {
    V sums[R][C];
    const float *x = t.x, *y = t.y;
    for (i64 i = 0; i < t.rows; ++i) {  // where the sums go is on its way while they are made
        __builtin_prefetch(t.out + i * t.step, 1);
        if (C > 1) __builtin_prefetch(t.out + i * t.step + W, 1);
    }
#pragma GCC unroll 14
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) sums[i][c] = V{};
    for (i64 k = 0; k < t.depth; ++k, x += PACKED ? W : 1, y += t.y_step) {
        V right[C];
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) right[c] = read(y + c * W);
#pragma GCC unroll 14
        for (int i = 0; i < R; ++i) {
            const V left = x[PACKED ? i : i * x_step] - V{};
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) sums[i][c] += left * right[c];
        }
    }
    if (t.rows == R && t.rest == W && !t.addend && !t.bias) {
        float* to = t.out;
#pragma GCC unroll 14
        for (int i = 0; i < R; ++i, to += t.step)
#pragma GCC unroll 2
            for (int c = 0; c < C; ++c) write(to + c * W, t.adds ? read(to + c * W) + sums[i][c] : sums[i][c]);
        return;
    }
    alignas(64) float made[R * C * W];
#pragma GCC unroll 14
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 2
        for (int c = 0; c < C; ++c) *(V*)(made + (i * C + c) * W) = sums[i][c];
    end(t, made, C);
}

template <int C> void tile_of(const Tile& t, bool plain, i64 x_step) {
    if (plain) tile<ROWS, C, false>(t, x_step);
    else if (t.rows > 8) tile<ROWS, C, true>(t, 0);
    else if (t.rows > 4) tile<8, C, true>(t, 0);
    else tile<4, C, true>(t, 0);
}

template <> bool by_loops<float>(const Part<float>& p, bool few) {
    if (few) {
        p.y_turned ? few_by_dots(p) : few_by_rows(p);
        return true;
    }
    alignas(64) static thread_local float right[DEPTH * COLUMNS], left[TILES * DEPTH * W];
    const i64 blocks = (p.depth + DEPTH - 1) / DEPTH;
    // What few tiles read costs more to pack than it saves, unless its lines would push each other out of the cache.
    const bool plain_x = !p.x_turned && p.columns <= FEW && p.x_step % PAGE, plain_y = !p.y_turned && p.rows <= FEW;
    for (i64 n0 = 0; n0 < p.columns; n0 += COLUMNS)
        for (i64 block = 0; block < blocks; ++block) {
            const i64 k0 = p.depth * block / blocks, depth = p.depth * (block + 1) / blocks - k0;
            const i64 n1 = least(n0 + COLUMNS, p.columns), n2 = plain_y ? n0 + (n1 - n0) / PAIR * PAIR : n0;
            packed(p.y + (p.y_turned ? n2 * p.y_step + k0 : k0 * p.y_step + n2), p.y_step, !p.y_turned, n1 - n2,
                   n1 - n2, W, depth, [&](i64 n) -> Place {
                       const i64 pair = n / PAIR * PAIR;
                       return {right + pair * depth + n - pair, n1 - n2 - pair > W ? PAIR : W};
                   });
            for (i64 m0 = 0; m0 < p.rows; m0 += TILES * ROWS) {
                const i64 m1 = least(m0 + TILES * ROWS, p.rows), m2 = plain_x ? m0 + (m1 - m0) / ROWS * ROWS : m0;
                packed(p.x + (p.x_turned ? k0 * p.x_step + m2 : m2 * p.x_step + k0), p.x_step, p.x_turned, p.rows - m2,
                       m1 - m2, ROWS, depth, [&](i64 m) -> Place { return {left + m / ROWS * depth * W, W}; });
                for (i64 n = n0; n < n1; n += PAIR)
                    for (i64 m = m0; m < m1; m += ROWS) {
                        const i64 at = m * p.step + n, width = n1 - n > W ? PAIR : W;
                        const Tile t = {
                            least(ROWS, m1 - m), m < m2 ? p.x + m * p.x_step + k0 : left + (m - m2) / ROWS * depth * W,
                            n < n2 ? p.y + k0 * p.y_step + n : right + (n - n2) * depth, n < n2 ? p.y_step : width,
                            depth, p.out + at, p.step, block > 0, least(W, n1 - n - width + W),
                            p.addend && block == blocks - 1 ? p.addend + at : nullptr,
                            p.bias && block == blocks - 1 ? p.bias + n : nullptr};
                        if (width > W) tile_of<2>(t, m < m2, p.x_step);
                        else tile_of<1>(t, m < m2, p.x_step);
                    }
            }
        }
    return true;
}

#endif

// a: x, y, the result, the numbers, BLAS's function, addend, bias.
template <class T> void multiply(void* const* a, i64 first, i64 last) {
    const Numbers& n = *(const Numbers*)a[3];
    const i64 length = n.by_columns ? n.columns : n.rows, units = (length + n.unit - 1) / n.unit;
    while (first < last) {
        const T *x = (const T*)a[0], *y = (const T*)a[1];
        i64 matrix = first / n.pieces, at = 0;
        const i64 piece = first - matrix * n.pieces;
        // The parts of one matrix that this thread has are one product.
        const i64 count = last - first < n.pieces - piece ? last - first : n.pieces - piece;
        first += count;
        for (i64 d = n.dims - 1; d >= 0; --d) {
            const i64 place = matrix % n.sizes[d];
            matrix /= n.sizes[d];
            x += place * n.x_steps[d], y += place * n.y_steps[d], at += place * n.out_steps[d];
        }
        const i64 begin = units * piece / n.pieces * n.unit, stop = units * (piece + count) / n.pieces * n.unit;
        const i64 end = stop < length ? stop : length;
        if (begin >= end) continue;
        if (n.by_columns) y += n.y_turned ? begin * n.y_step : begin, at += begin;
        else x += n.x_turned ? begin : begin * n.x_step, at += begin * n.out_step;
        const Part<T> part = {
            n.by_columns ? n.rows : end - begin, n.by_columns ? end - begin : n.columns, n.depth,
            x, n.x_step, n.x_turned != 0, y, n.y_step, n.y_turned != 0, (T*)a[2] + at, n.out_step,
            a[5] ? (const T*)a[5] + at : nullptr, a[6] ? (const T*)a[6] + (n.by_columns ? begin : 0) : nullptr};
        if (!n.loops || !by_loops<T>(part, n.loops == 2)) by_blas((Gemm<T>)a[4], part);
    }
}

pthread_mutex_t blas_mutex = PTHREAD_MUTEX_INITIALIZER;
int inside, before;  // callers for which BLAS has one thread, and how many it had

}  // namespace

// Between these BLAS has one thread for all that this process calls.
extern "C" void blas_alone(int (*get)(), void (*set)(int)) {
    pthread_mutex_lock(&blas_mutex);
    if (!inside++) {
        before = get();
        if (before != 1) set(1);
    }
    pthread_mutex_unlock(&blas_mutex);
}
extern "C" void blas_as_before(void (*set)(int)) {
    pthread_mutex_lock(&blas_mutex);
    if (!--inside && before != 1) set(before);
    pthread_mutex_unlock(&blas_mutex);
}

// a: as above, and BLAS's functions that read and set its threads.
template <class T> void product(void* const* a, i64 count, i64 cut, i64 others) {
    const auto set = (void (*)(int))a[8];
    blas_alone((int (*)())a[7], set);
    pool_run(multiply<T>, a, 0, count, cut, others);
    blas_as_before(set);
}
extern "C" void product_float(void* const* a, i64 count, i64 cut, i64 others) { product<float>(a, count, cut, others); }
extern "C" void product_double(void* const* a, i64 count, i64 cut, i64 others) {
    product<double>(a, count, cut, others);
}
