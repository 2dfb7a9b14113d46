extern "C" __global__ void places_of_rows(const I* ids, int* places) {
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= COUNT) return;
    long long place = 0;
    bool inside = true;
    @named@
    places[at] = inside ? (int)place : -1;
}
