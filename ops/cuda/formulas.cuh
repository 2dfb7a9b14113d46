// The functions that expressions of elementwise operators use in addition to CUDA's own. Another processor defines
// OWN_SIGMOID and its own sigmoid and gelu_gate of Float32.
#ifndef OWN_SIGMOID
// 2 to the power v, and 1 / v for v from 1: one instruction each, 2 units in the last place.
__device__ __forceinline__ float power_of_two(float v) {
    float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r;
}
__device__ __forceinline__ float inverse(float v) {
    float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r;
}
// As below of Float64.
__device__ __forceinline__ float sigmoid(float v) { return inverse(1.0f + power_of_two(v * -1.44269504f)); }
__device__ __forceinline__ float gelu_gate(float v) {
    return inverse(1.0f + power_of_two(v * fmaf(v * v, -0.10294324f, -2.3022082f)));
}
#endif

// Types of several words by one.
typedef signed char i8; typedef long long i64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32;

// The type in which numbers that are no integers meet a T, as NumPy has it.
template <class T> struct Real { typedef double Type; };
template <> struct Real<float> { typedef float Type; };
template <class T, class V> __device__ __forceinline__ typename Real<T>::Type real(V v) {
    return (typename Real<T>::Type)v;
}
__device__ __forceinline__ double infinity() { return __longlong_as_double(0x7ff0000000000000LL); }

template <class E> __device__ __forceinline__ double greatest();
template <> __device__ __forceinline__ double greatest<f16>() { return 65504.0; }
template <> __device__ __forceinline__ double greatest<bf16>() { return 3.3895313892515355e38; }
template <> __device__ __forceinline__ double greatest<float>() { return 3.4028234663852886e38; }
template <> __device__ __forceinline__ double greatest<double>() { return 1.7976931348623157e308; }

__device__ __forceinline__ float absolute(float v) { return fabsf(v); }
__device__ __forceinline__ double absolute(double v) { return fabs(v); }
template <class V> __device__ __forceinline__ V absolute(V v) { return v < V(0) ? V(-v) : v; }

template <class V> __device__ __forceinline__ V sign_of(V v) {  // 0 for NaN
    return v > V(0) ? V(1) : v < V(0) ? V(-1) : V(0);
}
template <class V> __device__ __forceinline__ V clip(V v, V low, V high) { return v < low ? low : v > high ? high : v; }

// Division as NumPy has it: rounded down, or truncated; integers over 0 are 0.
template <class V> __device__ __forceinline__ V over(V a, V b) {
    if (b == V(0)) return V(0);
    return V(-1) < V(0) && b == V(-1) ? V(V(0) - a) : V(a / b);
}
template <class V> __device__ __forceinline__ V rest(V a, V b) {
    return b == V(0) || (V(-1) < V(0) && b == V(-1)) ? V(0) : V(a % b);
}
__device__ __forceinline__ float over(float a, float b) { return truncf(a / b); }
__device__ __forceinline__ double over(double a, double b) { return trunc(a / b); }
__device__ __forceinline__ float rest(float a, float b) { return fmodf(a, b); }
__device__ __forceinline__ double rest(double a, double b) { return fmod(a, b); }

template <class V> __device__ __forceinline__ V floor_rest(V a, V b) {
    V r = rest(a, b);
    return r != V(0) && (r < V(0)) != (b < V(0)) ? V(r + b) : r;
}
template <class V> __device__ __forceinline__ V real_floor_rest(V a, V b) {
    V r = rest(a, b);
    if (b == V(0)) return r;
    return r != V(0) ? (b < V(0)) != (r < V(0)) ? r + b : r : copysign(V(0), b);
}
__device__ __forceinline__ float floor_rest(float a, float b) { return real_floor_rest(a, b); }
__device__ __forceinline__ double floor_rest(double a, double b) { return real_floor_rest(a, b); }

template <class V> __device__ __forceinline__ V floor_over(V a, V b) {
    return V(over(a, b) - V(rest(a, b) != V(0) && (a < V(0)) != (b < V(0))));
}
template <class V> __device__ __forceinline__ V real_floor_over(V a, V b) {
    if (b == V(0)) return a / b;
    V r = rest(a, b);
    V q = (a - r) / b;
    if (r != V(0) && (b < V(0)) != (r < V(0))) q -= V(1);
    if (q == V(0)) return copysign(V(0), a / b);
    V whole = floor(q);
    return q - whole > V(0.5) ? whole + V(1) : whole;
}
__device__ __forceinline__ float floor_over(float a, float b) { return real_floor_over(a, b); }
__device__ __forceinline__ double floor_over(double a, double b) { return real_floor_over(a, b); }

template <class V> __device__ __forceinline__ V power(V a, V b) {
    if (b < V(0)) return a == V(1) ? V(1) : a == V(-1) ? V(b % 2 ? -1 : 1) : V(0);
    V result = 1;
    for (; b > V(0); b = V(b / 2)) {
        if (b % 2) result = V(result * a);
        a = V(a * a);
    }
    return result;
}
// Squares, cubes and their gradients are no more than products: an exponent that is a constant chooses at compile time.
__device__ __forceinline__ float power(float a, float b) {
    return b == 2.0f ? a * a : b == 3.0f ? a * a * a : b == 1.0f ? a : powf(a, b);
}
__device__ __forceinline__ double power(double a, double b) {
    return b == 2.0 ? a * a : b == 3.0 ? a * a * a : b == 1.0 ? a : pow(a, b);
}

// 1 / (1 + exp(-v)); where the exponential overflows this is 0.
__device__ __forceinline__ double sigmoid(double v) { return 1.0 / (1.0 + exp(-v)); }
template <class V> __device__ __forceinline__ V softplus(V v) {  // log(1 + exp(v))
    return log1p(exp(-absolute(v))) + (v < V(0) ? V(0) : v);
}

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)) for u = sqrt(2 / pi) (v + 0.044715 v^3): no cancellation, no tanh.
__device__ __forceinline__ double gelu_gate(double v) {
    return 1.0 / (1.0 + exp(v * (v * v * -0.07135481627260025 - 1.5957691216057308)));
}
template <class V> __device__ __forceinline__ V gelu(V v) { return v * gelu_gate(v); }
template <class V> __device__ __forceinline__ V gelu_slope(V v) {
    V gate = gelu_gate(v);
    return gate * (V(1) + (V(1) - gate) * v * (v * v * V(0.21406444881780076) + V(1.5957691216057308)));
}
