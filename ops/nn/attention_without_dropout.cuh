struct Word {};
__device__ __forceinline__ Word word_of_row(long long, const long long*, u64) { return {}; }
__device__ __forceinline__ bool stays(Word, int) { return true; }
#define KEPT_FACTOR 1
