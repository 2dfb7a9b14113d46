// The row of this part that an id names, -1 for none.
__device__ __forceinline__ int place_of(I id) {
    long long place = (long long)id;
    if (TOTAL && place < 0) place += TOTAL;
    place -= OFFSET;
    return place >= 0 && place < SIZE ? (int)place : -1;
}

extern "C" __global__ void __launch_bounds__(256) @name@(const void* table, const I* ids, void* out) {
    const Index at = (Index)blockIdx.x * 256 + threadIdx.x;
    if (at >= PACKS) return;
    const Index i = at % INNER, row = at / INNER;
    const Index group = row / COUNT;
    const int place = place_of(ids[group / MIDDLE * COUNT + row % COUNT]);
    W v;
    if (place < 0) clear(v); else v = ((const W*)table)[(group * SIZE + place) * INNER + i];
    ((W*)out)[at] = v;
}
