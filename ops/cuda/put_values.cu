extern "C" __global__ void __launch_bounds__(256) @name@(@parameters@) {
    const Index begin = ((Index)blockIdx.x * 256 + threadIdx.x) * V;
    if (begin >= SIZE) return;
    @before@
    Pack<R, V> made;
    #pragma unroll
    for (int j = 0; j < V; ++j) { const Index at = begin + j; (void)at; if (at < SIZE) made.at[j] = @text@; }
    if (begin + V <= SIZE) *(Pack<R, V>*)(out + begin) = made;
    else for (int j = 0; j < V && begin + j < SIZE; ++j) out[begin + j] = made.at[j];
}
