extern "C" __global__ void copy_entry(const @word@* from, @word@* to, const long long* turn, long long count) {
    const @word@* source = from + @read@ * turn[0] * count;
    @word@* target = to + @written@ * turn[0] * count;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count;
         i += (long long)gridDim.x * blockDim.x) target[i] = source[i];
}
