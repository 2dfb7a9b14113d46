// Gradients of query, key and value, or of the addend of scores.
#include "attention.h"

// A block of queries while gradients of its scores are made.
struct Block {
    i64 batch, head, query, rows;
    float* q;
    float* g;
    float* s;
    float* d;
    float logarithm[ROWS], share[ROWS], sum[ROWS];
    Factors made;
};

// Copy queries and the result's gradient, and find what all keys of a row have in common.
ONCE float begun(
    const Numbers& n, Pointers a, Block& b, const float* const columns, const i64 begin, const i64 end
) {
    const i64 D = padded(n.depth), E = padded(n.value_depth);
    float odd = rows_copied(b.q, D, AT(const T, q, b.batch, b.head, b.query), n.q_row, b.rows, n.depth);
    odd += rows_copied(b.g, E, AT(const T, g, b.batch, b.head, b.query), n.g_row, b.rows, n.value_depth);
    const float* const found = (const float*)a[P_statistics] + (b.batch * n.heads + b.head) * n.queries + b.query;
    bool large = false;
    for (i64 r = 0; r < b.rows; ++r) {
        b.logarithm[r] = found[r] == NOTHING ? 0.0f : found[r];
        b.share[r] = 1;
        large |= fabs(b.logarithm[r]) > LARGE;
        const T* const made = AT(const T, o, b.batch, b.head, b.query + r);
        const float* const g = b.g + r * E;
        float sum = 0;
        _Pragma("omp simd reduction(+:sum, odd)")
        for (i64 d = 0; d < n.value_depth; ++d) {
            const float x = wide(made[d]);
            sum += x * g[d];
            odd += x * 0.0f;
        }
        b.sum[r] = sum;
    }
    if (!n.has_shift || !large) return odd;
    // Beside a number as -1e9, which a shift adds to all keys of a query, the logarithm of the sum is rounded away.
    double total[ROWS] = {};
    for (i64 key = begin; key < end; key += KEYS) {
        const Meeting m = met(n, b.query, b.rows, key);
        if (!m.rows) continue;
        const i64 width = padded(m.keys);
        multiplied<false>(m.rows, D, width, b.q + m.first_row * D, D, columns + key * D, KEYS,
                          b.s + m.first_row * KEYS, KEYS, true);
        for (i64 r = m.first_row; r < m.first_row + m.rows; ++r) {
            float* const row = b.s + r * KEYS;
            scored(n, a, row, b.batch, b.head, b.query + r, key, m.keys, width);
            total[r] += row_powers<false>(row, width, b.logarithm[r]);
        }
    }
    for (i64 r = 0; r < b.rows; ++r)
        if (fabs(b.logarithm[r]) > LARGE && total[r] != 0) b.share[r] = (float)(1.0 / total[r]);
    return odd;
}

// Weights as far as they remain, in b.s, and gradients of scores times `scale`, in b.d, of a block of keys.
static void score_gradients(
    const Numbers& n, Pointers a, Block& b, const Meeting& m, const float* const columns,
    const float* const value_columns, const float scale
) {
    const i64 D = padded(n.depth), E = padded(n.value_depth), width = padded(m.keys), first = m.first_row;
    multiplied<false>(m.rows, D, width, b.q + first * D, D, columns + m.key * D, KEYS, b.s + first * KEYS, KEYS, true);
    multiplied<false>(m.rows, E, width, b.g + first * E, E, value_columns + m.key * E, KEYS, b.d + first * KEYS, KEYS,
                      true);
    for (i64 r = first; r < first + m.rows; ++r) {
        float* const s = b.s + r * KEYS;
        float* const d = b.d + r * KEYS;
        scored(n, a, s, b.batch, b.head, b.query + r, m.key, m.keys, width);
        const bool drops = n.has_draws || n.has_keep;
        const float* const by = drops ? factors(n, a, b.made, b.batch, b.head, b.query + r, m.key, width) : nullptr;
        row_gradients(s, d, width, b.logarithm[r], b.share[r], b.sum[r], scale, by);
    }
}

// Sums of all pieces of a pair, in their order.
static void pieces_added(const Numbers& n, Pointers a, const i64 pair) {
    const i64 D = padded(n.depth), E = padded(n.value_depth), all = padded_keys(n), size = all * (D + E);
    float* const sums = (float*)a[P_shares] + pair * n.pieces * size;
    for (i64 piece = 1; piece < n.pieces; ++piece) {
        const float* const more = sums + piece * size;
        _Pragma("omp simd")
        for (i64 i = 0; i < size; ++i) sums[i] += more[i];
    }
    const i64 batch = pair / n.key_heads, head = pair % n.key_heads;
    stored(AT(T, dk, batch, head, 0), n.dk_row, sums, D, n.keys, n.depth);
    stored(AT(T, dv, batch, head, 0), n.dv_row, sums + all * D, E, n.keys, n.value_depth);
}

// Parts behind those of all pieces add up a pair's sums.
static void backward(const Numbers& n, Pointers a, const i64 first, const i64 last) {
    const i64 D = padded(n.depth), E = padded(n.value_depth), all = padded_keys(n), parts = n.pairs * n.pieces;
    if (first >= parts) {
        for (i64 part = first; part < last; ++part) pieces_added(n, a, part - parts);
        return;
    }
    const bool alone = n.pieces == 1;
    Memory memory(all * (2 * D + E) + (alone ? all * (D + E) : 0) + KEYS * E + ROWS * (2 * D + E + 2 * KEYS) + 256);
    float* const columns = memory.take(all * D);
    float* const keys = memory.take(all * D);
    float* const value_columns = memory.take(all * E);
    float* const own = alone ? memory.take(all * (D + E)) : nullptr;
    float* const line = memory.take(KEYS * E);
    float* const dq = memory.take(ROWS * D);
    Block b;
    b.q = memory.take(ROWS * D);
    b.g = memory.take(ROWS * E);
    b.s = memory.take(ROWS * KEYS);
    b.d = memory.take(ROWS * KEYS);
    float odd = 0;
    for (i64 part = first; part < last; ++part) {
        const Piece p = piece_of(n, part / n.pieces, part % n.pieces);
        float* const dk = alone ? own : (float*)a[P_shares] + part * all * (D + E);
        float* const dv = dk + all * D;
        filled<float>(dk, all * (D + E), 0.0f);
        odd += columns_copied(n, columns, keys, AT(const T, k, p.batch, p.key_head, 0), n.k_row, n.depth, p.begin,
                              p.end, nullptr);
        odd += columns_copied(n, value_columns, nullptr, AT(const T, v, p.batch, p.key_head, 0), n.v_row,
                              n.value_depth, p.begin, p.end, line);
        for (i64 unit = p.first; unit < p.last; ++unit) {
            b.batch = p.batch, b.head = p.key_head * p.group + unit / p.blocks, b.query = unit % p.blocks * n.block;
            b.rows = least(n.block, n.queries - b.query);
            odd += begun(n, a, b, columns, p.begin, p.end);
            filled<float>(dq, b.rows * D, 0.0f);
            for (i64 key = p.begin; key < p.end; key += KEYS) {
                const Meeting m = met(n, b.query, b.rows, key);
                if (!m.rows) continue;
                score_gradients(n, a, b, m, columns, value_columns, (float)n.scale);
                const i64 from = m.first_row;
                multiplied<true>(m.keys, m.rows, E, b.s + from * KEYS, KEYS, b.g + from * E, E, dv + key * E, E, false);
                multiplied<true>(m.keys, m.rows, D, b.d + from * KEYS, KEYS, b.q + from * D, D, dk + key * D, D, false);
                multiplied<false>(m.rows, m.keys, D, b.d + from * KEYS, KEYS, keys + key * D, D, dq + from * D, D,
                                  false);
            }
            stored(AT(T, dq, b.batch, b.head, b.query), n.dq_row, dq, D, b.rows, n.depth);
        }
        if (!alone) continue;
        stored(AT(T, dk, p.batch, p.key_head, 0), n.dk_row, dk, D, n.keys, n.depth);
        stored(AT(T, dv, p.batch, p.key_head, 0), n.dv_row, dv, E, n.keys, n.value_depth);
    }
    if (odd != odd) *(i64*)a[P_odd] = 1;
}

// The gradient of what is added to scores: a part owns a place of the batch and a head of it, and a piece of the
// blocks of queries, and adds up what its numbers were added to.
static void shift_gradient(const Numbers& n, Pointers a, const i64 first, const i64 last) {
    const i64 D = padded(n.depth), E = padded(n.value_depth), all = padded_keys(n), line_size = KEYS * most(D, E);
    Memory memory(all * (D + E) + line_size + ROWS * (D + E + 2 * KEYS) + 128);
    float* const columns = memory.take(all * D);
    float* const value_columns = memory.take(all * E);
    float* const line = memory.take(line_size);
    Block b;
    b.q = memory.take(ROWS * D);
    b.g = memory.take(ROWS * E);
    b.s = memory.take(ROWS * KEYS);
    b.d = memory.take(ROWS * KEYS);
    const i64 batches = n.pairs / n.key_heads, blocks = blocks_of(n);
    float odd = 0;
    for (i64 part = first; part < last; ++part) {
        const i64 piece = part % n.pieces, place = part / n.pieces;
        const i64 head_0 = place % n.own_heads, batch_0 = place / n.own_heads;
        const i64 block_0 = blocks * piece / n.pieces, block_1 = blocks * (piece + 1) / n.pieces;
        const i64 begin = first_key(n, block_0 * n.block) / KEYS * KEYS;
        const i64 end = most(begin, last_key(n, least(n.queries, block_1 * n.block) - 1));
        for (i64 batch = batch_0; batch < batches; batch += n.own_batch)
            for (i64 head = head_0; head < n.heads; head += n.own_heads) {
                const i64 key_head = head / (n.heads / n.key_heads);
                odd += columns_copied(n, columns, nullptr, AT(const T, k, batch, key_head, 0), n.k_row, n.depth,
                                      begin, end, line);
                odd += columns_copied(n, value_columns, nullptr, AT(const T, v, batch, key_head, 0), n.v_row,
                                      n.value_depth, begin, end, line);
                for (i64 block = block_0; block < block_1; ++block) {
                    b.batch = batch, b.head = head, b.query = block * n.block;
                    b.rows = least(n.block, n.queries - b.query);
                    odd += begun(n, a, b, columns, begin, end);
                    for (i64 key = begin; key < end; key += KEYS) {
                        const Meeting m = met(n, b.query, b.rows, key);
                        if (!m.rows) continue;
                        score_gradients(n, a, b, m, columns, value_columns, 1.0f);
                        for (i64 r = m.first_row; r < m.first_row + m.rows; ++r) {
                            const float* const from = b.d + r * KEYS;
                            float* const to = AT(float, total, batch, head, b.query + r) + key * n.total_key;
                            if (n.total_key) {
                                _Pragma("omp simd")
                                for (i64 k = 0; k < m.keys; ++k) to[k] += from[k];
                            } else {
                                float sum = 0;
                                _Pragma("omp simd reduction(+:sum)")
                                for (i64 k = 0; k < m.keys; ++k) sum += from[k];
                                *to += sum;
                            }
                        }
                    }
                }
            }
    }
    if (odd != odd) *(i64*)a[P_odd] = 1;
}

}
extern "C" void NAME(void* const* const a, const i64 first, const i64 last) {
    using namespace n_NAME;
    const Numbers& n = *(const Numbers*)a[P_numbers];
    (n.of_shift ? shift_gradient : backward)(n, a, first, last);
}
