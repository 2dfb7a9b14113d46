// The place in its line of the key at `at`, of COUNT keys in sorted chunks; equal ones of chunks ahead come before it.
template <typename Key> __device__ __forceinline__ int place_of_key(const Key* keys, int at) {
    const int own = at / CHUNK * CHUNK;
    const Key mine = keys[at];
    int place = at - own;
    // Searches in chunks that are full go abreast, as each step waits for memory.
    for (int first = 0; first < COUNT / CHUNK; first += ABREAST) {
        int low[ABREAST];
#pragma unroll
        for (int n = 0; n < ABREAST; ++n) low[n] = 0;
        for (int step = CHUNK / 2; step; step >>= 1)
#pragma unroll
            for (int n = 0; n < ABREAST; ++n)
                if (first + n < COUNT / CHUNK) {
                    const int begin = (first + n) * CHUNK;
                    if (comes_before(keys[begin + low[n] + step - 1], mine, begin < own)) low[n] += step;
                }
#pragma unroll
        for (int n = 0; n < ABREAST; ++n) {
            const int begin = (first + n) * CHUNK;
            if (first + n < COUNT / CHUNK && begin != own)
                place += low[n] + comes_before(keys[begin + low[n]], mine, begin < own);
        }
    }
    const int rest = COUNT / CHUNK * CHUNK;
    if (rest < COUNT && rest != own) place += keys_before(keys + rest, COUNT - rest, mine, rest < own);
    return place;
}
