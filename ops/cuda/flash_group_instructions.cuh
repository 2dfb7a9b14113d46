typedef u64 Tile;
// Where a tile begins, its rows in eights of 1,024 bytes; and a place so many bytes behind.
__device__ __forceinline__ Tile tile_at(const void* rows) {
    return (Tile)((shared_at(rows) & 0x3ffff) >> 4) | (Tile)1 << 16 | (Tile)64 << 32 | (Tile)1 << 62;
}
__device__ __forceinline__ Tile ahead(Tile tile, int bytes) { return tile + (bytes >> 4); }
// Ahead of products: what was copied to shared memory, once the copies were waited for, and registers are seen by them.
__device__ __forceinline__ void show_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Behind them: sums may be read.
__device__ __forceinline__ void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
template <int N> __device__ __forceinline__ void made(float (&c)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[j][e]) :: "memory");
}
#define FOUR_SUMS(row) "+f"(row[0]), "+f"(row[1]), "+f"(row[2]), "+f"(row[3])
// c = A B or c += A B: 16 columns of A's rows and of B's columns.
__device__ __forceinline__ void multiply_tiles(float (&c)[2][4], Tile a, Tile b, int more) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %10, 0; "
        "wgmma.mma_async.sync.aligned.m64n16k16.f32." PTX "." PTX " "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, "
        "%8, %9, p, 1, 1, 0, 0;}"
        : FOUR_SUMS(c[0]), FOUR_SUMS(c[1])
        : "l"(a), "l"(b), "r"(more));
}
__device__ __forceinline__ void multiply_tiles(float (&c)[4][4], Tile a, Tile b, int more) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0; "
        "wgmma.mma_async.sync.aligned.m64n32k16.f32." PTX "." PTX " "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "%16, %17, p, 1, 1, 0, 0;}"
        : FOUR_SUMS(c[0]), FOUR_SUMS(c[1]), FOUR_SUMS(c[2]), FOUR_SUMS(c[3])
        : "l"(a), "l"(b), "r"(more));
}
__device__ __forceinline__ void multiply_tiles(float (&c)[8][4], Tile a, Tile b, int more) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." PTX "." PTX " "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, 0;}"
        : FOUR_SUMS(c[0]), FOUR_SUMS(c[1]), FOUR_SUMS(c[2]), FOUR_SUMS(c[3]),
          FOUR_SUMS(c[4]), FOUR_SUMS(c[5]), FOUR_SUMS(c[6]), FOUR_SUMS(c[7])
        : "l"(a), "l"(b), "r"(more));
}
// c += A B: 16 columns of A, rows of B.
template <int FIRST, int N>
__device__ __forceinline__ void multiply_rows(float (&c)[N][4], const Part& a, Tile b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." PTX "." PTX " "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : FOUR_SUMS(c[FIRST + 0]), FOUR_SUMS(c[FIRST + 1]), FOUR_SUMS(c[FIRST + 2]), FOUR_SUMS(c[FIRST + 3]),
          FOUR_SUMS(c[FIRST + 4]), FOUR_SUMS(c[FIRST + 5]), FOUR_SUMS(c[FIRST + 6]), FOUR_SUMS(c[FIRST + 7])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "l"(b));
}
