typedef long long i64;
extern "C" __global__ void join_attention(
    const A* one, const W* of_one, const B* other, const W* of_other, W* out, W* statistics, i64 count,
    i64 heads, i64 queries, i64 depth, i64 batch_step, i64 head_step, i64 query_step
) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    const i64 d = at % depth, row = at / depth, q = row % queries, h = row / queries % heads;
    const i64 here = row / queries / heads * batch_step + h * head_step + q * query_step + d;
    const W left = of_one[row], right = of_other[row], highest = Largest::of(left, right);
    const W none = -INFINITE, top = highest == none ? (W)0 : highest;
    const W a = EXP(left - top), b = EXP(right - top), total = a + b;
    const W safe = total == 0 ? (W)1 : total;
    out[here] = (W)wide(one[here]) * (a / safe) + (W)wide(other[here]) * (b / safe);
    if (d == 0) statistics[row] = total == 0 ? none : top + LOG(safe);
}
