// The rows are (LOOKUPS, batch, MIDDLE, COUNT, INNER) packs: a group is what has its own sums.
constexpr int GROUPS = BATCH * MIDDLE;
// Rows that a thread reads at once: each load of one that is looked up waits for those of its name and of its place.
constexpr int AHEAD = LOOKS_UP ? 4 : 1, UNROLL = LOOKS_UP ? 1 : 4;
// Adds the packs i, i + APART and so on up of the rows of AHEAD sorted names, every STEP-th from `at` on, below `end`.
// Rows are found in a table if LOOKS_UP; every HEAD packs of one are multiplied by a weight of their own if WEIGHTED.
template <int N, int STEP> __device__ __forceinline__ void add_named(
    A (&total)[N][V], const T* rows, const Lookup& lookup, const u64* sorted, int at, int end, Index i) {
    if (LOOKS_UP && !SOURCES) return;
    unsigned int number[AHEAD];
    long long row[AHEAD];
    Pack<T, V> given[AHEAD][N];
    A weight[AHEAD][N];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k)
        number[k] = (unsigned int)sorted[AHEAD == 1 || at + k * STEP < end ? at + k * STEP : at];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
        row[k] = number[k];
        if (LOOKS_UP) {
            row[k] = (long long)((const S*)lookup.sources)[number[k]];
            if (SOURCES_TOTAL && row[k] < 0) row[k] += SOURCES_TOTAL;
            row[k] -= SOURCES_OFFSET;
            if (row[k] < 0 || row[k] >= SOURCES) row[k] = -1;
        }
#pragma unroll
        for (int n = 0; n < N; ++n)
            weight[k][n] = WEIGHTED ? (A)wide(((const W*)lookup.weights)[
                (Index)number[k] * (INNER / HEAD) + (i + n * APART) / HEAD]) : (A)1;
    }
#pragma unroll
    for (int k = 0; k < AHEAD; ++k)
#pragma unroll
        for (int n = 0; n < N; ++n)
            given[k][n] = pack_at<T, V>(
                rows + ((Index)(LOOKS_UP && row[k] < 0 ? 0 : row[k]) * INNER + i + n * APART) * V);
#pragma unroll
    for (int k = 0; k < AHEAD; ++k)
        if (AHEAD == 1 || at + k * STEP < end)
#pragma unroll
            for (int n = 0; n < N; ++n)
                for (int j = 0; j < V; ++j) {
                    const A element = (A)wide(given[k][n].at[j]) * weight[k][n];
                    total[n][j] = How::of(total[n][j], LOOKS_UP && row[k] < 0 ? (A)0 : element);
                }
}

// The sums of rows that fill a tile of TILE names; those of FAN full tiles of one place are at `LARGE` behind them.
constexpr Index TILES = COUNT < TILE ? 1 : COUNT / TILE, LARGE_TILES = TILES < FAN ? 1 : TILES / FAN;
constexpr Index LARGE = (Index)LOOKUPS * GROUPS * TILES * INNER * V;
extern "C" __global__ void __launch_bounds__(BLOCK) add_tiles(const Lookup* table, const u64* sorted, A* sums) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= (Index)LOOKUPS * GROUPS * TILES * INNER) return;
    const Index i = at % INNER, tile = at / INNER % TILES, group = at / INNER / TILES;
    const u64* mine = sorted + group / MIDDLE * COUNT + tile * TILE;
    const int place = place_of_name(mine[0]);
    if (place == NONE || place != place_of_name(mine[TILE - 1])) return;
    const Lookup& lookup = table[group / GROUPS];
    const T* const rows = (const T*)lookup.rows + group % GROUPS * COUNT * INNER * V;
    A total[1][V];
    for (int j = 0; j < V; ++j) total[0][j] = NEUTRAL;
#pragma unroll UNROLL
    for (int n = 0; n < TILE; n += AHEAD) add_named<1, 1>(total, rows, lookup, mine, n, TILE, i);
    for (int j = 0; j < V; ++j) sums[at * V + j] = total[0][j];
}


extern "C" __global__ void __launch_bounds__(BLOCK) add_large_tiles(const Lookup* table, const u64* sorted, A* sums) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= (Index)LOOKUPS * GROUPS * LARGE_TILES * INNER) return;
    const Index i = at % INNER, tile = at / INNER % LARGE_TILES, group = at / INNER / LARGE_TILES;
    const u64* mine = sorted + group / MIDDLE * COUNT + tile * FAN * TILE;
    const int place = place_of_name(mine[0]);
    if (place == NONE || place != place_of_name(mine[FAN * TILE - 1])) return;
    const A* const small = sums + ((group * TILES + tile * FAN) * INNER + i) * V;
    A total[V];
    for (int j = 0; j < V; ++j) total[j] = NEUTRAL;
#pragma unroll 4
    for (int n = 0; n < FAN; ++n)
        for (int j = 0; j < V; ++j) total[j] = How::of(total[j], small[(Index)n * INNER * V + j]);
    for (int j = 0; j < V; ++j) sums[LARGE + at * V + j] = total[j];
}

// Adds the sums of tiles from `begin` to `end` up, every SHARE-th of them.
__device__ __forceinline__ void add_sums(A (&total)[EACH][V], const A* sums, int begin, int end, Index i, int share) {
#pragma unroll 4
    for (int n = begin + share; n < end; n += SHARE)
        for (int e = 0; e < EACH; ++e)
            for (int j = 0; j < V; ++j)
                total[e][j] = How::of(total[e][j], sums[((Index)n * INNER + i + e * APART) * V + j]);
}
// Adds the sorted rows from `begin` to `end` of a group up: their packs i, i + APART and so on, EACH of them. The lane
// `share` of SHARE has its part: from the begin to the first tile, the tiles that are full, and what remains.
__device__ __forceinline__ void add_sorted(A (&total)[EACH][V], const T* rows, const Lookup& lookup, const u64* sorted,
                                           const A* sums, Index group, int begin, int end, Index i, int share) {
    int first = (begin + TILE - 1) / TILE * TILE, last = end / TILE * TILE;
    if (first >= last) first = last = end;
    const A* const small = sums + group * TILES * INNER * V;
    int tile = first / TILE;
    if (FAN > 1) {
        const int large = (tile + FAN - 1) / FAN, behind = last / TILE / FAN;
        if (large < behind) {
            add_sums(total, small, tile, large * FAN, i, share);
            add_sums(total, sums + LARGE + group * LARGE_TILES * INNER * V, large, behind, i, share);
            tile = behind * FAN;
        }
    }
#pragma unroll UNROLL
    for (int n = begin + share; n < first; n += SHARE * AHEAD)
        add_named<EACH, SHARE>(total, rows, lookup, sorted, n, first, i);
    add_sums(total, small, tile, last / TILE, i, share);
#pragma unroll UNROLL
    for (int n = last + share; n < end; n += SHARE * AHEAD)
        add_named<EACH, SHARE>(total, rows, lookup, sorted, n, end, i);
}
// What the lanes of one place have, put together.
__device__ __forceinline__ void join_shares(A (&total)[EACH][V]) {
    for (int offset = SHARE / 2; offset; offset >>= 1)
        for (int e = 0; e < EACH; ++e)
            for (int j = 0; j < V; ++j)
                total[e][j] = How::of(total[e][j], __shfl_xor_sync(0xffffffffu, total[e][j], offset));
}
