// ----- headers

#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <deque>
#include <ucontext.h>
#include <utility>
// ----- shim

// What runs most, worth more of the compiler's time than kernels are.
#define QUICK __attribute__((optimize("O1")))
#define __device__
#define __global__ static
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
struct Place { unsigned int x, y, z; };
static Place threadIdx, blockIdx, blockDim, gridDim;

static float from_f16(unsigned short bits) { _Float16 h; std::memcpy(&h, &bits, 2); return (float)h; }
static unsigned short to_f16(float v) {
    _Float16 h = (_Float16)v; unsigned short bits; std::memcpy(&bits, &h, 2); return bits;
}
static unsigned short to_bf16(float v) {
    unsigned int bits; std::memcpy(&bits, &v, 4);
    if (v != v) return 0x7fff;
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static unsigned int __float_as_uint(float v) { unsigned int bits; std::memcpy(&bits, &v, 4); return bits; }
static inline float __uint_as_float(unsigned int v) { float r; std::memcpy(&r, &v, 4); return r; }
static inline float __int_as_float(int v) { float r; std::memcpy(&r, &v, 4); return r; }
static inline unsigned int __funnelshift_r(unsigned int low, unsigned int high, int shift) {
    return (unsigned int)(((unsigned long long)high << 32 | low) >> (shift & 31));
}
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline long long __double_as_longlong(double v) { long long r; std::memcpy(&r, &v, 8); return r; }
static inline double __longlong_as_double(long long v) { double r; std::memcpy(&r, &v, 8); return r; }
static inline unsigned int __umulhi(unsigned int a, unsigned int b) { return (unsigned long long)a * b >> 32; }
static inline float rsqrt(float v) { return 1 / std::sqrt(v); }
static inline double rsqrt(double v) { return 1 / std::sqrt(v); }
using std::acos; using std::acosh; using std::asin; using std::asinh; using std::atan; using std::atan2;
using std::atanh;
using std::ceil; using std::copysign; using std::cos; using std::cosh; using std::erf; using std::erfc; using std::exp;
using std::expm1; using std::floor; using std::fmod; using std::hypot; using std::log; using std::log1p; using std::pow;
using std::min; using std::rint; using std::sin; using std::sinh; using std::sqrt; using std::tan;
using std::tanh; using std::trunc;
// A handle of a conditional node is the address of its value.
extern "C" void cudaGraphSetConditional(unsigned long long handle, unsigned int value) {
    *(unsigned int*)handle = value;
}
static long long clock_nanoseconds() {
    timespec now; clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}
static inline int __popc(unsigned int v) { return __builtin_popcount(v); }
static inline unsigned int __byte_perm(unsigned int a, unsigned int b, unsigned int places) {
    const unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned int made = 0;
    for (int i = 0; i < 4; ++i) made |= (unsigned int)(both >> (places >> 4 * i & 7) * 8 & 255) << 8 * i;
    return made;
}
static inline double __dadd_rn(double a, double b) { volatile double r = a + b; return r; }
static inline double __dmul_rn(double a, double b) { volatile double r = a * b; return r; }

// A copy to shared memory is made as late as it may be, or at once.
extern "C" int eager_copies;
int eager_copies = 0;
namespace copies {
struct Copy { unsigned char* to; const void* from; int bytes; unsigned int group; };
static std::deque<Copy> waiting[1024];
static unsigned int closed[1024];
static void make(const Copy& one) { std::memcpy(one.to, one.from, one.bytes); }
}
typedef unsigned char* Shared;
static Shared shared_at(void* memory) { return (Shared)memory; }
template <int BYTES> static void start_copy(Shared to, const void* from) {
    if (((unsigned long long)to | (unsigned long long)from) % BYTES) __builtin_trap();
    const copies::Copy one = {to, from, BYTES, copies::closed[threadIdx.x]};
    if (eager_copies || BYTES < 4) copies::make(one);
    else copies::waiting[threadIdx.x].push_back(one);
}
static void close_copies() { ++copies::closed[threadIdx.x]; }
template <int LEFT> static void await_copies() {
    auto& waiting = copies::waiting[threadIdx.x];
    for (; !waiting.empty() && waiting.front().group + LEFT < copies::closed[threadIdx.x]; waiting.pop_front())
        copies::make(waiting.front());
}

namespace fibers {
enum State { READY, AT_BLOCK, AT_WARP, DONE };
struct Fiber { ucontext_t start; jmp_buf point; State state; bool begun; unsigned int shuffles; };
static Fiber all[1024];
__attribute__((visibility("default"))) inline char* stacks[1024];  // of all libraries of a process
static ucontext_t home;
static jmp_buf home_point;
static unsigned int now;
static unsigned long long slots[2][1024];
static int votes[2], vote_rounds[1024];
static void (*kernel)();
static void (*call)(void (*)(), void**);
static void** given;

QUICK static void wait(State state) {
    all[now].state = state;
    if (!_setjmp(all[now].point)) _longjmp(home_point, 1);
}
static void body() {
    for (;;) {  // block after block
        call(kernel, given);
        wait(DONE);
    }
}
QUICK static void resume(unsigned int t) {
    now = t; threadIdx = {t, 0, 0};
    if (_setjmp(home_point)) return;
    if (all[t].begun) _longjmp(all[t].point, 1);
    all[t].begun = true;
    swapcontext(&home, &all[t].start);
}
static const unsigned int STACK = 65536, GUARD = 4096;
static char untouched[GUARD];
// Before the first block of a launch.
static void begin(unsigned int threads) {
    for (unsigned int t = 0; t < threads; ++t) {
        Fiber& f = all[t];
        if (!stacks[t]) std::memset(stacks[t] = new char[GUARD + STACK], 0, GUARD);
        getcontext(&f.start);
        f.start.uc_stack.ss_sp = stacks[t] + GUARD; f.start.uc_stack.ss_size = STACK; f.start.uc_link = nullptr;
        makecontext(&f.start, body, 0);
        f.begun = false;
    }
}
// Behind the last one: 2 where a thread took more than its stack.
static int end(unsigned int threads) {
    int status = 0;
    for (unsigned int t = 0; t < threads; ++t)
        if (std::memcmp(stacks[t], untouched, GUARD)) status = 2, std::memset(stacks[t], 0, GUARD);
    return status;
}
// Run one block; 1 where its threads wait for each other for ever.
QUICK static int block(unsigned int threads) {
    for (unsigned int t = 0; t < threads; ++t) {
        all[t].state = READY; all[t].shuffles = 0; vote_rounds[t] = 0;
        copies::waiting[t].clear(); copies::closed[t] = 0;
    }
    votes[0] = votes[1] = 0;
    for (;;) {
        bool moved = false;
        unsigned int done = 0, waiting = 0;
        for (unsigned int w = 0; w < threads; w += 32)
            for (bool again = true; again;) {
                again = false;
                unsigned int at_warp = 0;
                for (unsigned int t = w; t < w + 32 && t < threads; ++t) {
                    if (all[t].state == READY) { resume(t); moved = true; }
                    at_warp += all[t].state == AT_WARP;
                }
                if (at_warp == 32) {
                    for (unsigned int t = w; t < w + 32; ++t) all[t].state = READY;
                    again = true;
                }
            }
        for (unsigned int t = 0; t < threads; ++t) {
            done += all[t].state == DONE;
            waiting += all[t].state == AT_BLOCK;
        }
        if (done == threads) return 0;
        if (waiting == threads) {
            for (unsigned int t = 0; t < threads; ++t) all[t].state = READY;
        } else if (!moved) {
            return 1;
        }
    }
}
}  // namespace fibers

static inline void __syncthreads() { fibers::wait(fibers::AT_BLOCK); }
static inline int __syncthreads_or(int v) {
    const int round = fibers::vote_rounds[threadIdx.x]++ & 1;
    if (v) fibers::votes[round] = 1;
    fibers::wait(fibers::AT_BLOCK);
    const int found = fibers::votes[round];
    fibers::wait(fibers::AT_BLOCK);
    fibers::votes[round] = 0;
    return found;
}
static inline unsigned int atomicAdd(unsigned int* p, unsigned int v) { return __sync_fetch_and_add(p, v); }
static inline int atomicMax(int* p, int v) { const int before = *p; if (v > before) *p = v; return before; }
static inline void __threadfence_system() { __sync_synchronize(); }
QUICK static inline void __syncwarp() { fibers::wait(fibers::AT_WARP); }
template <class V> static unsigned long long* exchange(V v) {
    static_assert(sizeof(V) == 4 || sizeof(V) == 8, "what shuffles take");
    const unsigned int me = threadIdx.x;
    unsigned long long* slots = fibers::slots[fibers::all[me].shuffles++ & 1];
    std::memcpy(&slots[me], &v, sizeof v);
    fibers::wait(fibers::AT_WARP);
    return slots + (me & ~31u);
}
template <class V> static V __shfl_xor_sync(unsigned int, V v, int offset) {
    unsigned long long* warp = exchange(v);
    std::memcpy(&v, &warp[(threadIdx.x & 31) ^ offset], sizeof v);
    return v;
}
template <class V> static V __shfl_sync(unsigned int, V v, int lane) {
    unsigned long long* warp = exchange(v);
    std::memcpy(&v, &warp[lane & 31], sizeof v);
    return v;
}
static inline unsigned int __ballot_sync(unsigned int, int v) {
    unsigned long long* warp = exchange((int)!!v);
    unsigned int bits = 0;
    for (int i = 0; i < 32; ++i) bits |= (unsigned int)(warp[i] & 1) << i;
    return bits;
}

// How a kernel is called, for each list of parameters: what depends on it is as little code as may be.
using Function = void (*)();
template <class... A> struct Call {
    template <std::size_t... I> static void with(Function kernel, void** given, std::index_sequence<I...>) {
        ((void (*)(A...))kernel)(*(std::remove_reference_t<A>*)given[I]...);
    }
    static void now(Function kernel, void** given) { with(kernel, given, std::index_sequence_for<A...>()); }
};
static int launch(Function kernel, void (*call)(Function, void**), bool waits, const unsigned int* grid,
                  unsigned int threads, void** given) {
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    fibers::kernel = kernel; fibers::call = call; fibers::given = given;
    if (waits) fibers::begin(threads);
    for (unsigned int z = 0; z < grid[2]; ++z) for (unsigned int y = 0; y < grid[1]; ++y)
        for (unsigned int x = 0; x < grid[0]; ++x) {
            blockIdx = {x, y, z};
            if (waits) {
                if (const int status = fibers::block(threads)) return status;
            } else {
                for (unsigned int t = 0; t < threads; ++t) { threadIdx = {t, 0, 0}; call(kernel, given); }
            }
        }
    return waits ? fibers::end(threads) : 0;
}
template <class... A>
static int run(void (*kernel)(A...), bool waits, const unsigned int* grid, unsigned int threads, void** given) {
    return launch((Function)kernel, Call<A...>::now, waits, grid, threads, given);
}
// ----- stand_ins

template <class T> static void narrow_two(T* to, float low, float high) {
    to[0] = narrow<T>(low);
    to[1] = narrow<T>(high);
}
