#include "sorted_keys.cuh"

// A row of the table. Places of parts that are laid end to end begin at `begins`, those of blocks at `block`.
struct Lookup { u64 ids, rows, base, out, sources, weights, size, offset, total, begins, begins_block, block; };
__device__ __forceinline__ long long size_of(const Lookup& lookup) { return ALIKE ? SIZE : (long long)lookup.size; }
constexpr int NONE = 0x7ffffffe;
// The row of this part that an id names, NONE for none.
__device__ __forceinline__ int place_of(I id, const Lookup& lookup) {
    const long long total = ALIKE ? TOTAL : (long long)lookup.total;
    long long place = (long long)id;
    if (total && place < 0) place += total;
    place -= ALIKE ? OFFSET : (long long)lookup.offset;
    return place >= 0 && place < size_of(lookup) ? (int)place : NONE;
}
// A name: its place in the upper half, and its row in the lower one.
__device__ __forceinline__ u64 name_of(int place, int row) { return (u64)place << 32 | row; }
__device__ __forceinline__ int place_of_name(u64 name) { return (int)(name >> 32); }

// How many of `count` sorted names come before this one.
__device__ __forceinline__ int names_before(const u64* sorted, int count, u64 name) {
    return keys_before(sorted, count, name, false);
}
// The lookup whose share of the blocks this one is of: the last that begins at it or before.
template <u64 Lookup::*BEGIN> __device__ __forceinline__ int lookup_of_block(const Lookup* table) {
    int low = 0;
    for (int count = LOOKUPS; count > 1;) {
        const int half = count / 2;
        if (table[low + half].*BEGIN <= blockIdx.x) { low += half; count -= half; }
        else count = half;
    }
    return low;
}
