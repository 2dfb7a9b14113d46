// Where the sorted names of every rank's slice begin, RANKS + 1 numbers.
extern "C" __global__ void __launch_bounds__(BLOCK) find_owners(const u64* sorted, int* begins) {
    for (int owner = threadIdx.x; owner <= RANKS; owner += BLOCK)
        begins[owner] = names_before(sorted, COUNT, name_of(owner * SLICE, 0));
}
// The place among the sorted names of what a slot has in this round, -1 where it has nothing.
__device__ __forceinline__ int name_in(int slot, const int* begins, int first) {
    const int owner = slot / SLOTS, row = first + slot % SLOTS;
    return row < begins[owner + 1] - begins[owner] ? begins[owner] + row : -1;
}
extern "C" __global__ void __launch_bounds__(BLOCK) name_places(
    const u64* sorted, const int* begins, int first, int* places) {
    const int slot = blockIdx.x * BLOCK + threadIdx.x;
    if (slot >= RANKS * SLOTS) return;
    const int name = name_in(slot, begins, first);
    if (name >= 0) places[slot] = place_of_name(sorted[name]) - slot / SLOTS * SLICE;
}
// Nothing is asked for, or sent, in slots that nothing arrives in.
extern "C" __global__ void __launch_bounds__(BLOCK) clear_places(int* places) {
    const int slot = blockIdx.x * BLOCK + threadIdx.x;
    if (slot < RANKS * SLOTS) places[slot] = -1;
}
extern "C" __global__ void __launch_bounds__(BLOCK) pack_rows(
    const u64* sorted, const int* begins, int first, const W* rows, W* packed) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x, slot = at / PACKS;
    if (slot >= RANKS * SLOTS) return;
    const int name = name_in((int)slot, begins, first);
    if (name >= 0) packed[at] = rows[(Index)(unsigned int)sorted[name] * PACKS + at % PACKS];
}
extern "C" __global__ void __launch_bounds__(BLOCK) put_rows(
    const u64* sorted, const int* begins, int first, const W* arrived, W* out) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x, slot = at / PACKS;
    if (slot >= RANKS * SLOTS) return;
    const int name = name_in((int)slot, begins, first);
    if (name >= 0) out[(Index)(unsigned int)sorted[name] * PACKS + at % PACKS] = arrived[at];
}
// Zeros for the places that are none: they are named behind all others.
extern "C" __global__ void __launch_bounds__(BLOCK) clear_rows(const u64* sorted, const int* begins, W* out) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x, name = begins[RANKS] + at / PACKS;
    if (name < COUNT) clear(out[(Index)(unsigned int)sorted[name] * PACKS + at % PACKS]);
}
extern "C" __global__ void __launch_bounds__(BLOCK) take_rows(
    const W* table, const int* places, W* rows) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x, slot = at / PACKS;
    if (slot >= RANKS * SLOTS || places[slot] < 0) return;
    rows[at] = table[(Index)places[slot] * PACKS + at % PACKS];
}
