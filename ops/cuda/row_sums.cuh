// The rows are (LOOKUPS, batch, MIDDLE, COUNT, INNER) packs: a group is what has its own sums.
constexpr int GROUPS = BATCH * MIDDLE;
__device__ __forceinline__ void add(A (&total)[V], const T* row) {
    const Pack<T, V> given = pack_at<T, V>(row);
    for (int j = 0; j < V; ++j) total[j] += (A)wide(given.at[j]);
}

extern "C" __global__ void __launch_bounds__(BLOCK) add_tiles(const Lookup* table, const u64* sorted, A* sums) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= (Index)LOOKUPS * GROUPS * TILES * INNER) return;
    const Index i = at % INNER, tile = at / INNER % TILES, group = at / INNER / TILES;
    const u64* mine = sorted + group / MIDDLE * COUNT + tile * TILE;
    const int place = place_of_name(mine[0]);
    if (place == NONE || place != place_of_name(mine[TILE - 1])) return;
    const T* const rows = (const T*)table[group / GROUPS].rows;
    A total[V];
    for (int j = 0; j < V; ++j) total[j] = 0;
#pragma unroll 4
    for (int n = 0; n < TILE; ++n)
        add(total, rows + ((group % GROUPS * COUNT + (unsigned int)mine[n]) * INNER + i) * V);
    for (int j = 0; j < V; ++j) sums[at * V + j] = total[j];
}

// Adds the sorted rows from `begin` to `end` of a group up: their packs i, i + APART and so on, EACH of them. The lane
// `share` of SHARE has its part: from the begin to the first tile, the tiles that are full, and what remains.
__device__ __forceinline__ void add_sorted(A (&total)[EACH][V], const T* rows, const u64* sorted, const A* sums,
                                           int begin, int end, Index i, int share) {
    auto add_row = [&](unsigned int row) {
#pragma unroll
        for (int e = 0; e < EACH; ++e) add(total[e], rows + ((Index)row * INNER + i + e * APART) * V);
    };
    int first = (begin + TILE - 1) / TILE * TILE, last = end / TILE * TILE;
    if (first >= last) first = last = end;
#pragma unroll 4
    for (int n = begin + share; n < first; n += SHARE) add_row((unsigned int)sorted[n]);
    for (int n = first / TILE + share; n < last / TILE; n += SHARE)
        for (int e = 0; e < EACH; ++e)
            for (int j = 0; j < V; ++j) total[e][j] += sums[((Index)n * INNER + i + e * APART) * V + j];
#pragma unroll 4
    for (int n = last + share; n < end; n += SHARE) add_row((unsigned int)sorted[n]);
}
// What the lanes of one place have, put together.
__device__ __forceinline__ void join_shares(A (&total)[EACH][V]) {
    for (int offset = SHARE / 2; offset; offset >>= 1)
        for (int e = 0; e < EACH; ++e)
            for (int j = 0; j < V; ++j) total[e][j] += __shfl_xor_sync(0xffffffffu, total[e][j], offset);
}
