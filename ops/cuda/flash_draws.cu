typedef long long i64;
typedef unsigned int u32;
// What is kept of sixteen elements that four words decide.
__device__ __forceinline__ u32 kept(u64 group, u64 key) {
    u32 found = 0;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        const u64 word = mixed((4 * group + t) * GOLDEN + key + GOLDEN);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const u32 stay = (u32)(word >> 16 * e & 0xffff) < STAYING;
            found |= stay << (2 * t + (e & 1) + 8 * (e >> 1));
        }
    }
    return found;
}
// A thread draws a word of bits. BEGIN: place of the first weight where all of them are one run of elements, else -1.
extern "C" __global__ void flash_draws(u32* bits, i64 words, int keys, const i64* step, u64 seed) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= words) return;
    u64 found = 0;
    if (BEGIN >= 0) {
        const u64 key = mixed(seed + (u64)*step), first = ((u64)BEGIN >> 4) + 2 * at;
        found = kept(first, key) | (u64)kept(first + 1, key) << 16;
        if (BEGIN % 16) found = (found | (u64)kept(first + 2, key) << 32) >> BEGIN % 16;
    } else {
        i64 row = 32 * at / keys;
        int column = 32 * at - row * keys;
        Word word = word_of_row(row, step, seed);
        for (int e = 0; e < 32; ++e) {
            found |= (u64)stays(word, column) << e;
            if (++column == keys) column = 0, word = word_of_row(++row, step, seed);
        }
    }
    bits[at] = (u32)found;
}
