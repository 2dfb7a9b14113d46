"""The C++ of products of matrices: parts of them, each a call of BLAS's with one thread, are shared out to the pool.

A part is a run of rows or of columns of one matrix of a batch. BLAS adds up the products of an element in an order that
does not depend on where the element lies, so that parts change no bit.
"""

from __future__ import annotations

GEMM = r"""
namespace {

template <class T> using Gemm = void (*)(
    int, int, int, i64, i64, i64, T, const T*, i64, const T*, i64, T, T*, i64);
const int BY_ROWS = 101, AS_IT_IS = 111, TURNED = 112;

// What Python's `Plan` lays out: of a matrix, of how it is split, and of the batch's dimensions. Steps in elements.
struct Numbers {
    i64 rows, columns, depth, x_step, y_step, out_step, x_turned, y_turned;
    i64 by_columns, pieces, unit, dims;
    i64 sizes[4], x_steps[4], y_steps[4], out_steps[4];
};

// a: x, y, the result, the numbers, BLAS's function.
template <class T> void multiply(void* const* a, i64 first, i64 last) {
    const Numbers& n = *(const Numbers*)a[3];
    const Gemm<T> gemm = (Gemm<T>)a[4];
    const i64 length = n.by_columns ? n.columns : n.rows, units = (length + n.unit - 1) / n.unit;
    while (first < last) {
        const T *x = (const T*)a[0], *y = (const T*)a[1];
        T* out = (T*)a[2];
        i64 matrix = first / n.pieces;
        const i64 piece = first - matrix * n.pieces;
        // The parts of one matrix that this thread has are one product.
        const i64 count = last - first < n.pieces - piece ? last - first : n.pieces - piece;
        first += count;
        for (i64 d = n.dims - 1; d >= 0; --d) {
            const i64 at = matrix % n.sizes[d];
            matrix /= n.sizes[d];
            x += at * n.x_steps[d], y += at * n.y_steps[d], out += at * n.out_steps[d];
        }
        const i64 begin = units * piece / n.pieces * n.unit, stop = units * (piece + count) / n.pieces * n.unit;
        const i64 end = stop < length ? stop : length;
        if (begin >= end) continue;
        if (n.by_columns) {
            y += n.y_turned ? begin * n.y_step : begin, out += begin;
        } else {
            x += n.x_turned ? begin : begin * n.x_step, out += begin * n.out_step;
        }
        gemm(
            BY_ROWS, n.x_turned ? TURNED : AS_IT_IS, n.y_turned ? TURNED : AS_IT_IS,
            n.by_columns ? n.rows : end - begin, n.by_columns ? end - begin : n.columns, n.depth,
            1, x, n.x_step, y, n.y_step, 0, out, n.out_step);
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
    const auto set = (void (*)(int))a[6];
    blas_alone((int (*)())a[5], set);
    pool_run(multiply<T>, a, 0, count, cut, others);
    blas_as_before(set);
}
extern "C" void product_float(void* const* a, i64 count, i64 cut, i64 others) { product<float>(a, count, cut, others); }
extern "C" void product_double(void* const* a, i64 count, i64 cut, i64 others) {
    product<double>(a, count, cut, others);
}
"""
