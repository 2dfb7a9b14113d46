// The generator of random masks, see `ops/random/words.py`.
constexpr u64 GOLDEN = 0x9E3779B97F4A7C15ull;
__device__ __forceinline__ u64 mixed(u64 word) {
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ull;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBull;
    return word ^ (word >> 31);
}
// The word that decides the element at a place, its sixteen bits of it, and whether they keep it.
__device__ __forceinline__ u64 word_of_place(u64 place) { return place >> 4 << 2 | (place >> 1 & 3); }
__device__ __forceinline__ unsigned int bits_at(u64 place, u64 key) {
    const u64 word = mixed(word_of_place(place) * GOLDEN + key + GOLDEN);
    return (unsigned int)(word >> (((place & 1) | (place >> 2 & 2)) * 16)) & 0xffff;
}
__device__ __forceinline__ bool keeps(u64 place, u64 key, unsigned int count) { return bits_at(place, key) < count; }
