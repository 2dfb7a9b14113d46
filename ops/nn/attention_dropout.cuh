__device__ __forceinline__ u64 place_of_row(long long row) {
    typedef long long Index;
    @coordinates@
    return (@terms@) * @columns@ull;
}
#if @aligned@
// If rows begin with whole groups of elements, a word is a row's part plus a key's, ready to be mixed.
typedef u64 Word;
__device__ __forceinline__ Word word_of_row(long long row, const long long* step, u64 seed) {
    return word_of_place(place_of_row(row)) * GOLDEN + mixed(seed + (u64)*step) + GOLDEN;
}
__device__ __forceinline__ Word word_of_key(int key) { return word_of_place(key) * GOLDEN; }
__device__ __forceinline__ unsigned int bits_of(Word row, int key) {
    return (unsigned int)(mixed(row + word_of_key(key)) >> (((key & 1) | (key >> 2 & 2)) * 16)) & 0xffff;
}
#else
// Elsewhere each weight has a word of its own.
struct Word {
    u64 place, key;
    __device__ __forceinline__ Word operator+(const Word& word) const { return {place + word.place, key + word.key}; }
};
__device__ __forceinline__ Word word_of_row(long long row, const long long* step, u64 seed) {
    return {place_of_row(row), mixed(seed + (u64)*step)};
}
__device__ __forceinline__ Word word_of_key(int key) { return {(u64)key, 0}; }
__device__ __forceinline__ unsigned int bits_of(const Word& row, int key) { return bits_at(row.place + key, row.key); }
#endif

__device__ __forceinline__ bool stays(Word row, int key) { return bits_of(row, key) < @count@u; }
#define KEPT_FACTOR ((@type@)@factor@)
