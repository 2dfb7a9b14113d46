#include "from_peer.cuh"

// A pack of the sum: the parts of all ranks, in their order, from element `at` of each on.
template <class T, int V, class C> __device__ __forceinline__ Pack<T, V> summed_pack(const u64* parts, long long at) {
    Pack<T, V> found[RANKS];
    #pragma unroll
    for (int rank = 0; rank < RANKS; ++rank) {
        const Pack<T, V>* from = (const Pack<T, V>*)((const T*)parts[rank] + at);
        found[rank] = rank == OWN ? *from : from_peer(from);
    }
    #pragma unroll
    for (int lane = 0; lane < V; ++lane) {
        C sum = wide(found[0].at[lane]);
        #pragma unroll
        for (int rank = 1; rank < RANKS; ++rank) sum = Sum::of(sum, (C)wide(found[rank].at[lane]));
        found[0].at[lane] = narrow<T>(sum);
    }
    return found[0];
}
__device__ __forceinline__ void tell_ranks(const u64* signs, int number, unsigned int call) {
    __threadfence_system();
    #pragma unroll
    for (int rank = 0; rank < RANKS; ++rank)
        if (rank != OWN) ((volatile unsigned int*)signs[rank])[number * RANKS + OWN] = call;
}
// A fence of a thread in every block would take as long as the loads.
__device__ __forceinline__ unsigned int heard_at(const unsigned int* sign) {
#ifdef __CUDA_ARCH__
    unsigned int found;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(sign) : "memory");
    return found;
#else
    return *(const volatile unsigned int*)sign;
#endif
}
__device__ __forceinline__ void hear_ranks(const u64* signs, int number, unsigned int call) {
    const unsigned int* heard = (const unsigned int*)signs[OWN] + number * RANKS;
    #pragma unroll
    for (int rank = 0; rank < RANKS; ++rank)
        if (rank != OWN) while ((int)(heard_at(heard + rank) - call) < 0) {}
}
// The first block signals that this rank's part is ready, and every block waits for those of the others.
__device__ __forceinline__ unsigned int begin_sum(const u64* signs, const unsigned int* state, const long long* step,
                                                  volatile long long* place, long long mark) {
    const unsigned int call = ((const volatile unsigned int*)state)[0] + 1;
    if (threadIdx.x == 0) {
        if (blockIdx.x == 0) {
            if (place) *place = mark | step[0] << STEP_SHIFT;
            tell_ranks(signs, 0, call);
        }
        hear_ranks(signs, 0, call);
    }
    __syncthreads();
    return call;
}
// The last block to end signals that all is read, and waits until the others have read this rank's part.
__device__ __forceinline__ void end_sum(const u64* signs, unsigned int* state, unsigned int call) {
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(state + 1, 1u) == gridDim.x - 1) {
        tell_ranks(signs, 1, call);
        hear_ranks(signs, 1, call);
        state[1] = 0;
        __threadfence_system();
        ((volatile unsigned int*)state)[0] = call;
    }
}
