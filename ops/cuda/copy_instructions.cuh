// Copies to shared memory, and roundings, in PTX.

// A place in shared memory.
typedef unsigned int Shared;
__device__ __forceinline__ Shared shared_at(const void* memory) {
    Shared at; asm("{ .reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a; }" : "=r"(at) : "l"(memory));
    return at;
}
// BYTES from global to shared memory. All copies of a thread before close_copies() are a group; the thread sees them
// after await_copies<LEFT>(), which waits until no more than the LEFT last groups are on their way.
template <int BYTES> __device__ __forceinline__ void start_copy(Shared to, const void* from) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
    } else if constexpr (BYTES >= 4) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(to), "l"(from), "n"(BYTES) : "memory");
    } else {
        asm volatile("st.shared.b16 [%0], %1;" :: "r"(to), "h"(*(const unsigned short*)from) : "memory");
    }
}
__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LEFT) : "memory");
}
// Two floats rounded at once: four times the rate of one after the other where the bits are needed again.
__device__ __forceinline__ void narrow_two(bf16* to, float low, float high) {
    unsigned int both; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    to[0].bits = (unsigned short)both;
    to[1].bits = (unsigned short)(both >> 16);
}
__device__ __forceinline__ void narrow_two(f16* to, float low, float high) {
    unsigned int both; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    to[0].bits = (unsigned short)both;
    to[1].bits = (unsigned short)(both >> 16);
}
