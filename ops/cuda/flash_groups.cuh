// Products of tiles in shared memory by four warps at once (wgmma, PTX ISA: compute capability 9.0 alone), for fused
// attention.
//
// Four warps, a group, multiply 64 rows of A, each of them 16; a lane holds the same elements of its warp's rows of C,
// and of an A in registers, as in flash_halves.cuh. A tile in shared memory is made of panels of 64 columns,
// whose rows are 128 bytes long and follow each other from a multiple of 1,024 bytes on; the 16 bytes of row r with
// number c are at place c ^ (r & 7). Read along its rows it is the rows of A, or the columns of B; read across them it
// is the rows of B.

#include "flash_group_instructions.cuh"

// Of a tile of COUNT rows: bytes to the columns of a step of a product over the depth.
template <int COUNT> __device__ __forceinline__ constexpr int step_bytes(int step) {
    return step / 4 * COUNT * 128 + step % 4 * 32;
}
// The tile of this thread's group, of one of ROWS.
__device__ __forceinline__ Tile own_tile_at(const E* rows) { return ahead(tile_at(rows), first_of_group() * 128); }
// c = A B over the depth, where B is rows of a tile of COUNT.
template <int COUNT, int N> __device__ __forceinline__ void over_depth(float (&c)[N][4], Tile a, Tile b) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
        multiply_tiles(c, ahead(a, step_bytes<ROWS>(step)), ahead(b, step_bytes<COUNT>(step)), step > 0);
}
// sum += A B, where B is the rows that the columns of A stand for, of a tile of COUNT.
template <int COUNT, int N>
__device__ __forceinline__ void over_rows(float (&sum)[OUTPUTS][4], const Part (&a)[N], Tile b) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
        multiply_rows<0>(sum, a[j], ahead(b, j * 16 * 128));
        if constexpr (OUTPUTS > 8) multiply_rows<8>(sum, a[j], ahead(b, (COUNT + j * 16) * 128));
    }
}
template <int N> __device__ __forceinline__ void as_parts(Part (&a)[N], const float (&c)[2 * N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j) a[j] = as_a(c[2 * j], c[2 * j + 1]);
}
