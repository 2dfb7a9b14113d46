// How many sorted names are of one place, which begins at `begin`, and all those ahead of it.
__device__ __forceinline__ int end_of_place(const u64* sorted, int begin) {
    const int place = place_of_name(sorted[begin]);
    int low = begin + 1, step = 1;
    while (low < COUNT && place_of_name(sorted[low]) == place) { low += step; step *= 2; }
    const int first = step == 1 ? low : low - step / 2 + 1;
    const int count = (low < COUNT ? low : COUNT) - first;
    return first + names_before(sorted + first, count, name_of(place + 1, 0));
}

// A place is of the threads of its first name, which have EACH packs of the row, every APART-th of them.
extern "C" __global__ void __launch_bounds__(BLOCK) update_rows(
    const Lookup* table, const u64* operands, const u64* sorted, const A* sums, const int* stop) {
    if (stop[0]) return;
    const u64 at = ((u64)blockIdx.x * BLOCK + threadIdx.x) / SHARE;
    const int share = threadIdx.x % SHARE;
    const Index i = at % APART, number = at / APART / COUNT;
    const int n = (int)(at / APART % COUNT);
    int place = NONE;
    if (number < LOOKUPS) {
        sorted += (u64)number * COUNT;
        place = place_of_name(sorted[n]);
        if (n && place == place_of_name(sorted[n - 1])) place = NONE;
    }
    A total[EACH][V];
    for (int e = 0; e < EACH; ++e)
        for (int j = 0; j < V; ++j) total[e][j] = NEUTRAL;
    if (place != NONE)
        add_sorted(total, (const T*)table[number].rows, table[number], sorted, sums, number, n,
                   end_of_place(sorted, n), i, share);
    join_shares(total);
    if (place == NONE || share) return;
    const u64* const row = operands + (u64)number * @width@;
    @scalars@
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const u64 to = ((u64)place * INNER + i + e * APART) * V;
        @row@
    }
}
