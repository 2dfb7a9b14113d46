// The function of weights' gradients. a: image, gradient of the result, result, memory of the packed gradient, and
// numbers.
#include "convolution.h"
    const i64 size = (n.most_rows + ROWS) * LANES, width = (n.inners + n.pieces - 1) / n.pieces;
    const i64 plane = n.slab_0 * n.slab_1 * n.slab_2 * (n.spread ? LANES : 1);
    void* raw;
    float* const sums = fresh(size * width, n.direct ? 0 : n.images * n.channels * plane, &raw);
    float* const slab = sums + size * width;
    const i64 start[3] = {n.start_0, n.start_1, n.start_2};
    for (i64 part = first; part < last; ++part) {
        if (part < n.prepared) {
            const i64 image = part % n.batch, inner = part / n.batch % n.inners, outer = part / n.batch / n.inners;
            const float* const from = b + image * n.b_image + outer * n.b_outer + inner * n.b_inner;
            const i64 lanes = present(n.lanes, n.spread ? outer : inner);
            packed(ready + part * n.positions * LANES, from, t + n.factors, n.positions, lanes, n.b_lane);
            continue;
        }
        const i64 number = part - n.prepared;
        const i64 piece = number % n.pieces, block = number / n.pieces % n.blocks, outer = number / n.pieces / n.blocks;
        const i64 begin = n.inners * piece / n.pieces, end = n.inners * (piece + 1) / n.pieces;
        const i64 channel = block * n.channels;
        const i64 channels = n.all_channels - channel < n.channels ? n.all_channels - channel : n.channels;
        const i64 count = channels * n.window;
        for (i64 image = 0; image < n.batch; image += n.images) {
            const i64 images = n.batch - image < n.images ? n.batch - image : n.images;
            const float* const from = x + image * n.x_image + outer * n.x_outer + channel * n.x_channel;
            const float* looked = slab;
            if (n.direct) looked = from + start[0] * n.x_0 + start[1] * n.x_1 + start[2] * n.x_2;
            else
                for (i64 i = 0; i < images; ++i)
                    copied(slab + i * n.channels * plane, from + i * n.x_image, n, channels, start,
                           present(n.lanes, outer));
            for (i64 k = 0; k < images * n.positions; k += TERMS) {
                const i64 terms = images * n.positions - k < TERMS ? images * n.positions - k : TERMS;
                for (i64 inner = begin, some; inner < end; inner += some) {
                    some = n.spread || end - inner < PAIRED ? 1 : PAIRED;
                    const i64 place = ((outer * n.inners + inner) * n.batch + image) * n.positions + k;
                    added(n.spread, looked, t + n.rows, count, t + n.columns + k, terms, ready + place * LANES,
                          n.batch * n.positions * LANES, sums + (inner - begin) * size, size, some, !image && !k);
                }
            }
        }
        for (i64 inner = begin; inner < end; ++inner) {
            float* const to = y + outer * n.y_outer + inner * n.y_inner + t[n.made + channel * n.window];
            stored(to, sums + (inner - begin) * size, t + n.made, count, present(n.lanes, n.spread ? outer : inner),
                   n.y_lane);
        }
    }
    __builtin_free(raw);
}
