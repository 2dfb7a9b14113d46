// A thread has EACH packs of a row, every APART-th of them.
extern "C" __global__ void __launch_bounds__(BLOCK) @name@(
    const Lookup* table, const u64* sorted, const int* begins, const A* sums) {
    const int number = lookup_of_block<&Lookup::block>(table), share = threadIdx.x % SHARE;
    const Lookup& lookup = table[number];
    const Index size = (Index)size_of(lookup);
    const Index at = ((blockIdx.x - (Index)lookup.block) * BLOCK + threadIdx.x) / SHARE;
    const bool there = at < GROUPS * size * APART;
    const Index i = at % APART, place = at / APART % size, group = at / APART / size;
    A total[EACH][V];
    for (int e = 0; e < EACH; ++e)
        for (int j = 0; j < V; ++j) total[e][j] = NEUTRAL;
    if (there) {
        begins += lookup.begins + group / MIDDLE * (size + 1) + place;
        const Index batch = number * BATCH + group / MIDDLE;
        add_sorted(total, (const T*)lookup.rows + group * COUNT * INNER * V, lookup, sorted + batch * COUNT,
                   sums, (Index)number * GROUPS + group, begins[0], begins[1], i, share);
    }
    join_shares(total);
    if (!there || share) return;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const Index to = ((group * size + place) * INNER + i + e * APART) * V;
        Pack<O, V> made;
        for (int j = 0; j < V; ++j)
            made.at[j] = narrow<O>(How::of(BASED ? (A)wide(((const O*)lookup.base)[to + j]) : (A)NEUTRAL, total[e][j]));
        put_pack<O, V>((O*)lookup.out + to, made);
    }
}
