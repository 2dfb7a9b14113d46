// The function of results and of images' gradients. a: image, weights, result, memory of packed weights, numbers, and
// an Int64 that is set to 1 if a weight is not finite.
#include "convolution.h"
    const i64 plane = n.slab_0 * n.slab_1 * n.slab_2 * (n.spread ? LANES : 1);
    const i64 size = (n.most_rows + ROWS) * LANES;
    void* raw;
    float* const sums = fresh(PAIRED * size, n.direct ? 0 : n.images * n.channels * plane, &raw);
    float* const slab = sums + PAIRED * size;
    const Share* const shares = (const Share*)(t + n.first_share);
    for (i64 part = first; part < last; ++part) {
        if (part < n.prepared) {
            const Share& s = shares[part % n.shares];
            const i64 inner = part / n.shares % n.inners, outer = part / n.shares / n.inners;
            float* const to = ready + s.packed + (outer * n.inners + inner) * s.terms * LANES;
            const i64 lanes = present(n.lanes, n.spread ? outer : inner);
            if (packed(to, b + outer * n.b_outer + inner * n.b_inner, t + s.factors, s.terms, lanes, n.b_lane))
                *(i64*)a[5] = 1;
            continue;
        }
        const i64 piece = (part - n.prepared) % n.pieces, outer = (part - n.prepared) / n.pieces % n.outers;
        const i64 begin = n.inners * piece / n.pieces, end = n.inners * (piece + 1) / n.pieces;
        const i64 number = (part - n.prepared) / n.pieces / n.outers;
        const i64 chunk = number % n.chunks, image = number / n.chunks * n.images;
        const i64 images = n.batch - image < n.images ? n.batch - image : n.images;
        const i64 start[3] = {n.start_0 + chunk * n.move_0, n.start_1 + chunk * n.move_1, n.start_2};
        const float* const from = x + image * n.x_image + outer * n.x_outer;
        const float* looked = slab;
        if (n.direct) looked = from + start[0] * n.x_0 + start[1] * n.x_1 + start[2] * n.x_2;
        else
            for (i64 i = 0; i < images; ++i)
                copied(slab + i * n.channels * plane, from + i * n.x_image, n, n.channels, start,
                       present(n.lanes, outer));
        for (i64 each = 0; each < n.shares; ++each) {
            const Share& s = shares[each];
            const i64 count = images * (chunk == n.chunks - 1 ? s.last_positions : s.positions);
            if (!count) continue;
            for (i64 inner = begin, some; inner < end; inner += some) {
                some = n.spread || end - inner < PAIRED ? 1 : PAIRED;
                const float* const w = ready + s.packed + (outer * n.inners + inner) * s.terms * LANES;
                i64 k = 0;
                do {
                    const i64 terms = s.terms - k < TERMS ? s.terms - k : TERMS;
                    added(n.spread, looked, t + s.rows, count, t + s.columns + k, terms, w + k * LANES, s.terms * LANES,
                          sums, size, some, !k);
                    k += TERMS;
                } while (k < s.terms);
                float* const to = y + image * n.y_image + chunk * n.y_move + outer * n.y_outer;
                for (i64 i = 0; i < some; ++i)
                    stored(to + (inner + i) * n.y_inner, sums + i * size, t + s.made, count,
                           present(n.lanes, n.spread ? outer : inner + i), n.y_lane);
            }
        }
    }
    __builtin_free(raw);
}
