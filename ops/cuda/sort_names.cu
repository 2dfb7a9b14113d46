#include "merged_chunks.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK) sort_chunks(const Lookup* table, u64* sorted) {
    __shared__ int places[BLOCK];
    const int blocks = (COUNT + BLOCK - 1) / BLOCK, block = blockIdx.x % blocks, group = blockIdx.x / blocks;
    const int begin = block * BLOCK / CHUNK * CHUNK, end = begin + CHUNK < COUNT ? begin + CHUNK : COUNT;
    const int at = block * BLOCK + threadIdx.x;
    const Lookup& lookup = table[group / BATCH];
    const I* const ids = (const I*)lookup.ids + (u64)(group % BATCH) * COUNT;
    sorted += (u64)group * COUNT;
    const int mine = at < end ? place_of(ids[at], lookup) : NONE;
    int ahead = 0;
    for (int start = begin; start < end; start += BLOCK) {
        const int other = start + threadIdx.x < end ? place_of(ids[start + threadIdx.x], lookup) : -1;
        __syncthreads();
        // What is behind the end comes behind every name.
        places[threadIdx.x] = other < 0 ? NONE + 1 : other;
        __syncthreads();
        if (start == block * BLOCK) {
            for (int i = 0; i < BLOCK; ++i) ahead += places[i] < mine + (i < (int)threadIdx.x);
        } else {
            const int bound = mine + (start < at);
#pragma unroll 8
            for (int i = 0; i < BLOCK; ++i) ahead += places[i] < bound;
        }
    }
    if (at < end) sorted[begin + ahead] = name_of(mine, at);
}

extern "C" __global__ void __launch_bounds__(BLOCK) merge_chunks(const u64* chunks, u64* sorted) {
    const u64 thread = (u64)blockIdx.x * BLOCK + threadIdx.x;
    if (thread >= (u64)LOOKUPS * BATCH * COUNT) return;
    const int at = (int)(thread % COUNT);
    chunks += thread - at;
    sorted[thread - at + place_of_key(chunks, at)] = chunks[at];
}
