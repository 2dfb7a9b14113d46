// Parts [first, last). a[0] has the addresses of all members' operands; a[1] a member, a first and a last element of
// its rows and a place in memory for every part; a[2] for every member its rows, their elements, the integers, and the
// offset and total of `RowLookup`; a[3] is memory for names and their copies.
extern "C" void NAME(void* const* const a, const i64 first, const i64 last) {
    using namespace n_NAME;
    for (i64 number = first; number < last; ++number) {
        const i64* const part = (const i64*)a[1] + 4 * number;
        const i64* const sizes = (const i64*)a[2] + 5 * part[0];
        void* const* const row = (void* const*)a[0] + part[0] * @width@;
        const i64 size = sizes[0], inner = sizes[1], count = sizes[2], offset = sizes[3], total = sizes[4];
        const @rows@* const rows = (const @rows@*)row[@gradient@];
        const @ids@* const ids = (const @ids@*)row[@gradient@ + 1];
        u64* names = (u64*)a[3] + part[3];
        u64* other = names + count;
        i64 found = 0;
        for (i64 i = 0; i < count; ++i) {
            const i64 id = (i64)ids[i], place = (total && id < 0 ? id + total : id) - offset;
            if (place >= 0 && place < size) names[found++] = (u64)place << 32 | (u64)i;
        }
        for (int shift = 32; (u64)(size - 1) >> (shift - 32); shift += 8) {
            i64 begins[257] = {0};
            for (i64 n = 0; n < found; ++n) ++begins[(names[n] >> shift & 255) + 1];
            for (int digit = 0; digit < 256; ++digit) begins[digit + 1] += begins[digit];
            for (i64 n = 0; n < found; ++n) other[begins[names[n] >> shift & 255]++] = names[n];
            u64* const sorted = other;
            other = names, names = sorted;
        }
        @scalars@
        for (i64 n = 0, end; n < found; n = end) {
            const i64 place = (i64)(names[n] >> 32);
            for (end = n + 1; end < found && (i64)(names[end] >> 32) == place; ++end) {}
            for (i64 k = part[1]; k < part[2]; k += 64) {
                const i64 length = part[2] - k < 64 ? part[2] - k : 64, at = place * inner + k;
                @rows@ sum[64];
                for (i64 j = 0; j < length; ++j) sum[j] = 0;
                for (i64 m = n; m < end; ++m) {
                    const @rows@* const given = rows + (i64)(unsigned int)names[m] * inner + k;
                    _Pragma("omp simd") for (i64 j = 0; j < length; ++j) sum[j] += given[j];
                }
                @pointers@
                _Pragma("omp simd") for (i64 j = 0; j < length; ++j) {
                    @element@
                }
            }
        }
    }
}
