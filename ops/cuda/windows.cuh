struct Spot { Index n, c; int i[3]; };
// Which place of an image (or, with the other sizes, of a result) a thread makes.
template <int L0, int L1, int L2> __device__ __forceinline__ Spot spot_of(Index t) {
    Spot p;
    if (LAST) { p.c = t % (CHANNELS / V) * V; t /= CHANNELS / V; }
    p.i[2] = t % L2; t /= L2;
    p.i[1] = t % L1; t /= L1;
    p.i[0] = t % L0; t /= L0;
    if (!LAST) { p.c = t % CHANNELS; t /= CHANNELS; }
    p.n = t;
    return p;
}
template <int L0, int L1, int L2> __device__ __forceinline__ Index at(Index n, Index c, int i, int j, int k) {
    return LAST ? (((n * L0 + i) * L1 + j) * L2 + k) * CHANNELS + c : (((n * CHANNELS + c) * L0 + i) * L1 + j) * L2 + k;
}
__device__ __forceinline__ Index at_image(const Spot& p, int i, int j, int k) {
    return at<IN0, IN1, IN2>(p.n, p.c, i, j, k);
}
__device__ __forceinline__ Index at_result(const Spot& p, int i, int j, int k) {
    return at<OUT0, OUT1, OUT2>(p.n, p.c, i, j, k);
}
// Stores sums in the type of the result.
__device__ __forceinline__ void put_sums(T* out, const A (&total)[V]) {
    Pack<T, V> made;
    #pragma unroll
    for (int v = 0; v < V; ++v) made.at[v] = narrow<T>(total[v]);
    put_pack<T, V>(out, made);
}
// The first and the last position whose windows may hold a place along one dimension.
template <int SIZE, int STRIDE, int DILATION, int BEFORE> __device__ __forceinline__ int lowest(int i) {
    const int room = i + BEFORE - (SIZE - 1) * DILATION;
    return room <= 0 ? 0 : (room + STRIDE - 1) / STRIDE;
}
template <int STRIDE, int BEFORE, int OUT> __device__ __forceinline__ int highest(int i) {
    const int q = (i + BEFORE) / STRIDE;
    return i + BEFORE < 0 ? -1 : q < OUT ? q : OUT - 1;
}
#define POSITIONS(d, q, tap) \
    for (int q = lowest<SIZE##d, STRIDE##d, DILATION##d, BEFORE##d>(p.i[d]), \
             end##d = highest<STRIDE##d, BEFORE##d, OUT##d>(p.i[d]); q <= end##d; ++q) \
        if (const int apart##d = p.i[d] + BEFORE##d - q * STRIDE##d; apart##d % DILATION##d == 0) \
            if (const int tap = apart##d / DILATION##d; true)
#define TAPS(d, tap, place, q) \
    _Pragma("unroll") for (int tap = 0; tap < SIZE##d; ++tap) \
        if (const int place = q * STRIDE##d - BEFORE##d + tap * DILATION##d; place >= 0 && place < IN##d)
