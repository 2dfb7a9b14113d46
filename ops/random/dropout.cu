extern "C" __global__ void __launch_bounds__(256) dropout(
    const T* x, const long long* step, u64 seed, T* y, bool* mask) {
    const Index begin = ((Index)blockIdx.x * 256 + threadIdx.x) * V;
    if (begin >= SIZE) return;
    const u64 key = mixed(seed + (u64)*step);
    const A factor = (A)wide(narrow<T>((A)@factor@));
    const Pack<T, V> given = *(const Pack<T, V>*)(x + begin);
    Pack<T, V> made;
    Pack<bool, V> kept;
    #pragma unroll
    for (int j = 0; j < V; ++j) {
        const Index at = begin + j;
        kept.at[j] = @keeps@;
        made.at[j] = narrow<T>((A)wide(given.at[j]) * (kept.at[j] ? 1 : 0) * factor);
    }
    *(Pack<T, V>*)(y + begin) = made;
    *(Pack<bool, V>*)(mask + begin) = kept;
}
