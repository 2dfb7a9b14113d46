// C++ before every kernel: Float16 and BFloat16 as bits (no header is needed), packs, reductions in a fixed order.
typedef unsigned long long u64;
#include "random.cuh"
struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };

__device__ __forceinline__ float wide(f16 v) {
    float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.bits)); return r;
}
__device__ __forceinline__ float wide(bf16 v) { return __uint_as_float((unsigned int)v.bits << 16); }
template <class T> __device__ __forceinline__ T wide(T v) { return v; }

template <class T> struct Narrow { template <class V> static __device__ __forceinline__ T of(V v) { return (T)v; } };
template <> struct Narrow<f16> {
    static __device__ __forceinline__ f16 of(float v) {
        f16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(v)); return r;
    }
};
template <> struct Narrow<bf16> {
    static __device__ __forceinline__ bf16 of(float v) {
        bf16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(v)); return r;
    }
};
#include "float8.cuh"
template <class T, class V> __device__ __forceinline__ T narrow(V v) { return Narrow<T>::of(v); }

// N neighbouring elements that are loaded and stored at once.
template <class T, int N> struct alignas(sizeof(T) * N) Pack { T at[N]; };

struct Sum { template <class V> static __device__ __forceinline__ V of(V a, V b) { return a + b; } };
struct Product { template <class V> static __device__ __forceinline__ V of(V a, V b) { return a * b; } };
struct Largest {  // like NumPy's: a NaN wins
    template <class V> static __device__ __forceinline__ V of(V a, V b) { return a < b || b != b ? b : a; }
};
struct Smallest {
    template <class V> static __device__ __forceinline__ V of(V a, V b) { return b < a || b != b ? b : a; }
};

// The value combined over a warp, on all its lanes, in an order that never changes.
template <class How, class V> __device__ __forceinline__ V over_warp(V v) {
    for (int offset = 16; offset; offset >>= 1) v = How::of(v, __shfl_xor_sync(0xffffffffu, v, offset));
    return v;
}
// The same over a block of a whole number of warps, on all its threads; `shared` has room for 32 values.
template <class How, class V> __device__ __forceinline__ V over_block(V v, V* shared, V neutral) {
    v = over_warp<How>(v);
    int warps = blockDim.x >> 5;
    if (warps == 1) return v;
    __syncthreads();
    if (!(threadIdx.x & 31)) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    v = (threadIdx.x & 31) < warps ? shared[threadIdx.x & 31] : neutral;
    return over_warp<How>(v);
}
// The GPU's clock, for kernels that take time.
__device__ __forceinline__ long long nanoseconds() {
    long long at;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(at));
    return at;
}
__device__ __forceinline__ float exp_of(float v) { return expf(v); }
__device__ __forceinline__ double exp_of(double v) { return exp(v); }
__device__ __forceinline__ float log_of(float v) { return logf(v); }
__device__ __forceinline__ double log_of(double v) { return log(v); }
__device__ __forceinline__ float sqrt_of(float v) { return sqrtf(v); }
__device__ __forceinline__ double sqrt_of(double v) { return sqrt(v); }
template <class V> __device__ __forceinline__ V magnitude(V v) { return v < 0 ? -v : v; }
template <class T, int N> __device__ __forceinline__ Pack<T, N> pack_at(const T* p) { return *(const Pack<T, N>*)p; }
template <class T, int N> __device__ __forceinline__ void put_pack(T* p, const Pack<T, N>& v) { *(Pack<T, N>*)p = v; }
// Combined over GROUP neighbouring lanes of a warp, on all of them.
template <class How, int GROUP, class V> __device__ __forceinline__ V over_group(V v) {
    for (int offset = GROUP / 2; offset; offset >>= 1) v = How::of(v, __shfl_xor_sync(0xffffffffu, v, offset));
    return v;
}
// Sixteen bytes that are moved as one.
struct alignas(16) Sixteen { u64 low, high; };
__device__ __forceinline__ void clear(Sixteen& v) { v.low = v.high = 0; }
template <class V> __device__ __forceinline__ void clear(V& v) { v = 0; }
// n / d for n below 2^31; m and s stand for d, see `divisor`.
__device__ __forceinline__ unsigned int quotient(unsigned int n, unsigned int d, unsigned int m, unsigned int s) {
    return m ? __umulhi(n, m) >> s : n;
}
__device__ __forceinline__ u64 quotient(u64 n, u64 d, u64 m, u64 s) { return n / d; }
