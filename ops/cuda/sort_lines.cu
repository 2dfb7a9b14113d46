#include "sorted_keys.cuh"
#include "merged_chunks.cuh"

constexpr Key TOP = (Key)1 << (8 * sizeof(Key) - 1);
#ifdef BITS
// What is no number comes last, and zeros are equal.
__device__ __forceinline__ Key key_of(T given) {
    const V v = wide(given);
    if (v != v) return DESCENDING ? 0 : ~(Key)0;
    const Key bits = v == 0 ? 0 : BITS(v), key = bits >> (8 * sizeof(Key) - 1) ? ~bits : bits | TOP;
    return DESCENDING ? ~key : key;
}
#else
__device__ __forceinline__ Key key_of(T v) {
    const Key key = SIGNED ? (Key)(V)v ^ TOP : (Key)v;
    return DESCENDING ? ~key : key;
}
#endif
constexpr int BLOCKS = (COUNT + BLOCK - 1) / BLOCK;
// Where a line begins, of which neighbours are INNER apart.
__device__ __forceinline__ Index begin_of(Index line) { return line / INNER * COUNT * INNER + line % INNER; }

extern "C" __global__ void __launch_bounds__(BLOCK) sort_chunks(const T* x, Key* keys, int* chunks, T* out,
                                                                Place* places) {
    __shared__ Key others[BLOCK];
    const int own = blockIdx.x % BLOCKS * BLOCK, at = own + threadIdx.x;
    const Index line = blockIdx.x / BLOCKS, base = begin_of(line);
    const int begin = own / CHUNK * CHUNK, end = begin + CHUNK < COUNT ? begin + CHUNK : COUNT;
    const Key mine = at < end ? key_of(x[base + (Index)at * INNER]) : 0;
    int ahead = 0;
    for (int start = begin; start < end; start += BLOCK) {
        const int other = start + threadIdx.x, count = end - start < BLOCK ? end - start : BLOCK;
        const Key its = other < end ? key_of(x[base + (Index)other * INNER]) : 0;
        __syncthreads();
        others[threadIdx.x] = its;
        __syncthreads();
        if (start < own) {
#pragma unroll 8
            for (int i = 0; i < count; ++i) ahead += others[i] <= mine;
        } else if (start > own) {
#pragma unroll 8
            for (int i = 0; i < count; ++i) ahead += others[i] < mine;
        } else {
            for (int i = 0; i < count; ++i) ahead += others[i] < mine || (others[i] == mine && i < (int)threadIdx.x);
        }
    }
    if (at >= end) return;
    if (COUNT <= CHUNK) {
        const Index to = base + (Index)ahead * INNER;
        out[to] = x[base + (Index)at * INNER];
        places[to] = at;
    } else {
        keys[line * COUNT + begin + ahead] = mine;
        chunks[line * COUNT + begin + ahead] = at;
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) merge_chunks(const T* x, const Key* keys, const int* chunks, T* out,
                                                                 Place* places) {
    const Index thread = (Index)blockIdx.x * BLOCK + threadIdx.x;
    if (thread >= (Index)LINES * COUNT) return;
    const Index line = thread / COUNT, base = begin_of(line);
    const int at = (int)(thread % COUNT), place = place_of_key(keys + (thread - at), at);
    const Index from = base + (Index)chunks[thread] * INNER, to = base + (Index)place * INNER;
    out[to] = x[from];
    places[to] = chunks[thread];
}
