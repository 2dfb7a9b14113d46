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
