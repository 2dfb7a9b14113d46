// The row of a part of a table that an id names, -1 for none.
template <long long SIZE, long long OFFSET, long long TOTAL> __device__ __forceinline__ long long row_of(long long id) {
    if (TOTAL && id < 0) id += TOTAL;
    id -= OFFSET;
    return id >= 0 && id < SIZE ? id : -1;
}
// GROUP lanes multiply the rows of both ends of an edge, of each of its HEADS. Edges are taken as `names` are sorted,
// so that neighbours read the same rows at one end.
extern "C" __global__ void __launch_bounds__(BLOCK) edge_products(
    const T* first, const I* first_ids, const U* second, const J* second_ids, const u64* names, O* out) {
    const u64 at = ((u64)blockIdx.x * BLOCK + threadIdx.x) / GROUP;
    const int lane = threadIdx.x % GROUP;
    const long long head = at % HEADS;
    u64 edge = at / HEADS;
    A total = 0;
    if (at < (u64)COUNT * HEADS) {
        if (ORDERED) edge = (unsigned int)names[edge];
        const long long one = row_of<FIRST>((long long)first_ids[edge]),
                        other = row_of<SECOND>((long long)second_ids[edge]);
        if (one >= 0 && other >= 0) {
#pragma unroll 4
            for (int i = lane; i < INNER; i += GROUP) {
                const auto x = pack_at<T, V>(first + ((u64)(one * HEADS + head) * INNER + i) * V);
                const auto y = pack_at<U, V>(second + ((u64)(other * HEADS + head) * INNER + i) * V);
                for (int j = 0; j < V; ++j) total += (A)wide(x.at[j]) * (A)wide(y.at[j]);
            }
        }
    }
    total = over_group<Sum, GROUP>(total);
    if (at < (u64)COUNT * HEADS && !lane) out[edge * HEADS + head] = narrow<O>(total);
}
