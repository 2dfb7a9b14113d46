#include "../../ops/cuda/from_peer.cuh"

typedef Pack<T, 16 / sizeof(T)> P;
constexpr int LANES = 16 / sizeof(T);
// Wait until this block of every rank has come here.
__device__ __forceinline__ void all_here(const u64* signs, unsigned int call) {
    __syncthreads();
    if (threadIdx.x < RANKS && threadIdx.x != OWN) {
        u64 theirs = 0;
        #pragma unroll
        for (int rank = 0; rank < RANKS; ++rank) if (rank == threadIdx.x) theirs = signs[rank];
        const int row = blockIdx.x * RANKS;
        __threadfence_system();
        ((volatile unsigned int*)theirs)[row + OWN] = call;
        volatile unsigned int* heard = (volatile unsigned int*)signs[OWN] + row + threadIdx.x;
        while ((int)(*heard - call) < 0) {}
        __threadfence_system();
    }
    __syncthreads();
}
extern "C" __global__ void __launch_bounds__(THREADS) between_peers(
    @addresses@, unsigned int* calls, unsigned int* resident, const u64 count, const int tail,
    volatile long long* place, const long long* step, const long long mark
) {
    if (COUNTED && threadIdx.x == 0) atomicAdd(resident, 1u);
    const u64 sources[SOURCES] = {@sources@}, targets[TARGETS] = {@targets@}, signs[RANKS] = {@signs@};
    if (blockIdx.x == 0 && threadIdx.x == 0 && place) *place = mark | step[0] << STEP_SHIFT;
    const unsigned int call = calls[blockIdx.x];
    all_here(signs, call + 1);
    const u64 span = (u64)THREADS * FLIGHT;
    for (u64 begin = blockIdx.x * span + threadIdx.x; begin < count; begin += gridDim.x * span) {
        P found[SOURCES][FLIGHT];
        #pragma unroll
        for (int s = 0; s < SOURCES; ++s)
            #pragma unroll
            for (int u = 0; u < FLIGHT; ++u)
                if (begin + u * THREADS < count) found[s][u] = from_peer((const P*)sources[s] + begin + u * THREADS);
        #pragma unroll
        for (int u = 0; u < FLIGHT; ++u) {
            if (begin + u * THREADS >= count) continue;
            P total = found[0][u];
            if (SOURCES > 1) {
                #pragma unroll
                for (int lane = 0; lane < LANES; ++lane) {
                    C sum = wide(found[0][u].at[lane]);
                    #pragma unroll
                    for (int s = 1; s < SOURCES; ++s) sum = HOW::of(sum, (C)wide(found[s][u].at[lane]));
                    total.at[lane] = narrow<T>(sum);
                }
            }
            #pragma unroll
            for (int t = 0; t < TARGETS; ++t) ((P*)targets[t])[begin + u * THREADS] = total;
        }
    }
    if (blockIdx.x == 0 && threadIdx.x < tail) {
        const u64 i = count * LANES + threadIdx.x;
        C sum = wide(((const T*)sources[0])[i]);
        for (int s = 1; s < SOURCES; ++s) sum = HOW::of(sum, (C)wide(((const T*)sources[s])[i]));
        for (int t = 0; t < TARGETS; ++t) ((T*)targets[t])[i] = narrow<T>(sum);
    }
    all_here(signs, call + 2);
    if (threadIdx.x == 0) calls[blockIdx.x] = call + 2;
}
