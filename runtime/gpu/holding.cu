// Kernels that occupy multiprocessors while another one is timed.
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
