extern "C" __global__ void group_rows(const int* order, int* group) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < ROWS) group[order[at]] = at / (ROWS / OUTER);
}
// A block of threads has a block of rows: those of a group of ranks whose experts one of them has. Rows of one expert
// are together, so that they lie between two borders; of these it takes those of its group, in their order.
extern "C" __global__ void __launch_bounds__(THREADS) place_rows(
    const I* ends, const S* source, const int* group, P* sources, P* numbers, P* slots, I* own_ends, int* counts) {
    __shared__ int borders[EXPERTS];
    __shared__ int sums[THREADS / 32];
    __shared__ int upto[THREADS];
    const int mine = blockIdx.x / PARTS, part = blockIdx.x % PARTS;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int e = threadIdx.x; e < EXPERTS; e += THREADS) {
        const I end = ends[e];
        int rank = 0;
        for (int o = 0; o < EXPERTS; ++o) rank += ends[o] < end || (ends[o] == end && o < e);
        borders[rank] = end < 0 ? 0 : end > ROWS ? ROWS : (int)end;
    }
    __syncthreads();
    const int begin = part ? borders[part * EACH - 1] : 0;
    const int end = part == PARTS - 1 ? ROWS : borders[part * EACH + EACH - 1];
    const bool own = mine >= FIRST && mine < FIRST + GROUPS && part >= BEGIN && part < BEGIN + COUNT;
    const int block = own ? (mine - FIRST) * COUNT + part - BEGIN : 0;
    numbers += (u64)block * SIZE;
    sources += (u64)block * SIZE;
    own_ends += block * EACH;
    if (own)
        for (int e = threadIdx.x; e < EACH; e += THREADS)
            if (borders[part * EACH + e] <= begin) own_ends[e] = 0;
    int before = 0;
    for (int start = begin; start < end; start += THREADS) {
        const int row = start + threadIdx.x;
        const bool taken = row < end && (OUTER == 1 || group[row] == mine);
        const unsigned int all = __ballot_sync(0xffffffffu, taken);
        if (lane == 0) sums[warp] = __popc(all);
        __syncthreads();
        int number = before + __popc(all & ((1u << lane) - 1)), found = 0;
        for (int w = 0; w < THREADS / 32; ++w) {
            if (w < warp) number += sums[w];
            found += sums[w];
        }
        upto[threadIdx.x] = number + taken;
        if (taken) {
            slots[row] = (P)blockIdx.x * SIZE + number;
            if (own && number < SIZE) {
                numbers[number] = row;
                sources[number] = (P)source[row];
            }
        }
        __syncthreads();
        if (own)
            for (int e = threadIdx.x; e < EACH; e += THREADS) {
                const int last = borders[part * EACH + e] - 1;
                if (last >= start && last < start + THREADS) own_ends[e] = upto[last - start];
            }
        before += found;
        __syncthreads();
    }
    if (own)
        for (int n = before + threadIdx.x; n < SIZE; n += THREADS) numbers[n] = sources[n] = -1;
    if (threadIdx.x == 0) counts[blockIdx.x] = before;
}
