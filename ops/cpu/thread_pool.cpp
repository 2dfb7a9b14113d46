// A pool of threads for the parts of compiled functions.
//
// A call is cut into shares. The caller takes them from the front and workers from the back, so that the same thread
// finds the same part of the next call's arrays in its cache. A worker that is late finds nothing left, and nobody
// waits for it: the caller waits for shares that somebody has taken. So a call never takes longer than the caller alone
// would, but for the time that waking a sleeper costs.
//
// The remaining shares are in one word: the number of the call in its upper half, then the shares taken from the front
// and the first one taken from the back. A worker reads the word, then the call, and takes a share by exchanging the
// word if nobody has changed it: the data it has read then was of that call.
//
// Workers look for a call for a while before they sleep, and give up their core to others that wait for one meanwhile.
// A process that was forked off has no workers, and starts its own.

// Loops of matmuls are written in vectors: with more the compiler takes twice as long, and they as long as before.
#pragma GCC optimize("O2")

#include <atomic>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

typedef long long i64;
typedef unsigned long long u64;
typedef void (*Function)(void* const*, i64, i64);

namespace {

const u64 SPIN_NS = 100000;  // a worker's before it sleeps: what lies between two calls of a step, mostly
const u64 ALONE_NS = 20000;  // of these without giving up the core
const int MOST_SHARES = 1 << 15;

std::atomic<u64> state;  // number of the call << 32 | first share taken from the back << 16 | shares taken in front
std::atomic<Function> function;
std::atomic<void* const*> table;
std::atomic<i64> begun, parts, shares;
std::atomic<i64> done;
std::atomic<int> busy, sleepers;
int started;  // workers; read and written by who is `busy`
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t called = PTHREAD_COND_INITIALIZER;
std::atomic<bool> watched;  // whether a fork is noticed

void rest() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

u64 now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000ull + (u64)t.tv_nsec;
}

u64 front(u64 word) { return word & 0xffff; }
u64 back(u64 word) { return word >> 16 & 0xffff; }
bool has_shares(u64 word) { return front(word) < back(word); }

// Wait until `ended()`, for `limit` ns at most: first alone, then with the core offered to others after every look.
template <class Ended> bool waited(u64 limit, Ended ended) {
    const u64 begin = now();
    for (;;) {
        for (int i = 0; i < 16; ++i) {
            if (ended()) return true;
            rest();
        }
        const u64 passed = now() - begin;
        if (passed > limit) return false;
        if (passed > ALONE_NS) sched_yield();
    }
}

// Take a share of the present call and do it; false where none is left.
bool took_share(bool from_back) {
    u64 word = state.load(std::memory_order_acquire);
    for (;;) {
        if (!has_shares(word)) return false;
        const Function f = function.load(std::memory_order_acquire);
        void* const* const a = table.load(std::memory_order_acquire);
        const i64 first = begun.load(std::memory_order_acquire), n = parts.load(std::memory_order_acquire);
        const i64 count = shares.load(std::memory_order_acquire);
        const u64 taken = from_back ? word - (1 << 16) : word + 1;
        if (!state.compare_exchange_weak(word, taken, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
        const i64 share = (i64)(from_back ? back(taken) : front(word));
        f(a, first + n * share / count, first + n * (share + 1) / count);
        done.fetch_add(1, std::memory_order_release);
        return true;
    }
}

void* work(void*) {
    const auto is_called = [] { return has_shares(state.load(std::memory_order_acquire)); };
    for (;;) {
        while (took_share(true)) {}
        if (waited(SPIN_NS, is_called)) continue;
        pthread_mutex_lock(&mutex);
        sleepers.fetch_add(1);
        while (!has_shares(state.load())) pthread_cond_wait(&called, &mutex);
        sleepers.fetch_sub(1);
        pthread_mutex_unlock(&mutex);
    }
    return nullptr;
}

void forget_workers() {
    state = 0, done = 0, busy = 0, sleepers = 0, started = 0;
    mutex = PTHREAD_MUTEX_INITIALIZER;
    called = PTHREAD_COND_INITIALIZER;
}

void start_workers(int wanted) {
    if (!watched.exchange(true)) pthread_atfork(nullptr, nullptr, forget_workers);
    sigset_t all, before;  // signals stay with threads that Python knows
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started < wanted) {
        pthread_t made;
        if (pthread_create(&made, nullptr, work, nullptr)) break;  // the caller does what they would have done
        pthread_detach(made);
        ++started;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

// f(a, ...) for all of [first, last), in `cut` shares, on the caller and `others` threads.
extern "C" void pool_run(Function f, void* const* a, i64 first, i64 last, i64 cut, i64 others) {
    const i64 count = last - first;
    if (cut > count) cut = count;
    if (cut > MOST_SHARES) cut = MOST_SHARES;
    if (cut < 2 || others < 1 || busy.exchange(1, std::memory_order_acquire)) {  // another thread has the workers
        if (count > 0) f(a, first, last);
        return;
    }
    if (others > started) start_workers((int)others);
    function.store(f, std::memory_order_release);
    table.store(a, std::memory_order_release);
    begun.store(first, std::memory_order_release);
    parts.store(count, std::memory_order_release);
    shares.store(cut, std::memory_order_release);
    done.store(0, std::memory_order_relaxed);
    const u64 number = (state.load(std::memory_order_relaxed) >> 32) + 1;
    state.store(number << 32 | (u64)cut << 16);
    if (sleepers.load()) {
        pthread_mutex_lock(&mutex);
        pthread_cond_broadcast(&called);
        pthread_mutex_unlock(&mutex);
    }
    while (took_share(false)) {}
    const auto is_done = [&] { return done.load(std::memory_order_acquire) == cut; };
    while (!waited(SPIN_NS, is_done)) {}
    busy.store(0, std::memory_order_release);
}

#include "loops/transpose.h"

#include "gemm.h"
