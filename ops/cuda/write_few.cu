__device__ __forceinline__ long long place_of(const I* ids, int number) {
    long long place = 0;
    @named@
    return place;
}
extern "C" __global__ void write_few(const I* ids, const W* updates, W* out) {
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= COUNT * ROW) return;
    const int number = (int)(at / ROW);
    bool stays = true;
    const long long place = place_of(ids, number);
    for (int later = number + 1; later < COUNT; ++later) stays = stays && place_of(ids, later) != place;
    if (place < 0 || !stays) return;
    long long rest = at % ROW, target = place;
    @target@
    out[target] = updates[at];
}
