// C++ that the kernels of fused attention share: copies to shared memory, and the terms that turn products into scores.
//
// Elements are Float16, BFloat16 or Float32 (see flash_halves.cuh and flash_float32.cuh). Rows in shared memory are an
// odd multiple of 16 bytes long: eight of them meet no conflict of banks.
//
// D: DEPTH, the depth of a head, as a multiple of 16. E: elements, F: those of the shift, M: those of the mask, H:
// those of the second addend. RAW: whether nothing is added and the scale is above 0, so that products order queries'
// keys as scores do. GROUPED: whether tiles are in the order of flash_groups.cuh.
#include "flash_instructions.cuh"

typedef long long i64;
// Of elements: EACH in 16 bytes, a STEP of a product over the depth, from one row in shared memory to the next.
constexpr int EACH = 16 / sizeof(E), STEP = 2 * EACH, PITCH = GROUPED ? D : D + EACH;
constexpr int THREADS = 32 * WARPS, ROWS = 16 * BANDS * WARPS;
constexpr int STEPS = D / STEP, ACROSS = D / EACH, OUTPUTS = D / 8;
// Of how many columns a tile is gone over that is half empty: the least that products take.
constexpr int FEW = 16;
template <int N> struct Width { static constexpr int value = N; };
constexpr float LOG2_E = 1.4426950408889634f;
#define INFINITE __int_as_float(0x7f800000)

// What was copied to shared memory and waited for is there for products of tiles.
#if GROUPED
#define SHOW_COPIES show_copies()
#else
#define SHOW_COPIES (void)0
#endif
// The first of a block's rows that this thread's warps have where they multiply together.
__device__ __forceinline__ int first_of_group() {
    return WARPS > 4 ? __shfl_sync(0xffffffffu, threadIdx.x >> 7, 0) * 64 : 0;  // the same for a warp, and known to be
}

alignas(GROUPED ? 1024 : 16) extern __shared__ unsigned char memory[];

// Where 16 bytes of a row lie, from this column on, in a tile of COUNT rows.
template <int COUNT> __device__ __forceinline__ int place_of(int row, int column) {
    if constexpr (GROUPED != 0)
        return (column / 64 * COUNT + row) * 64 + ((column % 64 / EACH) ^ (row & 7)) * EACH;
    return row * PITCH + column;
}
// Copy COUNT rows of which `left` are there; the others, and elements behind DEPTH, become zeros.
template <int COUNT> __device__ __forceinline__ void fetch(E* to, const E* from, i64 step, int left) {
    if constexpr (THREADS % ACROSS == 0) {  // a thread takes the same columns of all of its rows
        constexpr int EVERY = THREADS / ACROSS;
        const int first = threadIdx.x / ACROSS, column = threadIdx.x % ACROSS * EACH;
        const bool inside = DEPTH == D || column < DEPTH;
        const E* row = from + first * step + column;
#pragma unroll
        for (int i = 0; i < (COUNT + EVERY - 1) / EVERY; ++i, row += EVERY * step) {
            if (COUNT % EVERY && first + i * EVERY >= COUNT) break;
            const bool there = inside && i * EVERY < left - first;
            copy_async(to + place_of<COUNT>(first + i * EVERY, column), there ? row : from, there);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < (COUNT * ACROSS + THREADS - 1) / THREADS; ++i) {
        const int at = i * THREADS + threadIdx.x, row = at / ACROSS, column = at % ACROSS * EACH;
        if (COUNT * ACROSS % THREADS && row >= COUNT) break;
        const bool there = row < left && (DEPTH == D || column < DEPTH);
        copy_async(to + place_of<COUNT>(row, column), there ? from + row * step + column : from, there);
    }
}
// Where a lane reads for load_matrices: as rows of A, as columns of B.
__device__ __forceinline__ int of_a(int lane) { return (lane & 15) * PITCH + (lane >> 4) * EACH; }
__device__ __forceinline__ int of_columns(int lane) {
    return ((lane >> 4) * 8 + (lane & 7)) * PITCH + (lane & 8 ? EACH : 0);
}

#define TERMS const F* shift, i64 f_b, i64 f_n, i64 f_i, i64 f_j, const M* mask, i64 m_b, i64 m_n, i64 m_i, i64 m_j, \
    const H* key_shift, i64 h_b, i64 h_n, i64 h_j, \
    const i64* step, u64 seed, const u32* bits_of_weights, int low, int high
// What is added to a score to the base 2, minus infinity where the query does not look at the key: of a key for all
// queries, and of a query beside it. KEYED: the shift (1) and the mask (2) that are the same for all queries, and the
// second addend (4), which always is.
#define OF_KEY(j) added<SHIFTED & KEYED, MASKED & KEYED>(shift + (j) * f_j, mask + (j) * m_j, key_shift + (j) * h_j)
#define ANY_KEYED ((SHIFTED | MASKED) & KEYED)
#define OF_QUERY(i, j) \
    added<SHIFTED & ~KEYED, MASKED & ~KEYED>(shift + (i) * f_i + (j) * f_j, mask + (i) * m_i + (j) * m_j, key_shift)
template <int SHIFTS, int MASKS>
__device__ __forceinline__ float added(const F* shift, const M* mask, const H* key_shift) {
    float found = 0;
    if constexpr ((SHIFTS & 1) != 0) found = __fmul_rn((float)wide(*shift), LOG2_E);
    if constexpr ((SHIFTS & 4) != 0) found += __fmul_rn((float)wide(*key_shift), LOG2_E);
    if constexpr (MASKS != 0) found = *mask ? -INFINITE : found;
    return found;
}
