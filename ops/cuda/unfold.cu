extern "C" __global__ void __launch_bounds__(256) unfold(const T* __restrict__ from, T* __restrict__ to) {
    const Index t = (Index)blockIdx.x * 256 + threadIdx.x;
    if (t >= THREADS) return;
    const int c = t % C;
    Index rest = t / C;
    const int x = rest % W; rest /= W;
    const int y = rest % H;
    const Index n = rest / H;
    to[t] = from[((n * FH + y / S) * FW + x / S) * FC + (y % S * S + x % S) * C + c];
}
