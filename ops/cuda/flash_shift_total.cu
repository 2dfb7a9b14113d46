typedef long long i64;
// The sum of so many parts, one behind the other.
extern "C" __global__ void shift_total(const float* from, G* to, i64 count, int parts) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    float total = 0;
    for (int part = 0; part < parts; ++part) total += from[part * count + at];
    to[at] = narrow<G>(total);
}
