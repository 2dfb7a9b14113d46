r"""Products of tiles in shared memory by four warps at once (wgmma, PTX ISA: compute capability 9.0 alone), for fused
attention.

Four warps, a group, multiply 64 rows of A, each of them 16; a lane holds of its warp's rows of C, and of an A in
registers, what `flash_products` says of halves. A tile in shared memory is made of panels of 64 columns, whose rows are
128 bytes long and follow each other from a multiple of 1,024 bytes on; of row r the 16 bytes with number c lie at place
c ^ (r & 7). Read along its rows it is the rows of A, or the columns of B; read across them it is the rows of B.
"""

from __future__ import annotations

PANEL = 64
"""Columns of a panel, halves in 128 bytes, and rows of a group."""
MOST_PANELS = 2
"""Of a row, whose sums fit into registers."""


def _registers(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{first + i}" for i in range(count)) + "}"


def _sums(count: int, first: str = "") -> str:
    return ", ".join(f'"+f"(c[{first}{i // 4}][{i % 4}])' for i in range(count))


def _product(columns: int, *, of_rows: bool) -> str:
    """C++ of the product with B of so many columns. of_rows: of an A in registers with rows of a panel, which is added
    to c from FIRST on; else of two tiles along their rows, added where `more` is not 0."""
    count = columns // 2
    shape = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32."
    head = f'"{{.reg .pred p; setp.ne.b32 p, %{count + 2}, 0; {shape}" PTX "." PTX " {_registers(0, count)}, "'
    if of_rows:
        return f"""template <int FIRST, int N>
__device__ __forceinline__ void multiply_rows(float (&c)[N][4], const Part& a, Tile b) {{
    asm volatile("{shape}" PTX "." PTX " {_registers(0, count)}, {_registers(count, 4)}, %{count + 4}, 1, 1, 1, 1;"
        : {_sums(count, "FIRST + ")} : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "l"(b));
}}
"""
    return f"""__device__ __forceinline__ void multiply_tiles(float (&c)[{count // 4}][4], Tile a, Tile b, int more) {{
    asm volatile({head}
        "%{count}, %{count + 1}, p, 1, 1, 0, 0;}}"
        : {_sums(count)} : "l"(a), "l"(b), "r"(more));
}}
"""


GROUP_INSTRUCTIONS = (
    r"""
typedef u64 Tile;
// Where a tile begins, its rows in eights of 1,024 bytes; and a place so many bytes behind.
__device__ __forceinline__ Tile tile_at(const void* rows) {
    return (Tile)((shared_address(rows) & 0x3ffff) >> 4) | (Tile)1 << 16 | (Tile)64 << 32 | (Tile)1 << 62;
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
// c = A B or c += A B: 16 columns of A's rows and of B's columns.
"""
    + _product(16, of_rows=False)
    + _product(32, of_rows=False)
    + _product(64, of_rows=False)
    + "// c += A B: 16 columns of A, rows of B.\n"
    + _product(64, of_rows=True)
)
GROUPS = r"""
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
"""
