// ----- common

typedef unsigned int u32;
struct Part { u32 at[4]; };
namespace cores {
static const unsigned char* rows[2][8][32];
static unsigned int rounds[1024], loads[1024];
static auto& given(const void* row) {
    if ((unsigned long long)row % 16) __builtin_trap();
    auto& rows = cores::rows[cores::loads[threadIdx.x]++ & 1][threadIdx.x / 32];
    rows[threadIdx.x % 32] = (const unsigned char*)row;
    __syncwarp();
    return rows;
}
}
static Part load_matrices(const void* row) {
    const int r = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    auto& rows = cores::given(row);
    Part to;
    for (int m = 0; m < 4; ++m) std::memcpy(&to.at[m], rows[8 * m + r] + 4 * c, 4);
    return to;
}
static void copy_async(void* to, const void* from, bool there) {
    if (((unsigned long long)to | (unsigned long long)from) % 16) __builtin_trap();
    static const float zeros[4] = {0, 0, 0, 0};
    start_copy<16>((Shared)to, there ? from : zeros);
}
static float power_of_2(float v) { return exp2f(v); }
// ----- tf32

namespace cores {
static float a_of[2][8][16][8], b_of[2][8][8][8];
static float kept(u32 bits) {
    if (ROUNDS) bits &= 0xffffe000u;
    float v; std::memcpy(&v, &bits, 4);
    return v;
}
}
QUICK static void multiply_rounded(float (&c)[4], const Part& a, u32 b0, u32 b1) {
    const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, in_group = threadIdx.x % 4;
    const int round = cores::rounds[threadIdx.x]++ & 1;
    auto& A = cores::a_of[round][warp];
    auto& B = cores::b_of[round][warp];
    for (int i = 0; i < 4; ++i)
        A[i == 0 || i == 2 ? group : group + 8][i < 2 ? in_group : in_group + 4] = cores::kept(a.at[i]);
    B[in_group][group] = cores::kept(b0);
    B[in_group + 4][group] = cores::kept(b1);
    __syncwarp();
    for (int i = 0; i < 4; ++i) {
        const int row = i < 2 ? group : group + 8, column = in_group * 2 + (i & 1);
        float sum = 0;
        for (int k = 0; k < 8; ++k) sum += A[row][k] * B[k][column];
        c[i] += sum;
    }
}
// ----- halves

namespace cores {
static float a_of[2][8][16][16], b_of[2][8][16][8];
static float element(u32 both, int which) { E e; e.bits = (unsigned short)(both >> 16 * which); return wide(e); }
}
QUICK static void multiply(float (&c)[4], const Part& a, u32 b0, u32 b1) {
    const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, in_group = threadIdx.x % 4;
    const int round = cores::rounds[threadIdx.x]++ & 1;
    auto& A = cores::a_of[round][warp];
    auto& B = cores::b_of[round][warp];
    for (int e = 0; e < 2; ++e) {
        for (int i = 0; i < 4; ++i)
            A[i & 1 ? group + 8 : group][2 * in_group + (i < 2 ? 0 : 8) + e] = cores::element(a.at[i], e);
        B[2 * in_group + e][group] = cores::element(b0, e);
        B[2 * in_group + 8 + e][group] = cores::element(b1, e);
    }
    __syncwarp();
    for (int i = 0; i < 4; ++i) {
        const int row = i < 2 ? group : group + 8, column = in_group * 2 + (i & 1);
        float sum = 0;
        for (int k = 0; k < 16; ++k) sum += A[row][k] * B[k][column];
        c[i] += sum;
    }
}
static Part load_transposed(const void* row) {
    const int r = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    auto& rows = cores::given(row);
    Part to;
    for (int m = 0; m < 4; ++m) {
        const E low = ((const E*)rows[8 * m + 2 * c])[r], high = ((const E*)rows[8 * m + 2 * c + 1])[r];
        to.at[m] = low.bits | (u32)high.bits << 16;
    }
    return to;
}
static u32 pair(float low, float high) { return narrow<E>(low).bits | (u32)narrow<E>(high).bits << 16; }
// ----- groups

typedef const unsigned char* Tile;
static Tile tile_at(const void* rows) {
    if ((unsigned long long)rows % 1024) __builtin_trap();
    return (Tile)rows;
}
static Tile ahead(Tile tile, int bytes) { return tile + bytes; }
static void show_copies() {}
static void begin_products() {}
static void end_products() {}
template <int N> static void made(float (&)[N][4]) {}
namespace cores {
static float of_tile(Tile tile, int row, int column) {
    const unsigned long long at = (unsigned long long)tile + 128 * row + 2 * column;
    return wide(*(const E*)(at ^ (at >> 7 & 7) << 4));
}
}
template <int N> QUICK static void multiply_tiles(float (&c)[N][4], Tile a, Tile b, int more) {
    const int first = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, in_group = threadIdx.x % 4;
    for (int j = 0; j < N; ++j)
        for (int i = 0; i < 4; ++i) {
            const int row = i < 2 ? first : first + 8, column = 8 * j + in_group * 2 + (i & 1);
            float sum = more ? c[j][i] : 0;
            for (int k = 0; k < 16; ++k) sum += cores::of_tile(a, row, k) * cores::of_tile(b, column, k);
            c[j][i] = sum;
        }
}
template <int FIRST, int N> QUICK static void multiply_rows(float (&c)[N][4], const Part& a, Tile b) {
    const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, in_group = threadIdx.x % 4;
    auto& A = cores::a_of[cores::rounds[threadIdx.x]++ & 1][warp];
    for (int e = 0; e < 2; ++e)
        for (int i = 0; i < 4; ++i)
            A[i & 1 ? group + 8 : group][2 * in_group + (i < 2 ? 0 : 8) + e] = cores::element(a.at[i], e);
    __syncwarp();
    for (int j = 0; j < 8; ++j)
        for (int i = 0; i < 4; ++i) {
            const int row = i < 2 ? group : group + 8, column = 8 * j + in_group * 2 + (i & 1);
            for (int k = 0; k < 16; ++k) c[FIRST + j][i] += A[row][k] * cores::of_tile(b, k, column);
        }
}
