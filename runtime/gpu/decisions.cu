extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);
__device__ __forceinline__ void go_on(u64 handle, bool goes, long long done, const long long* begun, long long limit,
                                      long long number, volatile long long* ended, int* stop) {
    if (goes && !ended[0] && limit && nanoseconds() - begun[0] > limit) { ended[0] = number; ended[1] = done; }
    if (goes && ended[0]) { stop[0] = 1; goes = false; }
    cudaGraphSetConditional(handle, goes);
}
extern "C" __global__ void choose(u64 handle, const bool* condition) { cudaGraphSetConditional(handle, condition[0]); }
/* begun: the time, and the number of turns, which `told` has unless it is known. */
extern "C" __global__ void begin_turns(const long long* told, long long known, int reverse, long long* turn,
                                       long long* begun) {
    const long long turns = known >= 0 ? known : told[0] > 0 ? told[0] : 0;
    begun[0] = nanoseconds();
    begun[1] = turns;
    turn[0] = reverse ? turns : -1;
}
extern "C" __global__ void go_on_while(u64 handle, const bool* condition, const long long* turn, const long long* begun,
                                       long long limit, long long number, volatile long long* ended, int* stop) {
    go_on(handle, condition[0], turn[0], begun, limit, number, ended, stop);
}
extern "C" __global__ void go_on_for(u64 handle, int reverse, const long long* turn, const long long* begun,
                                     long long limit, long long number, volatile long long* ended, int* stop) {
    const long long done = reverse ? begun[1] - turn[0] : turn[0] + 1;
    go_on(handle, done < begun[1], done, begun, limit, number, ended, stop);
}
