typedef unsigned int word;
__device__ __forceinline__ word await(volatile u64* place, word call) {
    u64 found;
    do { found = *place; } while ((word)(found >> 32) != call);
    return (word)found;
}
__device__ __forceinline__ word combined(word a, word b) {
    T x = *(T*)&a, y = *(T*)&b, z = HOW;
    return *(word*)&z;
}
__device__ __forceinline__ void send(
    const word* given, int count, int apart, size_t begin, word call, const u64* boxes
) {
    for (int i = threadIdx.x; i < count; i += THREADS)
        for (int peer = 0; peer < RANKS; ++peer)
            if (peer != OWN)
                *((volatile u64*)boxes[peer] + begin + OWN * WORDS + i) = (u64)call << 32 | given[peer * apart + i];
}
__device__ __forceinline__ void receive(
    const word* given, word* out, int count, int apart, size_t begin, word call, const u64* boxes
) {
    volatile u64* mine = (volatile u64*)boxes[OWN] + begin;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        word total = 0, own = given[OWN * apart + i];
        for (int peer = 0; peer < RANKS; ++peer) {
            word part = peer == OWN ? own : await(mine + peer * WORDS + i, call);
            if (COMBINES) total = peer ? combined(total, part) : part;
            else out[peer * count + i] = part;
        }
        if (COMBINES) out[i] = total;
    }
}
extern "C" __global__ void __launch_bounds__(THREADS) exchange_words(
    ARRAYS, u64* calls, const u64* boxes, int apart, volatile long long* place, const long long* step, long long mark
) {
    const word* const given[] = {GIVEN};
    word* const out[] = {OUT};
    const int counts[] = {COUNTS};
    int words = 0;
    #pragma unroll
    for (int k = 0; k < PIECES; ++k) words += counts[k];
    word call = (word)calls[0] + 1;
    size_t begin = (size_t)(call & 1) * RANKS * WORDS;
    if (threadIdx.x == 0 && place) *place = mark | step[0] << STEP_SHIFT;
    #pragma unroll
    for (int k = 0, here = begin; k < PIECES; here += counts[k++]) send(given[k], counts[k], apart, here, call, boxes);
    #pragma unroll
    for (int k = 0, here = begin; k < PIECES; here += counts[k++])
        receive(given[k], out[k], counts[k], apart, here, call, boxes);
    __syncthreads();
    // Without words nobody is heard: the turns of the sides would say nothing of what peers have read.
    if (threadIdx.x == 0 && words) calls[0] = call;
}
