// The rows are (LOOKUPS, batch, MIDDLE, COUNT, INNER) packs: a group is what has its own sums.
constexpr int GROUPS = BATCH * MIDDLE;
// Adds the packs i, i + APART and so on of a row up. The row is found in a table if LOOKS_UP, without a branch that loads
// would wait for; every HEAD packs of it are multiplied by a weight of their own if WEIGHTED.
template <int N> __device__ __forceinline__ void add_row(A (&total)[N][V], const T* rows, const Lookup& lookup,
                                                         unsigned int number, Index i) {
    if (LOOKS_UP && !SOURCES) return;
    long long row = number;
    bool there = true;
    if (LOOKS_UP) {
        row = (long long)((const S*)lookup.sources)[number];
        if (SOURCES_TOTAL && row < 0) row += SOURCES_TOTAL;
        row -= SOURCES_OFFSET;
        there = row >= 0 && row < SOURCES;
        row = there ? row : 0;
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
        const Index at = i + n * APART;
        const Pack<T, V> given = pack_at<T, V>(rows + ((Index)row * INNER + at) * V);
        const A weight = WEIGHTED ? (A)wide(((const W*)lookup.weights)[(Index)number * (INNER / HEAD) + at / HEAD]) : 1;
        for (int j = 0; j < V; ++j) total[n][j] = How::of(total[n][j], there ? (A)wide(given.at[j]) * weight : (A)0);
    }
}

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
#pragma unroll 4
    for (int n = 0; n < TILE; ++n) add_row(total, rows, lookup, (unsigned int)mine[n], i);
    for (int j = 0; j < V; ++j) sums[at * V + j] = total[0][j];
}

// Adds the sorted rows from `begin` to `end` of a group up: their packs i, i + APART and so on, EACH of them. The lane
// `share` of SHARE has its part: from the begin to the first tile, the tiles that are full, and what remains.
__device__ __forceinline__ void add_sorted(A (&total)[EACH][V], const T* rows, const Lookup& lookup, const u64* sorted,
                                           const A* sums, int begin, int end, Index i, int share) {
    int first = (begin + TILE - 1) / TILE * TILE, last = end / TILE * TILE;
    if (first >= last) first = last = end;
#pragma unroll 4
    for (int n = begin + share; n < first; n += SHARE) add_row(total, rows, lookup, (unsigned int)sorted[n], i);
    for (int n = first / TILE + share; n < last / TILE; n += SHARE)
        for (int e = 0; e < EACH; ++e)
            for (int j = 0; j < V; ++j)
                total[e][j] = How::of(total[e][j], sums[((Index)n * INNER + i + e * APART) * V + j]);
#pragma unroll 4
    for (int n = last + share; n < end; n += SHARE) add_row(total, rows, lookup, (unsigned int)sorted[n], i);
}
// What the lanes of one place have, put together.
__device__ __forceinline__ void join_shares(A (&total)[EACH][V]) {
    for (int offset = SHARE / 2; offset; offset >>= 1)
        for (int e = 0; e < EACH; ++e)
            for (int j = 0; j < V; ++j)
                total[e][j] = How::of(total[e][j], __shfl_xor_sync(0xffffffffu, total[e][j], offset));
}
