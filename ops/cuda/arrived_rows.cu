__device__ __forceinline__ bool names_alike(u64 one, u64 other) { return place_of_name(one) == place_of_name(other); }
// The rows of one place, one after the other: ranks ascend, and the rows of a rank.
extern "C" __global__ void __launch_bounds__(BLOCK) add_arrived(const u64* sorted, const T* rows, S* table) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x, i = at % PACKS;
    if (at / PACKS >= COUNT) return;
    int name = (int)(at / PACKS);
    const u64 first = sorted[name];
    if (place_of_name(first) == NONE || (name && names_alike(sorted[name - 1], first))) return;
    A total[V];
    for (int j = 0; j < V; ++j) total[j] = 0;
    do {
        const Pack<T, V> given = pack_at<T, V>(rows + ((Index)(unsigned int)sorted[name] * PACKS + i) * V);
        for (int j = 0; j < V; ++j) total[j] += (A)wide(given.at[j]);
    } while (++name < COUNT && names_alike(sorted[name], first));
    S* const to = table + ((Index)place_of_name(first) * PACKS + i) * V;
    Pack<S, V> sum = pack_at<S, V>(to);
    for (int j = 0; j < V; ++j) sum.at[j] = narrow<S>((A)wide(sum.at[j]) + total[j]);
    put_pack<S, V>(to, sum);
}
// Whether a name is the last of its place, and of a rank that no other has come before in an earlier round.
__device__ __forceinline__ bool stands(const u64* sorted, const int* holders, int name) {
    const u64 mine = sorted[name];
    if (place_of_name(mine) == NONE || (name + 1 < COUNT && names_alike(sorted[name + 1], mine))) return false;
    return (int)(unsigned int)mine / SLOTS >= holders[place_of_name(mine)];
}
extern "C" __global__ void __launch_bounds__(BLOCK) set_arrived(
    const u64* sorted, const int* holders, const T* rows, S* table) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x, i = at % PACKS;
    if (at / PACKS >= COUNT || !stands(sorted, holders, (int)(at / PACKS))) return;
    const u64 mine = sorted[at / PACKS];
    put_pack<S, V>(table + ((Index)place_of_name(mine) * PACKS + i) * V,
                   pack_at<S, V>((const S*)rows + ((Index)(unsigned int)mine * PACKS + i) * V));
}
extern "C" __global__ void __launch_bounds__(BLOCK) hold_places(const u64* sorted, int* holders) {
    const int name = blockIdx.x * BLOCK + threadIdx.x;
    if (name < COUNT && stands(sorted, holders, name))
        holders[place_of_name(sorted[name])] = (int)(unsigned int)sorted[name] / SLOTS;
}
extern "C" __global__ void __launch_bounds__(BLOCK) clear_table(S* table, int* holders) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x;
    if (at < SIZE) holders[at] = 0;
    if (at >= (Index)SIZE * PACKS) return;
    Pack<S, V> none;
    for (int j = 0; j < V; ++j) none.at[j] = narrow<S>((A)0);
    put_pack<S, V>(table + at * V, none);
}
extern "C" __global__ void __launch_bounds__(BLOCK) round_table(const S* table, T* out) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= (Index)SIZE * PACKS) return;
    const Pack<S, V> sum = pack_at<S, V>(table + at * V);
    Pack<T, V> made;
    for (int j = 0; j < V; ++j) made.at[j] = narrow<T>(wide(sum.at[j]));
    put_pack<T, V>(out + at * V, made);
}
