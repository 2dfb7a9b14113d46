extern "C" __global__ void __launch_bounds__(256) fold(const T* __restrict__ from, T* __restrict__ to) {
    const Index t = (Index)blockIdx.x * 256 + threadIdx.x;
    if (t >= THREADS) return;
    const int first = t % (FC / V) * V;
    Index rest = t / (FC / V);
    const int j = rest % FW; rest /= FW;
    const int i = rest % FH;
    const Index n = rest / FH;
    Pack<T, V> made;
    #pragma unroll
    for (int v = 0; v < V; ++v) {
        const int channel = first + v, c = channel % C, r = channel / C;
        const int y = i * S + r / S - B0, x = j * S + r % S - B1;
        made.at[v] = r < S * S && y >= 0 && y < H && x >= 0 && x < W ? from[((n * H + y) * W + x) * C + c] : T(0);
    }
    *(Pack<T, V>*)(to + t * V) = made;
}
