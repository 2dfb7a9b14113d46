// Passes of a stable sort of names by digits of their places, from the lowest on.
constexpr int DIGITS = 1 << BITS, WARPS = BLOCK / 32, PART = BLOCK * EACH, PARTS = (COUNT + PART - 1) / PART;
constexpr int PER_THREAD = (DIGITS + BLOCK - 1) / BLOCK;
// The first pass reads the ids.
__device__ __forceinline__ u64 name_at(const Lookup* table, const u64* names, int group, int at, int shift) {
    if (shift) return names[(u64)group * COUNT + at];
    const Lookup& lookup = table[group / BATCH];
    return name_of(place_of(((const I*)lookup.ids)[(u64)(group % BATCH) * COUNT + at], lookup), at);
}
// LARGEST comes after every place.
__device__ __forceinline__ int digit_of(u64 name, int shift) {
    const int place = place_of_name(name);
    return (place < LARGEST ? place : LARGEST) >> shift & (DIGITS - 1);
}
__device__ __forceinline__ unsigned int sum_of_lanes_until(unsigned int v) {
    const int lane = threadIdx.x & 31;
    for (int step = 1; step < 32; step <<= 1) {
        const unsigned int other = __shfl_sync(0xffffffffu, v, lane - step < 0 ? lane : lane - step);
        if (lane >= step) v += other;
    }
    return v;
}

// counts: (groups, DIGITS, PARTS).
extern "C" __global__ void __launch_bounds__(BLOCK) count_digits(const Lookup* table, const u64* names,
                                                                 unsigned int* counts, int shift) {
    __shared__ unsigned int own[DIGITS];
    const int part = blockIdx.x % PARTS, group = blockIdx.x / PARTS, begin = part * PART;
    for (int digit = threadIdx.x; digit < DIGITS; digit += BLOCK) own[digit] = 0;
    __syncthreads();
    for (int at = begin + threadIdx.x; at < begin + PART && at < COUNT; at += BLOCK)
        atomicAdd(own + digit_of(name_at(table, names, group, at, shift), shift), 1u);
    __syncthreads();
    for (int digit = threadIdx.x; digit < DIGITS; digit += BLOCK)
        counts[((u64)group * DIGITS + digit) * PARTS + part] = own[digit];
}

// A warp puts, for a digit, the number of names in the parts before each part in the place of its count.
extern "C" __global__ void __launch_bounds__(BLOCK) sum_digits(unsigned int* counts, unsigned int* totals) {
    const u64 line = (u64)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x & 31;
    const bool there = line < (u64)LOOKUPS * BATCH * DIGITS;
    counts += line * PARTS;
    unsigned int before = 0;
    for (int start = 0; start < PARTS; start += 32) {
        const bool inside = there && start + lane < PARTS;
        const unsigned int own = inside ? counts[start + lane] : 0, until = sum_of_lanes_until(own);
        if (inside) counts[start + lane] = before + until - own;
        before += __shfl_sync(0xffffffffu, until, 31);
    }
    if (there && lane == 0) totals[line] = before;
}

extern "C" __global__ void __launch_bounds__(BLOCK) place_digits(
    const Lookup* table, const u64* names, const unsigned int* counts, const unsigned int* totals, u64* sorted,
    int shift) {
    __shared__ unsigned int places[WARPS][DIGITS], sums[WARPS];
    const int part = blockIdx.x % PARTS, group = blockIdx.x / PARTS, warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    for (int digit = threadIdx.x; digit < DIGITS; digit += BLOCK)
        for (int w = 0; w < WARPS; ++w) places[w][digit] = 0;
    __syncthreads();
    // The rank of a name among those of its warp with its digit, which the lanes of one digit count together.
    u64 name[EACH];
    unsigned int rank[EACH];
    const int begin = part * PART + warp * 32 * EACH + lane;
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const int at = begin + n * 32;
        name[n] = at < COUNT ? name_at(table, names, group, at, shift) : 0;
        const int digit = digit_of(name[n], shift);
        unsigned int alike = __ballot_sync(0xffffffffu, at < COUNT);
#pragma unroll
        for (int bit = 0; bit < BITS; ++bit) {
            const unsigned int ones = __ballot_sync(0xffffffffu, digit >> bit & 1);
            alike &= digit >> bit & 1 ? ones : ~ones;
        }
        rank[n] = places[warp][digit] + __popc(alike & ((1u << lane) - 1));
        __syncwarp();
        if (at < COUNT && !(alike >> lane >> 1)) places[warp][digit] = rank[n] + 1;
        __syncwarp();
    }
    // The first place of every digit, then of every warp's names with this digit.
    unsigned int own = 0;
    for (int n = 0; n < PER_THREAD; ++n) {
        const int digit = threadIdx.x * PER_THREAD + n;
        if (digit < DIGITS) own += totals[group * DIGITS + digit];
    }
    const unsigned int until = sum_of_lanes_until(own);
    if (lane == 31) sums[warp] = until;
    __syncthreads();
    unsigned int place = until - own;
    for (int w = 0; w < warp; ++w) place += sums[w];
    for (int n = 0; n < PER_THREAD; ++n) {
        const int digit = threadIdx.x * PER_THREAD + n;
        if (digit >= DIGITS) break;
        unsigned int next = place + counts[((u64)group * DIGITS + digit) * PARTS + part];
        for (int w = 0; w < WARPS; ++w) {
            const unsigned int count = places[w][digit];
            places[w][digit] = next;
            next += count;
        }
        place += totals[group * DIGITS + digit];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < EACH; ++n)
        if (begin + n * 32 < COUNT)
            sorted[(u64)group * COUNT + places[warp][digit_of(name[n], shift)] + rank[n]] = name[n];
}
