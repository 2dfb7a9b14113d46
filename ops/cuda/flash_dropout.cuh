// Functions that tell kernels which weights remain. DROPOUT: 0 if all do, 1 if bits in memory say it, 2 if threads draw
// and rows of weights begin with whole groups of elements, 3 if they draw elsewhere.
//
// * word_of(row, keys, step, seed): notes of a query's weights; window_of<WIDTH>(word, key, bits): of WIDTH of its
//   keys, from `key` on, which is 2t after a multiple of 16; drawn(window, ahead): Bits of keys 0 and 1 (which = 0;
//   half 0 and 1), 8 and 9 (which = 1) after `ahead`, a multiple of 16.
// * column_of(row, keys, key, step, seed, bits): notes of a query for the keys of a block from `key` on;
//   drawn_of_keys(key, inside, columns, odd): Bits of a key, and of the one 8 later (half), of two neighbouring queries
//   (which); inside: of the block's keys. The first key is odd or even. Lanes that differ in 4 have neighbouring keys.
// * stays(bits, which, half), and the macro KEPT_FACTOR: how many times a remaining weight counts.
#if DROPOUT == 0
struct Word {};
struct Column {};
struct Window {};
struct Bits {};
__device__ __forceinline__ Word word_of(i64, i64, const i64*, u64) { return {}; }
template <int WIDTH> __device__ __forceinline__ Window window_of(Word, int, const u32*) { return {}; }
__device__ __forceinline__ Bits drawn(Window, int) { return {}; }
__device__ __forceinline__ Column column_of(i64, i64, int, const i64*, u64, const u32*) { return {}; }
__device__ __forceinline__ Bits drawn_of_keys(int, int, const Column*, bool) { return {}; }
__device__ __forceinline__ bool stays(Bits, int, int) { return true; }
#define KEPT_FACTOR 1
#elif DROPOUT == 1
typedef i64 Word;
template <int N> struct Some { u32 at[N]; };
template <int N> __device__ __forceinline__ Some<N> bits_from(i64 first, const u32* bits) {
    bits += first >> 5;
    Some<N> found;
    u32 here = *bits;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const u32 next = *++bits;
        found.at[i] = __funnelshift_r(here, next, first & 31);
        here = next;
    }
    return found;
}
typedef Some<(ROWS + 31) / 32> Column;
struct Bits { u32 at[2]; };
__device__ __forceinline__ Word word_of(i64 row, i64 keys, const i64*, u64) { return row * keys; }
template <int WIDTH> __device__ __forceinline__ Some<(WIDTH + 31) / 32> window_of(Word row, int key, const u32* bits) {
    return bits_from<(WIDTH + 31) / 32>(row + key, bits);
}
template <int N> __device__ __forceinline__ Bits drawn(const Some<N>& window, int ahead) {
    const u32 part = window.at[ahead / 32] >> ahead % 32;
    return {part, part >> 8};
}
__device__ __forceinline__ Column column_of(i64 row, i64 keys, int key, const i64*, u64, const u32* bits) {
    return bits_from<(ROWS + 31) / 32>(row * keys + key, bits);
}
__device__ __forceinline__ Bits drawn_of_keys(int, int inside, const Column* columns, bool) {
    const u32 first = columns[0].at[inside / 32] >> inside % 32, second = columns[1].at[inside / 32] >> inside % 32;
    return {(first & 1) | (first >> 7 & 2), (second & 1) | (second >> 7 & 2)};
}
__device__ __forceinline__ bool stays(Bits bits, int which, int half) { return bits.at[which] >> half & 1; }
#else
typedef Word Column;
typedef Word Window;
struct Bits { u32 at[2]; };
__device__ __forceinline__ Word word_of(i64 row, i64, const i64* step, u64 seed) {
    return word_of_row(row, step, seed);
}
template <int WIDTH> __device__ __forceinline__ Window window_of(Word row, int key, const u32*) {
    return row + word_of_key(key);
}
__device__ __forceinline__ Column column_of(i64 row, i64, int, const i64* step, u64 seed, const u32*) {
    return word_of_row(row, step, seed);
}
__device__ __forceinline__ bool stays(Bits bits, int which, int half) {
    return (bits.at[which] >> 16 * half & 0xffff) < STAYING;
}
#if DROPOUT == 2
__device__ __forceinline__ Bits drawn_of_word(Word word) {
    const u64 bits = mixed(word);
    return {(u32)bits, (u32)(bits >> 32)};
}
__device__ __forceinline__ Bits drawn(Window window, int ahead) { return drawn_of_word(window + word_of_key(ahead)); }
// Each of two lanes draws for one of the rows, and hands on what is of the other's key.
__device__ __forceinline__ Bits drawn_of_keys(int key, int, const Column* columns, bool odd) {
    const Bits own = drawn_of_word(word_of_key(key) + columns[odd]);
    const u32 first = (own.at[0] & 0xffff) | own.at[1] << 16;
    const u32 second = own.at[0] >> 16 | (own.at[1] & 0xffff0000);
    const u32 kept = odd ? second : first, given = odd ? first : second;
    const u32 other = __shfl_xor_sync(0xffffffffu, given, 4);
    return {odd ? other : kept, odd ? kept : other};
}
#else
__device__ __forceinline__ Bits drawn(const Window& window, int ahead) {
    const Word word = window + word_of_key(ahead);
    return {bits_of(word, 0) | bits_of(word, 1) << 16, bits_of(word, 8) | bits_of(word, 9) << 16};
}
__device__ __forceinline__ Bits drawn_of_keys(int key, int, const Column* columns, bool) {
    const Word first = columns[0] + word_of_key(key), second = columns[1] + word_of_key(key);
    return {bits_of(first, 0) | bits_of(first, 8) << 16, bits_of(second, 0) | bits_of(second, 8) << 16};
}
#endif
#endif
