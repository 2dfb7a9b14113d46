extern "C" __global__ void clear_marks(int* marks) {
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < PLACES) marks[at] = -1;
}
extern "C" __global__ void mark_places(const I* ids, int* marks) {
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= UPDATES) return;
    long long id = (long long)ids[at];
    if (WRAPS && id < 0) id += SIZE;
    if (id < 0 || id >= SIZE) return;
    const long long outer = at / INNER / COUNT;
    atomicMax(marks + (outer * SIZE + id) * INNER + at % INNER, (int)(at / INNER % COUNT));
}
extern "C" __global__ void write_marked(const void* x, const void* updates, const int* marks, void* out) {
    const Index at = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= PACKS) return;
    const int mark = marks[at / ROW];
    const Index from = (at / ROW / INNER / SIZE * COUNT + (Index)mark) * INNER + at / ROW % INNER;
    ((W*)out)[at] = mark < 0 ? ((const W*)x)[at] : ((const W*)updates)[from * ROW + at % ROW];
}
