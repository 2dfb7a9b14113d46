__device__ __forceinline__ int element_of(int turn) {
    return TOKENS_FIRST ? turn : turn % TOKENS * CHOICES + turn / TOKENS;
}
// A block has a row of the batch. Its turns are divided into segments: a pair of an expert and a segment counts those
// that ask for the expert, then numbers them behind those of the segments before.
extern "C" __global__ void route_tokens(const I* experts, I* tables, I* places) {
    __shared__ int counts[EXPERTS * SEGMENTS];
    const int turns = TOKENS * CHOICES, pairs = EXPERTS * SEGMENTS;
    experts += (long long)blockIdx.x * turns;
    places += (long long)blockIdx.x * turns;
    tables += (long long)blockIdx.x * EXPERTS * CAPACITY;
    for (int i = threadIdx.x; i < EXPERTS * CAPACITY; i += blockDim.x) tables[i] = 0;
    for (int i = threadIdx.x; i < turns; i += blockDim.x) {
        const I expert = experts[i];
        if (expert < 0 || expert >= EXPERTS) places[i] = expert * (CAPACITY + 1);
    }
    for (int pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
        const int expert = pair % EXPERTS, segment = pair / EXPERTS;
        const int end = (long long)turns * (segment + 1) / SEGMENTS;
        int count = 0;
        for (int turn = (long long)turns * segment / SEGMENTS; turn < end; ++turn) {
            count += experts[element_of(turn)] == expert;
        }
        counts[pair] = count;
    }
    __syncthreads();
    for (int expert = threadIdx.x; expert < EXPERTS; expert += blockDim.x) {
        int before = 0;
        for (int segment = 0; segment < SEGMENTS; ++segment) {
            const int count = counts[segment * EXPERTS + expert];
            counts[segment * EXPERTS + expert] = before;
            before += count;
        }
    }
    __syncthreads();
    for (int pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
        const int expert = pair % EXPERTS, segment = pair / EXPERTS;
        const int end = (long long)turns * (segment + 1) / SEGMENTS;
        int number = counts[pair];
        for (int turn = (long long)turns * segment / SEGMENTS; turn < end; ++turn) {
            const int element = element_of(turn);
            if (experts[element] != expert) continue;
            const bool taken = ++number <= CAPACITY;
            places[element] = (I)expert * (CAPACITY + 1) + (taken ? number : 0);
            if (taken) tables[expert * CAPACITY + number - 1] = element / CHOICES + 1;
        }
    }
}
