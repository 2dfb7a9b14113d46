extern "C" __global__ void __launch_bounds__(BLOCK) look_up(const Lookup* table) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= PACKS) return;
    const Index i = at % INNER, n = at / INNER % COUNT, groups = at / INNER / COUNT, group = groups % (BATCH * MIDDLE);
    const Lookup& lookup = table[groups / (BATCH * MIDDLE)];
    const int place = place_of(((const I*)lookup.ids)[group / MIDDLE * COUNT + n], lookup);
    Pack<T, V> found;
    if (place == NONE) for (int j = 0; j < V; ++j) found.at[j] = @nothing@;
    else found = *(const Pack<T, V>*)((const T*)lookup.rows + (((u64)group * size_of(lookup) + place) * INNER + i) * V);
    Pack<O, V> made;
    for (int j = 0; j < V; ++j) made.at[j] = @element@;
    *(Pack<O, V>*)((O*)lookup.out + (((u64)group * COUNT + n) * INNER + i) * V) = made;
}
