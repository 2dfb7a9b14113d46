// A load from the memory of another GPU, of 16, 8, 4 or 2 bytes.
template <class P> __device__ __forceinline__ P from_peer(const P* from) {
#ifdef __CUDA_ARCH__
    // The memory of another GPU must not come from a cache of this one.
    union { unsigned int words[sizeof(P) > 4 ? sizeof(P) / 4 : 1]; unsigned short half; P pack; } v;
    if constexpr (sizeof(P) == 16)
        asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3]) : "l"(from) : "memory");
    else if constexpr (sizeof(P) == 8)
        asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];"
            : "=r"(v.words[0]), "=r"(v.words[1]) : "l"(from) : "memory");
    else if constexpr (sizeof(P) == 4)
        asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v.words[0]) : "l"(from) : "memory");
    else
        asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=h"(v.half) : "l"(from) : "memory");
    return v.pack;
#else
    return *from;
#endif
}
