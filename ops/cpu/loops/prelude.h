// C++ common to compiled loops: element types, and functions of Float32 that a compiler vectorises.
//
// Operators define an element of their result in `cuda`. The same text is compiled for the CPU, with the functions that
// CUDA has and C++ lacks. Functions of Float32 choose by selections and never by branches, so that loops over them are
// vectorised; they are right to about two units in the last place, and NaN, infinities and denormal numbers come out as
// in NumPy. Their polynomials are least maximum fits on the intervals named. Functions of Float64 are those of the C
// library.

#define __device__
#define __forceinline__ inline __attribute__((always_inline))
typedef unsigned long long u64;
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };

template <class To, class From> inline __attribute__((always_inline)) To same_bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To r; __builtin_memcpy(&r, &v, sizeof r); return r;
}
static inline double __longlong_as_double(long long v) { return same_bits<double>(v); }
static inline long long __double_as_longlong(double v) { return same_bits<long long>(v); }
static inline float __int_as_float(int v) { return same_bits<float>(v); }

inline __attribute__((always_inline)) float wide(bf16 v) { return same_bits<float>((unsigned int)v.bits << 16); }
template <class T> inline __attribute__((always_inline)) T wide(T v) { return v; }
template <class T> struct Narrow { template <class V> static __forceinline__ T of(V v) { return (T)v; } };
template <> struct Narrow<bf16> {
    static __forceinline__ bf16 of(float v) {
        const unsigned int bits = same_bits<unsigned int>(v);
        const unsigned int rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        return {(unsigned short)(v != v ? 0x7fc0 : rounded)};
    }
};
static inline unsigned int __float_as_uint(float v) { return same_bits<unsigned int>(v); }
static inline float __uint_as_float(unsigned int v) { return same_bits<float>(v); }
#include "../../cuda/float8.cuh"
template <class T, class V> __forceinline__ T narrow(V v) { return Narrow<T>::of(v); }

struct Sum { template <class V> static __forceinline__ V of(V a, V b) { return a + b; } };
struct Product { template <class V> static __forceinline__ V of(V a, V b) { return a * b; } };
struct Largest { template <class V> static __forceinline__ V of(V a, V b) { return a < b || b != b ? b : a; } };
struct Smallest { template <class V> static __forceinline__ V of(V a, V b) { return b < a || b != b ? b : a; } };

#if HAS_HALVES  // older compilers lack them
inline __attribute__((always_inline)) float wide(f16 v) { return (float)same_bits<_Float16>(v.bits); }
template <> struct Narrow<f16> {
    static __forceinline__ f16 of(float v) { return {same_bits<unsigned short>((_Float16)v)}; }
};
#endif

#define ALSO_OF_FLOAT(name) \
    extern "C" double name(double); extern "C" float name##f(float); \
    static inline float name(float v) { return name##f(v); }
ALSO_OF_FLOAT(acos) ALSO_OF_FLOAT(acosh) ALSO_OF_FLOAT(asin) ALSO_OF_FLOAT(asinh) ALSO_OF_FLOAT(atan)
ALSO_OF_FLOAT(atanh) ALSO_OF_FLOAT(cos) ALSO_OF_FLOAT(cosh) ALSO_OF_FLOAT(erfc) ALSO_OF_FLOAT(sin)
ALSO_OF_FLOAT(sinh) ALSO_OF_FLOAT(tan)
#define OF_DOUBLE(name) extern "C" double name(double); extern "C" float name##f(float);
OF_DOUBLE(erf) OF_DOUBLE(exp) OF_DOUBLE(expm1) OF_DOUBLE(log) OF_DOUBLE(log1p) OF_DOUBLE(tanh)
#define OF_TWO(name) \
    extern "C" double name(double, double); extern "C" float name##f(float, float); \
    static inline float name(float a, float b) { return name##f(a, b); }
OF_TWO(atan2) OF_TWO(fmod) OF_TWO(hypot) OF_TWO(pow)
#define BUILT_IN(name) \
    __forceinline__ float name##f(float v) { return __builtin_##name##f(v); } \
    __forceinline__ float name(float v) { return __builtin_##name##f(v); } \
    __forceinline__ double name(double v) { return __builtin_##name(v); }
BUILT_IN(ceil) BUILT_IN(fabs) BUILT_IN(floor) BUILT_IN(rint) BUILT_IN(sqrt) BUILT_IN(trunc)

__forceinline__ float copysign(float a, float b) { return __builtin_copysignf(a, b); }
__forceinline__ double copysign(double a, double b) { return __builtin_copysign(a, b); }
__forceinline__ float rsqrt(float v) { return 1.0f / sqrt(v); }
__forceinline__ double rsqrt(double v) { return 1.0 / sqrt(v); }
__forceinline__ double __dadd_rn(double a, double b) { volatile double r = a + b; return r; }
__forceinline__ double __dmul_rn(double a, double b) { volatile double r = a * b; return r; }

// exp(r) 2^n for |r| up to log(2) / 2: 1 + r + r^2 p(r), and two factors, as 2^n alone may be no number.
__forceinline__ float scaled_exp(float r, float n) {
    float p = 0.0013814465f;
    p = p * r + 0.008368781f; p = p * r + 0.041668393f; p = p * r + 0.1666652f; p = p * r + 0.49999994f;
    const float value = r * r * p + r + 1.0f;
    const int whole = (int)n, half = whole >> 1;
    return value * same_bits<float>((half + 127) << 23) * same_bits<float>((whole - half + 127) << 23);
}
__forceinline__ float exp(float v) {
    const float c = v < -104.0f ? -104.0f : v > 89.0f ? 89.0f : v;
    const float n = rint(c * 1.44269504f);
    return scaled_exp((c - n * 0.693359375f) + n * 2.12194440e-4f, n);
}
// m 2^e with m from sqrt(1/2) to sqrt(2). With f = m - 1 and s = f / (2 + f), log(m) is f - f^2 / 2 + s (f^2 / 2 + r)
// where r = 2 (s^2 / 3 + s^4 / 5 + ...).
__forceinline__ float log(float v) {
    const bool small = v < 1.17549435e-38f;
    const int bits = same_bits<int>(small ? v * 8388608.0f : v);
    const int e = (bits - 0x3f3504f3) >> 23;
    const float f = same_bits<float>(bits - (e << 23)) - 1.0f;
    const float s = f / (2.0f + f), z = s * s, half = 0.5f * f * f;
    const float r = z * (0.6666667f + z * (0.4f + z * (0.2857143f + z * 0.22222222f)));
    const float n = (float)(e - (small ? 23 : 0));
    const float found = n * 0.693359375f + (f - (half - (s * (half + r) - n * 2.12194440e-4f)));
    const float beyond = v == 0.0f ? -__builtin_inff() : v < 0.0f ? __builtin_nanf("") : v;
    return v > 0.0f && v < __builtin_inff() ? found : beyond;
}
__forceinline__ float log1p(float v) {
    const float u = 1.0f + v, share = v / (u - 1.0f);
    return u == 1.0f || u == __builtin_inff() ? v : log(u) * share;
}
// Beyond 1/2 from the exponential itself; tanh(v / 2) (exp(v) + 1) is exact enough below.
__forceinline__ float tanh(float v) {
    const float a = fabs(v), z = v * v;
    float p = -0.0056039053f;
    p = p * z + 0.020551711f; p = p * z - 0.053714104f; p = p * z + 0.13331152f; p = p * z - 0.33333272f;
    const float far = copysign(1.0f - 2.0f / (exp(2.0f * a) + 1.0f), v);
    return a < 0.625f ? v + v * z * p : far;
}
__forceinline__ float expm1(float v) {
    const float t = tanh(0.5f * v), u = exp(v);
    return fabs(v) < 1.0f ? t * (u + 1.0f) : u - 1.0f;
}
// Up to 1 an even polynomial times v; beyond 1 - exp(p(|v|)), where the logarithm of the complement is smooth.
__forceinline__ float erf(float v) {
    const float a = fabs(v), z = v * v;
    float p = 7.853858e-05f;
    p = p * z - 0.0008010193f; p = p * z + 0.0051883277f; p = p * z - 0.02685381f; p = p * z + 0.11283585f;
    p = p * z - 0.37612626f; p = p * z + 1.1283791f;
    const float c = a > 4.0f ? 4.0f : a;
    float q = -2.1686814e-05f;
    q = q * c + 0.0004413359f; q = q * c - 0.0042045591f; q = q * c + 0.025208248f; q = q * c - 0.10841856f;
    q = q * c - 0.6332199f; q = q * c - 1.1295785f; q = q * c + 0.00018803816f;
    return a < 1.0f ? v * p : v != v ? v : copysign(1.0f - exp(q), v);
}
#define OWN_SIGMOID  // the others are in formulas.cuh
__forceinline__ float sigmoid(float v) { return 1.0f / (1.0f + exp(-v)); }
__forceinline__ float gelu_gate(float v) {
    return 1.0f / (1.0f + exp(v * (v * v * -0.07135481f - 1.5957691f)));
}

#include "../../cuda/formulas.cuh"

// Lanes combined pair by pair, in an order that never changes.
template <class How, int W, class V> __forceinline__ V folded(V* lanes) {
    for (int w = W / 2; w; w /= 2)
        for (int l = 0; l < w; ++l) lanes[l] = How::of(lanes[l], lanes[l + w]);
    return lanes[0];
}
template <class V> __forceinline__ void filled(V* to, long long count, V value) {
    for (long long k = 0; k < count; ++k) to[k] = value;
}
// Totals of all parts, in the order of the parts.
template <class How, class V, class Out>
static void finished(const V* parts, long long count, long long width, double divisor, Out* out) {
    for (long long k = 0; k < width; ++k) {
        V total = parts[k];
        for (long long p = 1; p < count; ++p) total = How::of(total, parts[p * width + k]);
        out[k] = narrow<Out>(divisor == 1 ? total : (V)(total / (V)divisor));
    }
}

#include "transpose.h"
#include "../../cuda/random.cuh"
