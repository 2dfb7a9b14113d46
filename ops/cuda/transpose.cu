// a counts along the source's neighbours (HEIGHT of them), b along the target's (WIDTH).
extern "C" __global__ void __launch_bounds__(256) @name@(const void* from, void* to) {
    __shared__ W tile[WIDE][PITCH];
    const unsigned int number = blockIdx.x / (DOWN * ACROSS), here = blockIdx.x % (DOWN * ACROSS);
    const int a0 = here / ACROSS * HIGH, b0 = here % ACROSS * WIDE;
    @others@
    const W* source = (const W*)from + (@source@);
    W* target = (W*)to + (@target@);
    #pragma unroll
    for (int e = threadIdx.x; e < HIGH * WIDE; e += 256) {
        const int x = e % HIGH, k = e / HIGH;
        if (a0 + x < HEIGHT && b0 + k < WIDTH) tile[k][x] = source[a0 + x + (b0 + k) * IN];
    }
    __syncthreads();
    #pragma unroll
    for (int e = threadIdx.x; e < HIGH * WIDE; e += 256) {
        const int x = e % WIDE, k = e / WIDE;
        if (a0 + k < HEIGHT && b0 + x < WIDTH) target[(a0 + k) * OUT + b0 + x] = tile[x][k];
    }
}
