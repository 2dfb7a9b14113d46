// Kernels that keep a GPU busy while others are timed.
extern "C" __global__ void pause(const long long length) {
    const long long begun = nanoseconds();
    while (nanoseconds() - begun < length) {}
}
extern "C" __global__ void numbers(Pack<unsigned int, 4>* target, const unsigned long long count) {
    const unsigned long long step = gridDim.x * (unsigned long long)blockDim.x;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < count; i += step) {
        unsigned int drawn = (unsigned int)i * 2654435761u + (unsigned int)(i >> 32) + 1u;
        Pack<unsigned int, 4> words;
        for (int k = 0; k < 4; ++k) {
            drawn ^= drawn << 13; drawn ^= drawn >> 17; drawn ^= drawn << 5;
            // Any sign, and exponents with which every type of floating-point numbers is at most 2.
            words.at[k] = (drawn & 0x83ff83ffu) | 0x3c003c00u;
        }
        target[i] = words;
    }
}
extern "C" __global__ void hold(volatile unsigned int* held) {
    if (threadIdx.x == 0) atomicAdd((unsigned int*)held, 1u);
    while (!held[1]) {}
    __syncthreads();
    if (threadIdx.x == 0) atomicSub((unsigned int*)held, 1u);
}
extern "C" __global__ void await_holders(volatile unsigned int* held, const unsigned int count) {
    while (held[0] < count) {}
}
extern "C" __global__ void free_holders(volatile unsigned int* held) {
    held[1] = 1;
    while (held[0]) {}
    held[1] = 0;
}
