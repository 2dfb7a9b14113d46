// Sums along the middle of (outer, COUNT, INNER), whose elements are divided into PARTS of LENGTH: X threads side by
// side with V columns each, Y of them below each other.
constexpr int TILES = (INNER + X * V - 1) / (X * V);
extern "C" __global__ void __launch_bounds__(X * Y) @name@(@parameters@) {
    const int lane = threadIdx.x % X, deep = threadIdx.x / X;
    const Index part = blockIdx.x / TILES % PARTS, outer = blockIdx.x / TILES / PARTS;
    const Index column = ((Index)(blockIdx.x % TILES) * X + lane) * V;
    A totals[V];
    #pragma unroll
    for (int j = 0; j < V; ++j) totals[j] = @neutral@;
    if (column < INNER) {
        const Index begin = part * LENGTH;
        const Index end = begin + LENGTH < COUNT ? begin + LENGTH : COUNT;
        #pragma unroll 8
        for (Index r = begin + deep; r < end; r += Y) {
            const Index at0 = (outer * COUNT + r) * INNER + column;
            @loads@
            const Index row = outer * COUNT + r; (void)row;
            @row@
            #pragma unroll
            for (int j = 0; j < V; ++j) {
                const Index at = at0 + j; (void)at;
                @values@
                @each@
                totals[j] = @how@::of(totals[j], (A)(@text@));
            }
        }
    }
    if (Y == 1) {
        if (column < INNER) {
            Pack<R, V> made;
            #pragma unroll
            for (int j = 0; j < V; ++j) {
                const A total = totals[j];
                made.at[j] = narrow<R>((A)(@after@));
            }
            if (PACKED) put_pack<R, V>(out + (outer * PARTS + part) * INNER + column, made);
            else for (int j = 0; j < V; ++j) out[(outer * PARTS + part) * INNER + column + j] = made.at[j];
        }
        return;
    }
    __shared__ A all[Y][V][X];
    #pragma unroll
    for (int j = 0; j < V; ++j) all[deep][j][lane] = totals[j];
    __syncthreads();
    for (int t = threadIdx.x; t < X * V; t += X * Y) {
        A total = all[0][t % V][t / V];
        #pragma unroll
        for (int d = 1; d < Y; ++d) total = @how@::of(total, all[d][t % V][t / V]);
        const Index place = (Index)(blockIdx.x % TILES) * (X * V) + t;
        if (place < INNER) out[(outer * PARTS + part) * INNER + place] = narrow<R>((A)(@after@));
    }
}
