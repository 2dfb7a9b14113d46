// Constants before: ROWS of COLUMNS, packs of V columns, W warps of a row and WARPS of a block, STAGES rows of a warp
// in shared memory, BLOCKS of which RESIDENT share a multiprocessor, packs of P of gamma; the types A of computation,
// X, G, S and D of x, of its result's gradient, of gamma and of the gradient in x; whether it ADDS a tensor to that;
// whether it JOINS a tensor of type E to the result's gradient.
#include "copy_instructions.cuh"

// Rows that a block works at a time, from row to row of a thread, packs of a row and of a thread.
constexpr int THREADS = 32 * WARPS, GROUP = 32 * W, ABREAST = WARPS / W;
constexpr unsigned int STEP = BLOCKS * ABREAST;
constexpr int PACKS = COLUMNS / V, TURNS = (PACKS + GROUP - 1) / GROUP, EACH = TURNS * V;
constexpr int Q = V * sizeof(A) > 16 ? 16 / sizeof(A) : V;
constexpr A SHARE = (A)1 / COLUMNS;

alignas(16) extern __shared__ unsigned char memory[];

// Bytes of an operand in a stage; from the beginning of that to a thread's first pack, and from pack to pack of it.
template <class T> constexpr int PART = THREADS * TURNS * V * sizeof(T);
template <class T> constexpr int NEXT = THREADS * V * sizeof(T);
template <class T> __device__ __forceinline__ int first_of() { return threadIdx.x * (V * sizeof(T)); }
template <class T> __device__ __forceinline__ Pack<T, V> arrived(const unsigned char* part, int k) {
    return *(const Pack<T, V>*)(part + first_of<T>() + k * NEXT<T>);
}

// Halves are rounded two at a time.
template <class T> struct Rounded { static constexpr bool TWO = false; };
template <> struct Rounded<f16> { static constexpr bool TWO = V % 2 == 0; };
template <> struct Rounded<bf16> { static constexpr bool TWO = V % 2 == 0; };
template <class T, class U> __device__ __forceinline__ Pack<T, V> rounded(const U (&values)[V]) {
    Pack<T, V> found;
    #pragma unroll
    for (int v = 0; v < V; v += 2) {
        if constexpr (Rounded<T>::TWO) {
            narrow_two(&found.at[v], (float)values[v], (float)values[v + 1]);
        } else {
            found.at[v] = narrow<T>(values[v]);
            if (v + 1 < V) found.at[v + 1] = narrow<T>(values[v + 1]);
        }
    }
    return found;
}

// The two totals of a row, on all its threads. Two sets take turns: a warp may be one turn ahead of those that still
// read.
__device__ __forceinline__ void over_row(A (&values)[2], A (*sums)[WARPS][2], int& turn) {
    values[0] = over_warp<Sum>(values[0]);
    values[1] = over_warp<Sum>(values[1]);
    if (W == 1) return;
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) for (int n = 0; n < 2; ++n) sums[turn][warp][n] = values[n];
    __syncthreads();
    values[0] = values[1] = 0;
    #pragma unroll
    for (int w = 0; w < W; ++w) for (int n = 0; n < 2; ++n) values[n] += sums[turn][warp / W * W + w][n];
    turn ^= 1;
}
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) layer_norm_gradients(
    const G* dout, const X* x, const M* means, const M* variances, const S* gamma, const D* addend, const E* other,
    D* dx, A* partial
) {
    __shared__ A sums[2][WARPS][2];
    constexpr int ADDED = PART<G> + PART<X>, JOINED = ADDED + (ADDS ? PART<D> : 0);
    constexpr int STAGE = JOINED + (JOINS ? PART<E> : 0);
    const int lane = threadIdx.x % GROUP, group = threadIdx.x / GROUP;
    const Shared shared = shared_at(memory);
    auto mine = [&](int k) { return PACKS % GROUP == 0 || k * GROUP + lane < PACKS; };
    auto request = [&](unsigned int row, int stage) {
        const Shared part = shared + stage * STAGE;
        const Shared gs = part + first_of<G>(), xs = part + PART<G> + first_of<X>();
        const Shared others = part + ADDED + first_of<D>(), joined = part + JOINED + first_of<E>();
        const size_t at = (size_t)row * COLUMNS + lane * V;
        #pragma unroll
        for (int k = 0; k < TURNS; ++k) {
            if (row >= ROWS || !mine(k)) break;
            start_copy<V * sizeof(G)>(gs + k * NEXT<G>, dout + at + k * GROUP * V);
            start_copy<V * sizeof(X)>(xs + k * NEXT<X>, x + at + k * GROUP * V);
            if (ADDS) start_copy<V * sizeof(D)>(others + k * NEXT<D>, addend + at + k * GROUP * V);
            if (JOINS) start_copy<V * sizeof(E)>(joined + k * NEXT<E>, other + at + k * GROUP * V);
        }
        close_copies();
    };
    const unsigned int begin = blockIdx.x * ABREAST;
    for (int s = 0; s + 1 < STAGES; ++s) request(begin + group + s * STEP, s);
    A scale[EACH], dgamma[EACH], dbeta[EACH];
    #pragma unroll
    for (int k = 0; k < TURNS; ++k) {
        const int pack = k * GROUP + lane;
        #pragma unroll
        for (int q = 0; q < V; q += P) {
            const Pack<S, P> found = pack_at<S, P>(gamma + (mine(k) ? pack : 0) * V + q);
            #pragma unroll
            for (int j = 0; j < P; ++j) scale[k * V + q + j] = (A)wide(found.at[j]);
        }
    }
    #pragma unroll
    for (int n = 0; n < EACH; ++n) dgamma[n] = dbeta[n] = 0;
    // The statistics of a row are read while the row before is worked.
    A next_mean = 0, next_variance = 0;
    auto look = [&](unsigned int row) {
        if (row >= ROWS) return;
        next_mean = (A)wide(means[row]);
        next_variance = (A)wide(variances[row]);
    };
    look(begin + group);
    int stage = 0, turn = 0;
    for (unsigned int base = begin; base < ROWS; base += STEP) {
        const unsigned int row = base + group;
        const bool there = row < ROWS;
        if (W == 1 && !there) break;
        request(row + (STAGES - 1) * STEP, stage ? stage - 1 : STAGES - 1);
        const A mean = next_mean, inverse = 1 / sqrt_of(next_variance + (A)EPSILON);
        look(row + STEP);
        await_copies<STAGES - 1>();
        const unsigned char* part = memory + stage * STAGE;
        const size_t at = (size_t)row * COLUMNS + lane * V;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        A g[EACH], h[EACH], totals[2] = {0, 0};
        #pragma unroll
        for (int k = 0; k < TURNS; ++k) {
            if (!there || !mine(k)) break;
            const Pack<G, V> gs = arrived<G>(part, k);
            const Pack<X, V> xs = arrived<X>(part + PART<G>, k);
            const Pack<E, V> more = arrived<E>(part + (JOINS ? JOINED : 0), k);
            #pragma unroll
            for (int v = 0; v < V; ++v) {
                const int n = k * V + v;
                A own = (A)wide(gs.at[v]);
                if (JOINS) own += (A)wide(more.at[v]);
                const A hat = ((A)wide(xs.at[v]) - mean) * inverse;
                dbeta[n] += own;
                dgamma[n] += own * hat;
                own *= scale[n];
                totals[0] += own;
                totals[1] += own * hat;
                g[n] = own;
                h[n] = hat;
            }
        }
        over_row(totals, sums, turn);
        const A along_g = totals[0] * SHARE * inverse, along_h = totals[1] * SHARE * inverse;
        #pragma unroll
        for (int k = 0; k < TURNS; ++k) {
            if (!there || !mine(k)) break;
            A out[V];
            #pragma unroll
            for (int v = 0; v < V; ++v) out[v] = g[k * V + v] * inverse - along_g - h[k * V + v] * along_h;
            Pack<D, V> made = rounded<D>(out);
            if (ADDS) {
                const Pack<D, V> others = arrived<D>(part + ADDED, k);
                decltype(wide(made.at[0])) both[V];
                #pragma unroll
                for (int v = 0; v < V; ++v) both[v] = wide(made.at[v]) + wide(others.at[v]);
                made = rounded<D>(both);
            }
            put_pack<D, V>(dx + at + k * GROUP * V, made);
        }
    }
    // The block's sums over its rows. Pieces of Q columns lie so that neighbours write next to each other.
    A* board = ABREAST > 1 ? (A*)memory : partial + (size_t)blockIdx.x * 2 * COLUMNS;
    await_copies<0>();
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < TURNS; ++k) {
        if (!mine(k)) break;
        #pragma unroll
        for (int q = 0; q < V / Q; ++q) {
            Pack<A, Q> gammas, betas;
            #pragma unroll
            for (int j = 0; j < Q; ++j) {
                gammas.at[j] = dgamma[k * V + q * Q + j];
                betas.at[j] = dbeta[k * V + q * Q + j];
            }
            A* own = board + group * (2 * COLUMNS) + (q * PACKS + k * GROUP + lane) * Q;
            put_pack<A, Q>(own, gammas);
            put_pack<A, Q>(own + COLUMNS, betas);
        }
    }
    if (ABREAST == 1) return;
    __syncthreads();
    for (int place = threadIdx.x * Q; place < 2 * COLUMNS; place += THREADS * Q) {
        Pack<A, Q> all = pack_at<A, Q>(board + place);
        #pragma unroll
        for (int other = 1; other < ABREAST; ++other) {
            const Pack<A, Q> one = pack_at<A, Q>(board + other * (2 * COLUMNS) + place);
            #pragma unroll
            for (int j = 0; j < Q; ++j) all.at[j] += one.at[j];
        }
        put_pack<A, Q>(partial + (size_t)blockIdx.x * 2 * COLUMNS + place, all);
    }
}
extern "C" __global__ void __launch_bounds__(1024) layer_norm_totals(const A* partial, S* dgamma, S* dbeta) {
    __shared__ A sums[32][33];
    const int lane = threadIdx.x & 31, slice = threadIdx.x >> 5;
    const int place = blockIdx.x * 32 + lane;
    A total = 0;
    #pragma unroll 8
    for (int block = slice; block < BLOCKS; block += 32) total += partial[(size_t)block * 2 * COLUMNS + place];
    sums[slice][lane] = total;
    __syncthreads();
    if (slice) return;
    #pragma unroll
    for (int other = 1; other < 32; ++other) total += sums[other][lane];
    const int piece = place % COLUMNS / Q, column = piece % PACKS * V + piece / PACKS * Q + place % Q;
    (place < COLUMNS ? dgamma : dbeta)[column] = narrow<S>(total);
}
