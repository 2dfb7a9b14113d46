// The transpose of 16 lines of 16 Float32, with which operands of matmuls are packed.

namespace {

// to[k * width + j] = from[j * step + k] for j < 16 and k < 16.
#ifdef __AVX512F__

typedef float Sixteen __attribute__((vector_size(64), aligned(4), may_alias));

#ifdef __clang__
#define MIXED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int Places __attribute__((vector_size(64)));
#define MIXED(a, b, ...) __builtin_shuffle(a, b, Places{__VA_ARGS__})
#endif

// Lines are mixed with those half of all further on, four times.
inline void turned(const float* from, long long step, float* to, long long width) {
    Sixteen a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) a[i] = *(const Sixteen*)(from + i * step);
#pragma GCC unroll 4
    for (int stage = 0; stage < 4; ++stage) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            b[2 * i] = MIXED(a[i], a[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            b[2 * i + 1] = MIXED(a[i], a[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) a[i] = b[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) *(Sixteen*)(to + i * width) = a[i];
}

#else

inline void turned(const float* from, long long step, float* to, long long width) {
    for (int k = 0; k < 16; ++k)
        for (int j = 0; j < 16; ++j) to[k * width + j] = from[j * step + k];
}

#endif

}  // namespace
