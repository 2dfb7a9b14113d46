// The number of a row's group, EACH for none, on all threads of the block.
__device__ __forceinline__ int group_of(const I* ends, long long row, int* shared) {
    int mine = IN_ORDER ? -1 : 0;
    for (int e = threadIdx.x; e < EACH; e += THREADS) {
        if (!IN_ORDER) mine += (long long)ends[e] <= row;
        else if ((e ? (long long)ends[e - 1] : 0) <= row && row < (long long)ends[e]) mine = e;
    }
    if (!IN_ORDER) return over_block<Sum>(mine, shared, 0);
    mine = over_block<Largest>(mine, shared, -1);
    return mine < 0 ? EACH : mine;
}
// Where a group's rows begin and end.
__device__ __forceinline__ void borders_of(const I* ends, int number, long long* shared) {
    if (threadIdx.x == 0) {
        shared[0] = IN_ORDER && number ? (long long)ends[number - 1] : 0;
        if (IN_ORDER) shared[1] = (long long)ends[number];
    }
    __syncthreads();
    if (IN_ORDER) return;
    for (int e = threadIdx.x; e < EACH; e += THREADS) {
        int rank = 0;
        for (int o = 0; o < EACH; ++o) rank += ends[o] < ends[e] || (ends[o] == ends[e] && o < e);
        if (rank == number - 1) shared[0] = (long long)ends[e];
        if (rank == number) shared[1] = (long long)ends[e];
    }
    __syncthreads();
}
extern "C" __global__ void __launch_bounds__(THREADS) rows_of_groups(const T* rows, const I* ends, T* out) {
    __shared__ int shared[32];
    const int row = blockIdx.x, list = row / SIZE;
    const int number = group_of(ends + (u64)list * EACH, FIRST + row % SIZE, shared);
    const int own = list % PARTS * EACH + number - BEGIN;
    const bool there = number < EACH && own >= 0 && own < COUNT;
    for (int i = threadIdx.x; i < PACKS; i += THREADS) {
        Pack<T, V> given;
        if (there) given = pack_at<T, V>(rows + ((u64)own * PACKS + i) * V);
        else for (int j = 0; j < V; ++j) given.at[j] = narrow<T>((A)0);
        put_pack<T, V>(out + ((u64)row * PACKS + i) * V, given);
    }
}
// A block has a group's sums of 32 packs; its warps take turns at rows.
extern "C" __global__ void __launch_bounds__(THREADS) sums_of_groups(const T* x, const I* ends, T* out) {
    __shared__ long long borders[2];
    __shared__ A sums[THREADS / 32][32][V];
    const int tile = blockIdx.x % TILES, own = blockIdx.x / TILES, group = own + BEGIN;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i = tile * 32 + lane;
    A total[V];
    for (int j = 0; j < V; ++j) total[j] = 0;
    for (int list = group / EACH; list < LISTS; list += PARTS) {
        borders_of(ends + (u64)list * EACH, group % EACH, borders);
        const long long low = borders[0] - FIRST, high = borders[1] - FIRST;
        const int begin = low < 0 ? 0 : low > SIZE ? SIZE : (int)low;
        const int end = high < 0 ? 0 : high > SIZE ? SIZE : (int)high;
        if (i < PACKS)
            for (int row = begin + warp; row < end; row += THREADS / 32) {
                const Pack<T, V> given = pack_at<T, V>(x + (((u64)list * SIZE + row) * PACKS + i) * V);
                for (int j = 0; j < V; ++j) total[j] += (A)wide(given.at[j]);
            }
        __syncthreads();
    }
    for (int j = 0; j < V; ++j) sums[warp][lane][j] = total[j];
    __syncthreads();
    if (warp || i >= PACKS) return;
    Pack<T, V> made;
    for (int j = 0; j < V; ++j) {
        A sum = 0;
        for (int w = 0; w < THREADS / 32; ++w) sum += sums[w][lane][j];
        made.at[j] = narrow<T>(sum);
    }
    put_pack<T, V>(out + ((u64)own * PACKS + i) * V, made);
}
