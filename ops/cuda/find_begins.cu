extern "C" __global__ void __launch_bounds__(BLOCK) find_begins(const Lookup* table, const u64* sorted, int* begins) {
    const int number = lookup_of_block<&Lookup::begins_block>(table);
    const Lookup& lookup = table[number];
    const long long at = (blockIdx.x - (long long)lookup.begins_block) * BLOCK + threadIdx.x;
    const long long places = size_of(lookup) + 1;
    if (at >= BATCH * places) return;
    sorted += (number * BATCH + at / places) * COUNT;
    begins[lookup.begins + at] = names_before(sorted, COUNT, name_of((int)(at % places), 0));
}
