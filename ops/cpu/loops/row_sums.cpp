// a[0] are the rows, a[1] the ids, a[2] the result, a[3] an Int64 that is set to 1 for an id that names no row at all,
// a[4] the first values of the result, if it has any.
extern "C" void NAME(void* const* const a, const i64 first, const i64 last) {
    const @kind@* const rows = (const @kind@*)a[0];
    const @ids@* const ids = (const @ids@*)a[1];
    @kind@* const out = (@kind@*)a[2];
    for (i64 part = first; part < last; ++part) {
        const i64 from = part * @length@ll / @parts@;
        const i64 to = (part + 1) * @length@ll / @parts@;
        (void)from, (void)to;
        for (i64 group = @groups_from@; group < @groups_to@; ++group) {
            @kind@* const table = out + group * @table@;
            for (i64 row = @rows_from@; row < @rows_to@; ++row)
                for (i64 k = @columns_from@; k < @columns_to@; ++k) table[row * @inner@ + k] = @first@;
            for (i64 i = 0; i < @count@; ++i) {
                const i64 id = (i64)ids[group / @middle@ * @count@ + i];
                @check@
                const i64 row = @place@ - @offset@;
                if (row < @rows_from@ || row >= @rows_to@) continue;
                const @kind@* const given = rows + (group * @count@ + i) * @inner@;
                @kind@* const total = table + row * @inner@;
                _Pragma("omp simd") for (i64 k = @columns_from@; k < @columns_to@; ++k) total[k] = @combined@;
            }
        }
    }
}
