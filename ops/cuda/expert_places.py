"""This CUDA kernel puts rows in blocks, in the order of their experts: see `ExpertPlaces`."""

from __future__ import annotations

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import dtype_of
from mspc.ops.cuda.row_names import divided
from mspc.ops.cuda.sorted_lines import sort_lines
from mspc.ops.cuda.source import constants
from mspc.ops.device import Array, Device, Launch, c_type

_THREADS = 1024
_MOST_EXPERTS = 2048
"""Of whose ends a block keeps its own sorted list."""
_GROUPS = r"""
extern "C" __global__ void group_rows(const int* order, int* group) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < ROWS) group[order[at]] = at / (ROWS / OUTER);
}
"""
_PLACES = r"""
// A block of threads has a block of rows: those of a group of ranks whose experts one of them has. Rows of one expert
// are together, so that they lie between two borders; of these it takes those of its group, in their order.
extern "C" __global__ void __launch_bounds__(THREADS) place_rows(
    const I* ends, const S* source, const int* group, P* sources, P* numbers, P* slots, I* own_ends, int* counts) {
    __shared__ int borders[EXPERTS];
    __shared__ int sums[THREADS / 32];
    __shared__ int upto[THREADS];
    const int mine = blockIdx.x / PARTS, part = blockIdx.x % PARTS;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int e = threadIdx.x; e < EXPERTS; e += THREADS) {
        const I end = ends[e];
        int rank = 0;
        for (int o = 0; o < EXPERTS; ++o) rank += ends[o] < end || (ends[o] == end && o < e);
        borders[rank] = end < 0 ? 0 : end > ROWS ? ROWS : (int)end;
    }
    __syncthreads();
    const int begin = part ? borders[part * EACH - 1] : 0;
    const int end = part == PARTS - 1 ? ROWS : borders[part * EACH + EACH - 1];
    const bool own = mine >= FIRST && mine < FIRST + GROUPS && part >= BEGIN && part < BEGIN + COUNT;
    const int block = own ? (mine - FIRST) * COUNT + part - BEGIN : 0;
    numbers += (u64)block * SIZE;
    sources += (u64)block * SIZE;
    own_ends += block * EACH;
    if (own)
        for (int e = threadIdx.x; e < EACH; e += THREADS)
            if (borders[part * EACH + e] <= begin) own_ends[e] = 0;
    int before = 0;
    for (int start = begin; start < end; start += THREADS) {
        const int row = start + threadIdx.x;
        const bool taken = row < end && (OUTER == 1 || group[row] == mine);
        const unsigned int all = __ballot_sync(0xffffffffu, taken);
        if (lane == 0) sums[warp] = __popc(all);
        __syncthreads();
        int number = before + __popc(all & ((1u << lane) - 1)), found = 0;
        for (int w = 0; w < THREADS / 32; ++w) {
            if (w < warp) number += sums[w];
            found += sums[w];
        }
        upto[threadIdx.x] = number + taken;
        if (taken) {
            slots[row] = (P)blockIdx.x * SIZE + number;
            if (own && number < SIZE) {
                numbers[number] = row;
                sources[number] = (P)source[row];
            }
        }
        __syncthreads();
        if (own)
            for (int e = threadIdx.x; e < EACH; e += THREADS) {
                const int last = borders[part * EACH + e] - 1;
                if (last >= start && last < start + THREADS) own_ends[e] = upto[last - start];
            }
        before += found;
        __syncthreads();
    }
    if (own)
        for (int n = before + threadIdx.x; n < SIZE; n += THREADS) numbers[n] = sources[n] = -1;
    if (threadIdx.x == 0) counts[blockIdx.x] = before;
}
"""


@dataclass(frozen=True)
class Blocks:
    """How many groups of ranks and ranks in each there are, rows of a block, and the own groups and ranks: the first
    and how many of either."""

    outer: int
    parts: int
    size: int
    own: tuple[int, ...]


def place_rows(
    device: Device, blocks: Blocks, ends: Array, source: Array, results: tuple[Array, ...], counts: Array
) -> Launch | None:  # fmt: skip
    """Launches that make the results of `ExpertPlaces`. counts: takes how many rows want to go to each block (Int32),
    and those for which it has no room get no place there. None for sizes that they do not take."""
    rows, experts = source.shape[0], ends.shape[0]
    if not rows or not 0 < experts <= _MOST_EXPERTS or blocks.outer * blocks.parts * blocks.size >= 2**31:
        return None
    numbers = constants(ROWS=rows, OUTER=blocks.outer)
    (group,), sort, grouping = divided(device, 0, (4,)), None, None
    if blocks.outer > 1:
        group, order, ordered = divided(device, 0, (4 * rows, 4 * rows, source.nbytes))
        held = 8 * rows + source.nbytes + 3 * 256  # with what aligns them
        sort = sort_lines(device, source, 0, False, ordered.view(source.dtype), order.view("int32"), held)
        if sort is None:
            return None
        grouping = device.kernel(numbers + _GROUPS, "group_rows")
    first, groups, begin, count = blocks.own
    types = zip("ISP", (ends, source, results[0]), strict=True)
    text = "".join(f"typedef {c_type(dtype_of(array.dtype))} {name};\n" for name, array in types)
    text += numbers + constants(
        PARTS=blocks.parts, SIZE=blocks.size, EXPERTS=experts, EACH=experts // blocks.parts, FIRST=first, GROUPS=groups,
        BEGIN=begin, COUNT=count, THREADS=_THREADS,
    ) + _PLACES  # fmt: skip
    kernel = device.kernel(text, "place_rows")

    def launch() -> None:
        if sort is not None and grouping is not None:
            sort()
            grouping(-(-rows // 256), 256, [order, group])
        kernel(blocks.outer * blocks.parts, _THREADS, [ends, source, group, *results, counts])

    return launch
