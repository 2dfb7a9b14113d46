// Float8 as bits, after Narrow and `wide` of other types. Numbers beyond the largest one saturate. Small numbers are
// multiplied as integers: kernels take subnormal numbers of Float32 for 0.
struct e4m3 { unsigned char bits; };
struct e5m2 { unsigned char bits; };

// 8 bits of a number with `M` bits of mantissa and this bias of the exponent, ties to even.
template <int M, int BIAS> __device__ __forceinline__ unsigned char float8_of(float v, unsigned int largest) {
    const unsigned int all = __float_as_uint(v), sign = all >> 24 & 0x80, bits = all & 0x7fffffff;
    const unsigned int rounded = bits + (1u << (22 - M)) - 1 + (bits >> (23 - M) & 1);
    const unsigned int normal = (rounded >> (23 - M)) - ((127 - BIAS) << M);
    const float steps = __uint_as_float(bits) * (float)(1 << (M + BIAS - 1));
    const unsigned int small = __float_as_uint((steps < 16.0f ? steps : 16.0f) + 8388608.0f) & 31;
    const unsigned int code = bits < ((128u - BIAS) << 23) ? small : normal;
    return (unsigned char)(sign | (bits > 0x7f800000 ? 0x7f : bits >= 0x47600000 || code > largest ? largest : code));
}
__device__ __forceinline__ float wide(e4m3 v) {
    const unsigned int bits = v.bits & 0x7f;
    const float r = bits < 8 ? (float)bits * 0.001953125f : __uint_as_float((bits << 20) + (120u << 23));
    return __uint_as_float((bits == 0x7f ? 0x7fc00000 : __float_as_uint(r)) | (unsigned int)(v.bits & 0x80) << 24);
}
__device__ __forceinline__ float wide(e5m2 v) {
    const unsigned int bits = v.bits & 0x7f;
    const float r = bits < 4 ? (float)bits * 1.52587890625e-5f : __uint_as_float((bits << 21) + (112u << 23));
    const unsigned int high = bits > 0x7c ? 0x7fc00000 : bits == 0x7c ? 0x7f800000 : __float_as_uint(r);
    return __uint_as_float(high | (unsigned int)(v.bits & 0x80) << 24);
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
template <> struct Narrow<e4m3> {
    static __device__ __forceinline__ e4m3 of(float v) {
        unsigned short r; asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.0f), "f"(v));
        return {(unsigned char)r};
    }
};
template <> struct Narrow<e5m2> {
    static __device__ __forceinline__ e5m2 of(float v) {
        unsigned short r; asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.0f), "f"(v));
        return {(unsigned char)r};
    }
};
#else
template <> struct Narrow<e4m3> {
    static __device__ __forceinline__ e4m3 of(float v) { return {float8_of<3, 7>(v, 0x7e)}; }
};
template <> struct Narrow<e5m2> {
    static __device__ __forceinline__ e5m2 of(float v) { return {float8_of<2, 15>(v, 0x7b)}; }
};
#endif

// The scale that makes `amax` the largest number, at least 2^-126; 1 if it is 0.
template <class R> __device__ __forceinline__ R float8_scale(R amax, R largest) {
    const R scale = amax / largest, least = (R)1.1754943508222875e-38;
    return !(amax > 0) ? (R)1 : scale > least ? scale : least;
}
// The next power of two, for a positive number.
__device__ __forceinline__ float power_of_two_from(float v) {
    return __uint_as_float((__float_as_uint(v) + 0x7fffff) & 0x7f800000);
}
__device__ __forceinline__ double power_of_two_from(double v) {
    return __longlong_as_double((__double_as_longlong(v) + 0xfffffffffffffll) & 0x7ff0000000000000ll);
}
