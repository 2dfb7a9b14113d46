// Whether a key is below another one, or `also` equal to it.
template <typename Key> __device__ __forceinline__ bool comes_before(Key key, Key other, bool also) {
    return key < other || (also && key == other);
}
// How many of `count` sorted keys come before this one.
template <typename Key> __device__ __forceinline__ int keys_before(const Key* sorted, int count, Key key, bool also) {
    int low = 0;
    while (count > 0) {
        const int half = count / 2;
        if (comes_before(sorted[low + half], key, also)) { low += half + 1; count -= half + 1; }
        else count = half;
    }
    return low;
}
