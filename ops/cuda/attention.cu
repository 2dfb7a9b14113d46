// E: elements in memory, W: the computing type, F: of the shift, M: of the mask, H: of the addend of each key, G: of
// the scores' gradients. SHIFTED: 1 if there is a shift, plus 4 if each key has an addend.
typedef long long i64;

// Rows of `columns` elements from one order of batch, heads and sequence to another.
extern "C" __global__ void attention_copy(const E* from, E* to, i64 count, int heads, int rows, int columns,
                                          i64 from_b, i64 from_n, i64 from_s, i64 to_b, i64 to_n, i64 to_s) {
    i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    i64 row = at / columns, c = at - row * columns;
    i64 s = row % rows, n = row / rows % heads, b = row / rows / heads;
    to[b * to_b + n * to_n + s * to_s + c] = from[b * from_b + n * from_n + s * from_s + c];
}

extern "C" __global__ void attention_constants(W* ones, i64 count, E* zero) {
    i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) ones[at] = 1;
    if (at == 0) *zero = narrow<E>((W)0);
}

struct Place { i64 b, n, i; };
__device__ __forceinline__ Place place_of(i64 row, int heads, int queries) {
    return {row / queries / heads, row / queries % heads, row % queries};
}

#define ADDED_TERMS const F* shift, i64 f_b, i64 f_n, i64 f_i, i64 f_j, \
    const M* mask, i64 m_b, i64 m_n, i64 m_i, i64 m_j, const H* key_shift, i64 h_b, i64 h_n, i64 h_j
#define TERMS_HERE shift, f_b, f_n, f_i, f_j, mask, m_b, m_n, m_i, m_j, key_shift, h_b, h_n, h_j

// The score of a product, minus infinity where the query does not look at the key.
__device__ __forceinline__ W score(W product, W scale, Place at, i64 j,
                                   ADDED_TERMS, i64 low, i64 high) {
    W value = product * scale;
    if (SHIFTED & 4) value += (W)wide(key_shift[at.b * h_b + at.n * h_n + j * h_j]);
    if (SHIFTED & 1) value += (W)wide(shift[at.b * f_b + at.n * f_n + at.i * f_i + j * f_j]);
    bool out = j - at.i < low || j - at.i > high;
    if (MASKED) out = out || mask[at.b * m_b + at.n * m_n + at.i * m_i + j * m_j];
    return out ? -(W)INFINITE : value;
}

// A block makes the softmax of one row of products in place, or in p where elements are narrower; p without what is
// dropped.
extern "C" __global__ void attention_softmax(
    W* s, E* p, W* statistics, int heads, int queries, int keys, W scale,
    ADDED_TERMS,
    i64 low, i64 high, const i64* step, u64 seed) {
    __shared__ W shared[32];
    i64 row = blockIdx.x;
    const Word word = word_of_row(row, step, seed);
    Place at = place_of(row, heads, queries);
    W* mine = s + row * keys;
    E* to = p + row * keys;
    W top = -(W)INFINITE;
    for (int j = threadIdx.x; j < keys; j += blockDim.x) {
        W value = score(mine[j], scale, at, j, TERMS_HERE, low, high);
        mine[j] = value;
        top = Largest::of(top, value);
    }
    top = over_block<Largest>(top, shared, -(W)INFINITE);
    if (top == -(W)INFINITE) top = 0;
    W total = 0;
    for (int j = threadIdx.x; j < keys; j += blockDim.x) {
        W power = EXP(mine[j] - top);
        mine[j] = power;
        total += power;
    }
    total = over_block<Sum>(total, shared, (W)0);
    W share = total == 0 ? 0 : KEPT_FACTOR / total;
    for (int j = threadIdx.x; j < keys; j += blockDim.x)
        to[j] = narrow<E>(stays(word, j) ? mine[j] * share : 0);
    if (threadIdx.x == 0) statistics[row] = total == 0 ? -(W)INFINITE : top + LOG(total);
}

// Of one row of products s and of the gradients d of its weights: the weights into p and the gradients of the scores,
// times `factor`, into g. p may be s and g may be d.
extern "C" __global__ void attention_softmax_gradient(
    W* s, W* d, E* p, G* g, const W* statistics, int heads, int queries, int keys, W scale, W factor,
    ADDED_TERMS,
    i64 low, i64 high, const i64* step, u64 seed) {
    __shared__ W shared[32];
    i64 row = blockIdx.x;
    const Word word = word_of_row(row, step, seed);
    Place at = place_of(row, heads, queries);
    W* mine = s + row * keys;
    W* slope = d + row * keys;
    W logarithm = statistics[row];
    if (logarithm == -(W)INFINITE) logarithm = 0;
    W total = 0, weights = 0;
    for (int j = threadIdx.x; j < keys; j += blockDim.x) {
        W value = score(mine[j], scale, at, j, TERMS_HERE, low, high);
        W weight = EXP(value - logarithm);
        mine[j] = weight;
        weights += weight;
        if (!stays(word, j)) slope[j] = 0;
        total += weight * slope[j] * KEPT_FACTOR;
    }
    total = over_block<Sum>(total, shared, (W)0);
    W share = 1;
    // Beside a number as -1e9, added to all keys, the logarithm of the sum is rounded away.
    if (SHIFTED && (logarithm > LARGE || logarithm < -LARGE)) {
        weights = over_block<Sum>(weights, shared, (W)0);
        share = weights == 0 ? 1 : 1 / weights;
        total *= share;
    }
    for (int j = threadIdx.x; j < keys; j += blockDim.x) {
        W weight = mine[j] * share;
        const bool there = stays(word, j);
        g[row * keys + j] = narrow<G>(weight * (slope[j] * KEPT_FACTOR - total) * factor);
        p[row * keys + j] = narrow<E>(there ? weight * KEPT_FACTOR : 0);
    }
}

// An addend for kernels that know no masks: shift, or `lowest` where a query does not look at a key.
extern "C" __global__ void attention_addend(
    E* to, i64 count, int heads, int queries, int keys, W lowest,
    ADDED_TERMS) {
    i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    i64 low = -((i64)1 << 40), high = (i64)1 << 40;
    W value = score(0, 1, place_of(at / keys, heads, queries), at % keys, TERMS_HERE, low, high);
    to[at] = narrow<E>(value < lowest ? lowest : value);
}

// The gradient of a shift: that of the scores, summed over the dimensions in which the shift has one element.
extern "C" __global__ void attention_sum(const W* g, F* to, i64 count, int batch, int heads, int queries, int keys,
                                         int to_b, int to_n, int to_i, int to_j) {
    i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    i64 rest = at;
    int j0 = rest % to_j; rest /= to_j;
    int i0 = rest % to_i; rest /= to_i;
    int n0 = rest % to_n;
    int b0 = rest / to_n;
    W total = 0;
    for (int b = b0; b < (to_b > 1 ? b0 + 1 : batch); b++)
        for (int n = n0; n < (to_n > 1 ? n0 + 1 : heads); n++)
            for (int i = i0; i < (to_i > 1 ? i0 + 1 : queries); i++)
                for (int j = j0; j < (to_j > 1 ? j0 + 1 : keys); j++)
                    total += g[(((i64)b * heads + n) * queries + i) * keys + j];
    to[at] = narrow<F>(total);
}
