// A scan along a dimension. A block scans COLUMNS lines; each of its threads holds EACH successive elements, and CHUNKS
// threads share a line, TILE elements at once. With few lines PARTS blocks share one, each of them PART elements.

template <class V> __device__ __forceinline__ V of_lane(V v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }

// A State stands for successive elements of a line; `of` combines those of two neighbouring runs.
template <class How> struct Total {
    A v;
    static __device__ __forceinline__ Total none() { return {(A)(NEUTRAL)}; }
    static __device__ __forceinline__ Total element(A v, Index) { return {v}; }
    static __device__ __forceinline__ Total of(Total a, Total b) { return {How::of(a.v, b.v)}; }
    __device__ __forceinline__ Total from(int lane) const { return {of_lane(v, lane)}; }
    __device__ __forceinline__ A result() const { return v; }
};
// The exponential of a difference of logarithms; infinite ones may be equal.
template <class V> __device__ __forceinline__ V share(V x, V y) { return x == y ? (V)1 : exp_of(x - y); }
// The logarithm of a sum of exponentials: `s` times the exponential of the largest, `m`.
template <class V> struct LogTotal {
    V m, s;
    static __device__ __forceinline__ LogTotal none() { return {(V)(NEUTRAL), 0}; }
    static __device__ __forceinline__ LogTotal element(V v, Index) { return {v, 1}; }
    static __device__ __forceinline__ LogTotal of(LogTotal a, LogTotal b) {
        const V less = a.m >= b.m ? share(b.m, a.m) : share(a.m, b.m);
        return {Largest::of(a.m, b.m), a.m >= b.m ? a.s + b.s * less : a.s * less + b.s};
    }
    __device__ __forceinline__ LogTotal from(int lane) const { return {of_lane(m, lane), of_lane(s, lane)}; }
    __device__ __forceinline__ V result() const { return m + log_of(s); }
};
// An extremum and its place, the last one of several; a NaN wins.
template <class How> struct Extremum {
    A v;
    Index place;
    static __device__ __forceinline__ Extremum none() { return {(A)(NEUTRAL), 0}; }
    static __device__ __forceinline__ Extremum element(A v, Index place) { return {v, place}; }
    static __device__ __forceinline__ Extremum of(Extremum a, Extremum b) {
        return b.v != b.v || How::of(a.v, b.v) == b.v ? b : a;
    }
    __device__ __forceinline__ Extremum from(int lane) const { return {of_lane(v, lane), of_lane(place, lane)}; }
    __device__ __forceinline__ A result() const { return v; }
};
// h = a * h + b over a run of elements. A state of zero stays zero, even if the product of coefficients overflows.
struct Linear {
    A a, b;
    static __device__ __forceinline__ Linear none() { return {1, 0}; }
    static __device__ __forceinline__ Linear of(Linear x, Linear y) {
        return {x.a * y.a, x.b == 0 && y.a == y.a ? y.b : y.a * x.b + y.b};
    }
    __device__ __forceinline__ Linear from(int lane) const { return {of_lane(a, lane), of_lane(b, lane)}; }
    __device__ __forceinline__ A result() const { return b; }
};
// The sum of `b` times exponentials of this `y` less those of the elements, none of which exceeds 1. Exponentials of
// differences are no products of others, so that rounding does not add up along a line. A `y` of NaN with a `b` of 0
// stands for no elements.
template <class V> struct LogLinear {
    V y, b;
    static __device__ __forceinline__ LogLinear none() { return {(V)__int_as_float(0x7fc00000), 0}; }
    static __device__ __forceinline__ LogLinear element(V y, V b) { return {y, y == y ? b : y}; }
    static __device__ __forceinline__ LogLinear of(LogLinear x, LogLinear y) {
        if (y.y != y.y && y.b == 0) return x;
        return {y.y, x.b == 0 ? y.b : share(y.y, x.y) * x.b + y.b};
    }
    __device__ __forceinline__ LogLinear from(int lane) const { return {of_lane(y, lane), of_lane(b, lane)}; }
};

constexpr int NEAR = ADJACENT ? (CHUNKS < 32 ? CHUNKS : 32) : (COLUMNS < 32 ? 32 / COLUMNS : 1);
constexpr int FAR = CHUNKS / NEAR, STRIDE = ADJACENT ? 1 : COLUMNS, TILE = CHUNKS * EACH;

// Where element p of a line in the order of the scan begins; with LANES elements at once, the first of them in memory.
__device__ __forceinline__ Index place_of(Index line, Index p, int lanes) {
    const Index n = REVERSE ? COUNT - lanes - p : p;
    return (line / INNER * COUNT + n) * INNER + line % INNER;
}
// The EACH elements of a line from `first`; `other` behind its end.
__device__ __forceinline__ void take(const T* from, Index line, Index first, Index end, A other, A* found) {
    #pragma unroll
    for (int i = 0; i < EACH; i += LANES) {
        Pack<T, LANES> pack;
        const bool there = first + i < end;
        if (there) pack = pack_at<T, LANES>(from + place_of(line, first + i, LANES));
        #pragma unroll
        for (int j = 0; j < LANES; ++j) found[i + j] = there ? (A)wide(pack.at[REVERSE ? LANES - 1 - j : j]) : other;
    }
}
template <class F> __device__ __forceinline__ A one(F value, Index line, Index p, Index end, A other) {
    return p < end ? (A)value(place_of(line, p, 1)) : other;
}
template <class V, class F> __device__ __forceinline__ void put(V* to, Index line, Index first, Index end, F made) {
    #pragma unroll
    for (int i = 0; i < EACH; i += LANES) {
        if (first + i >= end) return;
        Pack<V, LANES> pack;
        #pragma unroll
        for (int j = 0; j < LANES; ++j) pack.at[REVERSE ? LANES - 1 - j : j] = made(i + j);
        put_pack<V, LANES>(to + place_of(line, first + i, LANES), pack);
    }
}

// The combined elements of the chunks of a line before a thread's own, and of all of them.
__device__ __forceinline__ State before_chunk(State own, int chunk, int column, State& all) {
    __shared__ State totals[FAR * COLUMNS];
    const int lane = threadIdx.x & 31, near = chunk % NEAR;
    State run = own, ahead = State::none();
    #pragma unroll
    for (int step = 1; step < NEAR; step <<= 1) {
        const State other = run.from(near < step ? lane : lane - step * STRIDE);
        if (near >= step) run = State::of(other, run);
    }
    all = run;
    if (NEAR > 1) all = run.from(lane + (NEAR - 1 - near) * STRIDE);
    if (FAR > 1) {
        __syncthreads();
        if (near == NEAR - 1) totals[chunk / NEAR * COLUMNS + column] = run;
        __syncthreads();
        all = State::none();
        for (int far = 0; far < FAR; ++far) {
            if (far == chunk / NEAR) ahead = all;
            all = State::of(all, totals[far * COLUMNS + column]);
        }
    }
    if (NEAR > 1) {
        const State other = run.from(near ? lane - STRIDE : lane);
        if (near) ahead = State::of(ahead, other);
    }
    return ahead;
}

// `also` takes places, or the second gradient; `carries` the States of parts of lines.
template <bool ONLY_TOTALS>
__device__ __forceinline__ void scan_lines(@parameters@, T* out, Also* also, State* carries) {
    const int column = ADJACENT ? threadIdx.x / CHUNKS : threadIdx.x % COLUMNS;
    const int chunk = ADJACENT ? threadIdx.x % CHUNKS : threadIdx.x / COLUMNS;
    const Index part = blockIdx.x % PARTS, line = (Index)(blockIdx.x / PARTS) * COLUMNS + column;
    const bool is_last = PARTS == 1 || (part + 1) * PART > COUNT;
    const Index end = line < LINES ? COUNT : 0, stop = is_last ? COUNT : (part + 1) * PART;
#if COMPUTED
    // The elements of arrays are all loaded before anything is computed; `held` are those that a line has once.
    const Index known = line < LINES ? line : LINES - 1;
    @held@
    struct Raw { @fields@ };
    auto load = [&](Index at) -> Raw { return {@loads@}; };
    auto x_from = [&](const Raw& raw, Index at) -> A { @names_of_raw@ @x@ };
    auto y_from = [&](const Raw& raw, Index at) -> A { @names_of_raw@ @y@ };
    auto z_from = [&](const Raw& raw, Index at) -> A { @names_of_raw@ @z@ };
    auto x_of = [&](Index at) -> A { return x_from(load(at), at); };
    auto y_of = [&](Index at) -> A { return y_from(load(at), at); };
#else
    auto x_of = [&](Index at) -> A { return (A)wide(x[at]); };
    auto y_of = [&](Index at) -> A { return (A)wide(y[at]); };
#endif
    State before = State::none();
    if (PARTS > 1 && !ONLY_TOTALS) {
        State own = State::none();
        constexpr Index SHARE = (PARTS + CHUNKS - 1) / CHUNKS;
        for (Index p = chunk * SHARE; p < (chunk + 1) * SHARE; ++p)
            if (p < part && end) own = State::of(own, carries[p * LINES + line]);
        before_chunk(own, chunk, column, before);
    }
    for (Index begin = part * PART; begin < stop; begin += TILE) {
        const Index first = begin + chunk * EACH;
        A u[EACH], v[EACH], w[EACH];
        State run[EACH], total = State::none(), all;
#if COMPUTED
        Raw raw[EACH];
        auto near = [&](int i) { return place_of(known, first + i < COUNT ? first + i : COUNT - 1, 1); };
        #pragma unroll
        for (int i = 0; i < EACH; ++i) raw[i] = load(near(i));
        @begin@
        #pragma unroll
        for (int i = 0; i < EACH; ++i) {
            u[i] = first + i < end ? x_from(raw[i], near(i)) : (A)0;
            if (OPERANDS > 1) v[i] = first + i < end ? y_from(raw[i], near(i)) : (A)BEYOND;
            if (OPERANDS > 2) w[i] = first + i < end ? z_from(raw[i], near(i)) : (A)0;
        }
#else
        take(x, line, first, end, 0, u);
        if (OPERANDS > 1) take(y, line, first, end, BEYOND, v);
        if (OPERANDS > 2) take(z, line, first, end, 0, w);
        @begin@
#endif
        #pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const Index p = first + i;
            if (p < end) total = State::of(total, @element@);
            run[i] = total;
        }
        const State carry = State::of(before, before_chunk(total, chunk, column, all));
        before = State::of(before, all);
        if (ONLY_TOTALS) continue;
        #pragma unroll
        for (int i = EACH - 1; i >= 0; --i)
            run[i] = State::of(carry, !EXCLUSIVE ? run[i] : i ? run[i - 1] : State::none());
        @end@
    }
    if (ONLY_TOTALS && end && !chunk) carries[part * LINES + line] = before;
}

extern "C" __global__ void __launch_bounds__(THREADS) scan(@parameters@, T* out, Also* also, State* carries) {
    scan_lines<false>(@arguments@, out, also, carries);
}
#if SEVERAL_PARTS
extern "C" __global__ void __launch_bounds__(THREADS) scan_totals(@parameters@, T* out, Also* also, State* carries) {
    scan_lines<true>(@arguments@, out, also, carries);
}
#endif
