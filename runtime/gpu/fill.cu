extern "C" __global__ void fill(unsigned char* target, const unsigned long long count, const unsigned int value,
                                const unsigned int size) {
    const unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (i >= count) return;
    if (size == 4) ((unsigned int*)target)[i] = value;
    else if (size == 2) ((unsigned short*)target)[i] = value;
    else target[i] = value;
}
