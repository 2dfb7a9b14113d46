#include "attention.h"

static void forward(const Numbers& n, Pointers a, const i64 first, const i64 last) {
    const i64 D = padded(n.depth), E = padded(n.value_depth), all = padded_keys(n);
    Memory memory(all * (D + E) + KEYS * D + ROWS * (D + E + KEYS) + 128);
    float* const columns = memory.take(all * D);
    float* const values = memory.take(all * E);
    float* const line = memory.take(KEYS * D);
    float* const q = memory.take(ROWS * D);
    float* const s = memory.take(ROWS * KEYS);
    float* const o = memory.take(ROWS * E);
    float peak[ROWS];
    double total[ROWS];
    Factors made;
    const bool drops = n.has_draws || n.has_keep;
    float odd = 0;
    for (i64 part = first; part < last; ++part) {
        const Piece p = piece_of(n, part / n.pieces, part % n.pieces);
        odd += columns_copied(n, columns, nullptr, AT(const T, k, p.batch, p.key_head, 0), n.k_row, n.depth, p.begin,
                              p.end, line);
        odd += rows_copied(values + p.begin * E, E, AT(const T, v, p.batch, p.key_head, p.begin), n.v_row,
                           least(n.keys, p.end) - p.begin, n.value_depth);
        for (i64 unit = p.first; unit < p.last; ++unit) {
            const i64 head = p.key_head * p.group + unit / p.blocks, query = unit % p.blocks * n.block;
            const i64 rows = least(n.block, n.queries - query);
            odd += rows_copied(q, D, AT(const T, q, p.batch, head, query), n.q_row, rows, n.depth);
            for (i64 r = 0; r < rows; ++r) peak[r] = NOTHING, total[r] = 0;
            filled<float>(o, rows * E, 0.0f);
            for (i64 key = p.begin; key < p.end; key += KEYS) {
                const Meeting m = met(n, query, rows, key);
                if (!m.rows) continue;
                const i64 width = padded(m.keys), begin = m.first_row;
                multiplied<false>(m.rows, D, width, q + begin * D, D, columns + key * D, KEYS, s + begin * KEYS, KEYS,
                                  true);
                for (i64 r = begin; r < begin + m.rows; ++r) {
                    float* const row = s + r * KEYS;
                    scored(n, a, row, p.batch, head, query + r, key, m.keys, width);
                    const float top = Greater::of(peak[r], row_top(row, width));
                    const float safe = top == NOTHING ? 0.0f : top;
                    const float sum = row_powers<true>(row, width, safe);
                    if (top != peak[r]) {
                        const float before = power(peak[r] - safe);
                        total[r] *= before;
                        row_times(o + r * E, E, before);
                    }
                    peak[r] = top;
                    total[r] += sum;
                    if (drops)
                        row_times(row, width, factors(n, a, made, p.batch, head, query + r, key, width));
                }
                multiplied<false>(m.rows, m.keys, E, s + begin * KEYS, KEYS, values + key * E, E, o + begin * E, E,
                                  false);
            }
            float* const statistics = (float*)a[P_statistics] + (p.batch * n.heads + head) * n.queries + query;
            for (i64 r = 0; r < rows; ++r) {
                const bool some = total[r] != 0;
                const float safe = peak[r] == NOTHING ? 0.0f : peak[r];
                statistics[r] = some ? safe + log((float)total[r]) : NOTHING;
                row_times(o + r * E, E, some ? (float)(1.0 / total[r]) : 1.0f);
            }
            stored(AT(T, o, p.batch, head, query), n.o_row, o, E, rows, n.value_depth);
        }
    }
    if (odd != odd) *(i64*)a[P_odd] = 1;
}

}
extern "C" void NAME(void* const* const a, const i64 first, const i64 last) {
    using namespace n_NAME;
    const Numbers& n = *(const Numbers*)a[P_numbers];
    forward(n, a, first, last);
}
