"""These CUDA kernels put rows that ranks exchange by their places into slots, and take those that arrive out of them.

The places that a rank names are sorted, so that those of one owner's slice are contiguous. In every round each two
ranks have as many slots for each other; a slot `s` is of the rank `s / SLOTS`, and of its row `first + s % SLOTS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.moves import MOVE, RowLookup
from mspc.ops.cuda.rows_by_number import BLOCK, NamedRows, divided, head, sorting, table_of
from mspc.ops.cuda.scans import sort_lines
from mspc.ops.cuda.text import COMMON, WORDS, accumulating_type, constants, grid_of, index_type, is_contiguous, lanes_of
from mspc.ops.device import Array, Device, Launch, c_type

ROUND_BYTES = 128 << 20
"""Bytes of rows that a rank sends in one round at most, and of those that it takes."""

_OWNERS = r"""
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
"""
_CLEAR = r"""
__device__ __forceinline__ void clear(Sixteen& v) { v.low = v.high = 0; }
template <class V> __device__ __forceinline__ void clear(V& v) { v = 0; }
"""
_ADD = r"""
__device__ __forceinline__ bool names_alike(u64 one, u64 other) { return place_of_name(one) == place_of_name(other); }
// The rows of one place, one after the other: ranks ascend, and the rows of a rank.
extern "C" __global__ void __launch_bounds__(BLOCK) add_arrived(const u64* sorted, const T* rows, S* table) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x, i = at % PACKS;
    if (at / PACKS >= COUNT) return;
    int name = (int)(at / PACKS);
    const u64 first = sorted[name];
    if (place_of_name(first) == NONE || (name && names_alike(sorted[name - 1], first))) return;
    A total[V];
    for (int j = 0; j < V; ++j) total[j] = 0;
    do {
        const Pack<T, V> given = pack_at<T, V>(rows + ((Index)(unsigned int)sorted[name] * PACKS + i) * V);
        for (int j = 0; j < V; ++j) total[j] += (A)wide(given.at[j]);
    } while (++name < COUNT && names_alike(sorted[name], first));
    S* const to = table + ((Index)place_of_name(first) * PACKS + i) * V;
    Pack<S, V> sum = pack_at<S, V>(to);
    for (int j = 0; j < V; ++j) sum.at[j] = narrow<S>((A)wide(sum.at[j]) + total[j]);
    put_pack<S, V>(to, sum);
}
// Whether a name is the last of its place, and of a rank that no other has come before in an earlier round.
__device__ __forceinline__ bool stands(const u64* sorted, const int* holders, int name) {
    const u64 mine = sorted[name];
    if (place_of_name(mine) == NONE || (name + 1 < COUNT && names_alike(sorted[name + 1], mine))) return false;
    return (int)(unsigned int)mine / SLOTS >= holders[place_of_name(mine)];
}
extern "C" __global__ void __launch_bounds__(BLOCK) set_arrived(
    const u64* sorted, const int* holders, const T* rows, S* table) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x, i = at % PACKS;
    if (at / PACKS >= COUNT || !stands(sorted, holders, (int)(at / PACKS))) return;
    const u64 mine = sorted[at / PACKS];
    put_pack<S, V>(table + ((Index)place_of_name(mine) * PACKS + i) * V,
                   pack_at<S, V>((const S*)rows + ((Index)(unsigned int)mine * PACKS + i) * V));
}
extern "C" __global__ void __launch_bounds__(BLOCK) hold_places(const u64* sorted, int* holders) {
    const int name = blockIdx.x * BLOCK + threadIdx.x;
    if (name < COUNT && stands(sorted, holders, name))
        holders[place_of_name(sorted[name])] = (int)(unsigned int)sorted[name] / SLOTS;
}
extern "C" __global__ void __launch_bounds__(BLOCK) clear_table(S* table, int* holders) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x;
    if (at < SIZE) holders[at] = 0;
    if (at >= (Index)SIZE * PACKS) return;
    Pack<S, V> none;
    for (int j = 0; j < V; ++j) none.at[j] = narrow<S>((A)0);
    put_pack<S, V>(table + at * V, none);
}
extern "C" __global__ void __launch_bounds__(BLOCK) round_table(const S* table, T* out) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= (Index)SIZE * PACKS) return;
    const Pack<S, V> sum = pack_at<S, V>(table + at * V);
    Pack<T, V> made;
    for (int j = 0; j < V; ++j) made.at[j] = narrow<T>(wide(sum.at[j]));
    put_pack<T, V>(out + at * V, made);
}
"""


@dataclass(frozen=True, slots=True)
class Slots:
    """How ranks exchange rows. ranks: of the group. each: slots that two of them have for each other. slice: rows of
    each one's slice of the table. lanes: elements that a thread moves at once, packs: their number in a row."""

    ranks: int
    each: int
    slice: int
    lanes: int
    packs: int

    @property
    def all(self) -> int:
        """Slots of all ranks."""
        return self.ranks * self.each

    def blocks(self, rows: int, packs: int = 1) -> tuple[int, int, int]:
        """Return the grid of a kernel with a thread for every pack of this number of rows."""
        return grid_of(-(-rows * packs // BLOCK))

    def constants(self, rows: int) -> str:
        """Return constants that all kernels use. rows: of the arrays that they reach."""
        most = max(self.all, rows) * self.packs * self.lanes
        return f"typedef {index_type(most)} Index;\n" + constants(
            RANKS=self.ranks, SLOTS=self.each, SLICE=self.slice, PACKS=self.packs, V=self.lanes
        )


def slots_each(count: int, ranks: int, row_bytes: int) -> int:
    """Return the slots that two ranks have for each other if each names `count` rows of `row_bytes` bytes."""
    return max(1, min(count, ROUND_BYTES // max(1, ranks * row_bytes)))


class NamedPlaces:
    """The places [count] that a rank names in a table of all ranks' slices, sorted, and kernels for their rows.

    Args:
        rows: of the other side of the exchange, of which only the element type matters. memory: `bytes_of` it.
    """

    def __init__(self, device: Device, slots: Slots, places: Array, rows: Array, memory: Sequence[Array]) -> None:
        self._slots, self._count = slots, places.size
        chunks, self._names, begins = memory
        self._begins = begins.view("int32")
        lookup = RowLookup(1, 1, slots.ranks * slots.slice, slots.lanes * slots.packs, places.size)
        named = [NamedRows(lookup, rows, places, rows)]
        self._table = table_of(device, named, [0], [0])
        self._sort = sorting(device, named, self._table, chunks, self._names)
        word = WORDS[dtype_of(rows.dtype).itemsize * slots.lanes]
        source = MOVE + head(named) + f"typedef {word} W;\n" + slots.constants(max(self._count, slots.slice))
        names = ("find_owners", "name_places", "pack_rows", "put_rows", "clear_rows", "clear_places", "take_rows")
        self._kernels = {name: device.kernel(source + _CLEAR + _OWNERS, name) for name in names}

    @staticmethod
    def bytes_of(count: int, ranks: int) -> tuple[int, ...]:
        """Return the bytes that it takes."""
        return 8 * count, 8 * count, 4 * (ranks + 1)

    def sort(self) -> None:
        """Sort the positions, and find the first one of each rank's slice."""
        self._sort()
        self._kernels["find_owners"](grid_of(1), BLOCK, [self._names, self._begins])

    def name(self, first: int, places: Array, arriving: Array) -> None:
        """Write the places of this round's slots, each in its owner's slice; none in slots of those that arrive."""
        self._run("name_places", 1, [self._names, self._begins, np.int32(first), places])
        self._run("clear_places", 1, [arriving])

    def pack(self, first: int, rows: Array, packed: Array) -> None:
        """Write the rows of this round's slots."""
        self._run("pack_rows", self._slots.packs, [self._names, self._begins, np.int32(first), rows, packed])

    def put(self, first: int, arrived: Array, out: Array) -> None:
        """Copy this round's slots to the rows that asked for them."""
        self._run("put_rows", self._slots.packs, [self._names, self._begins, np.int32(first), arrived, out])

    def take(self, table: Array, places: Array, rows: Array) -> None:
        """Write the rows of this rank's slice at the places that others ask for."""
        self._run("take_rows", self._slots.packs, [table, places, rows])

    def clear(self, out: Array) -> None:
        """Write zeros for places that are none."""
        grid = self._slots.blocks(self._count, self._slots.packs)
        self._kernels["clear_rows"](grid, BLOCK, [self._names, self._begins, out])

    def _run(self, name: str, packs: int, arguments: list[object]) -> None:
        self._kernels[name](self._slots.blocks(self._slots.all, packs), BLOCK, arguments)


class ArrivedRows:
    """A table [size, ...] that takes rows which arrive in slots, each with its position.

    Args:
        out: the table. places, rows: of the slots. sets: the last row of a position is stored instead of the sum.
        memory: `bytes_of` it.
    """

    def __init__(
        self, device: Device, slots: Slots, out: Array, places: Array, rows: Array, sets: bool, memory: Sequence[Array],
    ) -> None:  # fmt: skip
        self._slots, self._out, self._rows = slots, out, rows
        chunks, self._names, holders, wide = memory
        self._holders = holders.view("int32")
        dtype = dtype_of(out.dtype)
        self._rounds = not sets and self.is_wide(dtype)
        self._wide = wide.view("float32") if self._rounds else out
        lookup = RowLookup(1, 1, slots.slice, slots.lanes * slots.packs, slots.all)
        named = [NamedRows(lookup, rows, places, out)]
        self._table = table_of(device, named, [0], [0])
        self._sort = sorting(device, named, self._table, chunks, self._names)
        own = c_type(dtype)
        source = COMMON + f"typedef {own} T;\ntypedef {accumulating_type(dtype)} A;\n"
        source += f"typedef {'float' if self._rounds else own} S;\n" + head(named) + slots.constants(slots.slice) + _ADD
        names = ["clear_table"] + (["set_arrived", "hold_places"] if sets else ["add_arrived"])
        self._kernels = {name: device.kernel(source, name) for name in names + ["round_table"] * self._rounds}
        self._sets = sets

    @staticmethod
    def bytes_of(slots: int, size: int, inner: int, wide: bool) -> tuple[int, ...]:
        """Return the bytes that it takes for a table of `size` rows of `inner` elements. wide: sums are made in
        Float32."""
        return 8 * slots, 8 * slots, 4 * size, 4 * size * inner * wide

    @staticmethod
    def is_wide(dtype: DType) -> bool:
        """Whether sums of such elements are made in Float32 and rounded once."""
        return dtype.is_float and dtype.itemsize == 2

    def begin(self) -> None:
        """Write zeros everywhere."""
        grid = self._slots.blocks(self._slots.slice, self._slots.packs)
        self._kernels["clear_table"](grid, BLOCK, [self._wide, self._holders])

    def take(self) -> None:
        """Add the rows of this round."""
        slots, kernels = self._slots, self._kernels
        self._sort()
        grid = slots.blocks(slots.all, slots.packs)
        if not self._sets:
            kernels["add_arrived"](grid, BLOCK, [self._names, self._rows, self._wide])
            return
        kernels["set_arrived"](grid, BLOCK, [self._names, self._holders, self._rows, self._wide])
        kernels["hold_places"](slots.blocks(slots.all), BLOCK, [self._names, self._holders])

    def end(self) -> None:
        """Round sums of halves."""
        if self._rounds:
            grid = self._slots.blocks(self._slots.slice, self._slots.packs)
            self._kernels["round_table"](grid, BLOCK, [self._wide, self._out])


# This CUDA kernel puts rows in blocks, in the order of their experts: see `ExpertPlaces`.


_THREADS = 1024
_MOST_EXPERTS = 2048
"""Upper bound of the experts for whose ends a block has its own sorted list."""
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
    """Return the launches that make the results of `ExpertPlaces`. counts: gets the number of rows for each block
    (Int32); rows for which a block has no room get no place there. None for sizes that they do not take."""
    rows, experts = source.shape[0], ends.shape[0]
    if not rows or not 0 < experts <= _MOST_EXPERTS or blocks.outer * blocks.parts * blocks.size >= 2**31:
        return None
    numbers = constants(ROWS=rows, OUTER=blocks.outer)
    (group,), sort, grouping = divided(device, 0, (4,)), None, None
    if blocks.outer > 1:
        group, order, ordered = divided(device, 0, (4 * rows, 4 * rows, source.nbytes))
        held = 8 * rows + source.nbytes + 3 * 256  # with alignment padding
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


# This CUDA kernel numbers the choices of every expert, and makes the tables by which tokens go there and back.


_MOST_COUNTS = 48 << 8
"""Int32 numbers in the shared memory that a block gets without asking."""
_SOURCE = r"""
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
"""


def route_tokens(
    device: Device, experts: Array, tables: Array, places: Array, tokens_first: bool
) -> Launch | None:  # fmt: skip
    """Return the launch of `TopKRouter`'s tables, or None if it does not take them. tokens_first: all choices of a
    token come before those of the next one."""
    batch, tokens, choices = experts.shape
    _, count, capacity = tables.shape
    segments = max(1, _THREADS // count)
    if not is_contiguous(experts, ("Int32", "Int64")) or count * segments > _MOST_COUNTS:
        return None
    if not batch or tokens * choices * count >= 1 << 31 or count * capacity >= 1 << 31:
        return None
    source = f"typedef {c_type(dtype_of(experts.dtype))} I;\n" + constants(
        TOKENS=tokens, CHOICES=choices, EXPERTS=count, CAPACITY=capacity, SEGMENTS=segments, TOKENS_FIRST=tokens_first
    ) + _SOURCE  # fmt: skip
    kernel = device.kernel(source, "route_tokens")
    return lambda: kernel(batch, _THREADS, [experts, tables, places])


# These CUDA kernels give every row of a group the group's row, and add up the rows of every group.
#
# Rows of a group are together. `Grouping` says how their places follow from the ends of groups.


_ROW_THREADS = 256

_GROUP_OF_ROW = r"""
// The number of a row's group, EACH for none, on all threads of the block.
__device__ __forceinline__ int group_of(const I* ends, long long row, int* shared) {
    int mine = IN_ORDER ? -1 : 0;
    for (int e = threadIdx.x; e < EACH; e += THREADS) {
        if (!IN_ORDER) mine += (long long)ends[e] <= row;
        else if ((e ? (long long)ends[e - 1] : 0) <= row && row < (long long)ends[e]) mine = e;
    }
    if (!IN_ORDER) return over_block<Sum>(mine, shared, 0);
    mine = over_block<Largest>(mine, shared, -1);
    return mine < 0 ? EACH : mine;
}
// Where a group's rows begin and end.
__device__ __forceinline__ void borders_of(const I* ends, int number, long long* shared) {
    if (threadIdx.x == 0) {
        shared[0] = IN_ORDER && number ? (long long)ends[number - 1] : 0;
        if (IN_ORDER) shared[1] = (long long)ends[number];
    }
    __syncthreads();
    if (IN_ORDER) return;
    for (int e = threadIdx.x; e < EACH; e += THREADS) {
        int rank = 0;
        for (int o = 0; o < EACH; ++o) rank += ends[o] < ends[e] || (ends[o] == ends[e] && o < e);
        if (rank == number - 1) shared[0] = (long long)ends[e];
        if (rank == number) shared[1] = (long long)ends[e];
    }
    __syncthreads();
}
"""
_ROWS = r"""
extern "C" __global__ void __launch_bounds__(THREADS) rows_of_groups(const T* rows, const I* ends, T* out) {
    __shared__ int shared[32];
    const int row = blockIdx.x, list = row / SIZE;
    const int number = group_of(ends + (u64)list * EACH, FIRST + row % SIZE, shared);
    const int own = list % PARTS * EACH + number - BEGIN;
    const bool there = number < EACH && own >= 0 && own < COUNT;
    for (int i = threadIdx.x; i < PACKS; i += THREADS) {
        Pack<T, V> given;
        if (there) given = pack_at<T, V>(rows + ((u64)own * PACKS + i) * V);
        else for (int j = 0; j < V; ++j) given.at[j] = narrow<T>((A)0);
        put_pack<T, V>(out + ((u64)row * PACKS + i) * V, given);
    }
}
"""
_SUMS = r"""
// A block has a group's sums of 32 packs; its warps take turns at rows.
extern "C" __global__ void __launch_bounds__(THREADS) sums_of_groups(const T* x, const I* ends, T* out) {
    __shared__ long long borders[2];
    __shared__ A sums[THREADS / 32][32][V];
    const int tile = blockIdx.x % TILES, own = blockIdx.x / TILES, group = own + BEGIN;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i = tile * 32 + lane;
    A total[V];
    for (int j = 0; j < V; ++j) total[j] = 0;
    for (int list = group / EACH; list < LISTS; list += PARTS) {
        borders_of(ends + (u64)list * EACH, group % EACH, borders);
        const long long low = borders[0] - FIRST, high = borders[1] - FIRST;
        const int begin = low < 0 ? 0 : low > SIZE ? SIZE : (int)low;
        const int end = high < 0 ? 0 : high > SIZE ? SIZE : (int)high;
        if (i < PACKS)
            for (int row = begin + warp; row < end; row += THREADS / 32) {
                const Pack<T, V> given = pack_at<T, V>(x + (((u64)list * SIZE + row) * PACKS + i) * V);
                for (int j = 0; j < V; ++j) total[j] += (A)wide(given.at[j]);
            }
        __syncthreads();
    }
    for (int j = 0; j < V; ++j) sums[warp][lane][j] = total[j];
    __syncthreads();
    if (warp || i >= PACKS) return;
    Pack<T, V> made;
    for (int j = 0; j < V; ++j) {
        A sum = 0;
        for (int w = 0; w < THREADS / 32; ++w) sum += sums[w][lane][j];
        made.at[j] = narrow<T>(sum);
    }
    put_pack<T, V>(out + ((u64)own * PACKS + i) * V, made);
}
"""


@dataclass(frozen=True)
class Grouping:
    """lists: of ends, one for each block of `size` rows; `parts` blocks have all groups, `each` of them a block. first:
    rows of other ranks before this one's. begin, count: the groups that this rank has. in_order: the ends are those of
    the groups one after the other; else the first group's is the smallest one."""

    lists: int
    parts: int
    each: int
    size: int
    first: int
    begin: int
    count: int
    in_order: bool

    def source(self, rows: Array, ends: Array, lanes: int) -> str:
        """Return C++ of the element types and these numbers, for rows in packs of this number of elements."""
        dtype = dtype_of(rows.dtype)
        text = f"typedef {c_type(dtype)} T;\ntypedef {c_type(dtype_of(ends.dtype))} I;\n"
        text += f"typedef {accumulating_type(dtype)} A;\n" + COMMON
        packs = rows.shape[-1] // lanes
        return text + constants(
            LISTS=self.lists, PARTS=self.parts, EACH=self.each, SIZE=self.size, FIRST=self.first, BEGIN=self.begin,
            COUNT=self.count, IN_ORDER=self.in_order, THREADS=_ROW_THREADS, V=lanes, PACKS=packs, TILES=-(-packs // 32),
        ) + _GROUP_OF_ROW  # fmt: skip


def rows_of_groups(device: Device, grouping: Grouping, rows: Array, ends: Array, out: Array) -> Launch | None:
    """Return the launch that writes the row of every row's group, zeros if it has none."""
    if not math.prod(out.shape) or not rows.size or not grouping.each:
        return None
    lanes = lanes_of(rows.dtype.itemsize, rows.shape[-1], rows, out)
    kernel = device.kernel(grouping.source(rows, ends, lanes) + _ROWS, "rows_of_groups")
    return lambda: kernel(out.shape[0], _ROW_THREADS, [rows, ends, out])


def sums_of_groups(device: Device, grouping: Grouping, x: Array, ends: Array, out: Array) -> Launch | None:
    """Return the launch of the sums of the rows of every group."""
    if not math.prod(out.shape) or not x.size or not grouping.each:
        return None
    lanes = lanes_of(x.dtype.itemsize, x.shape[-1], x, out)
    kernel = device.kernel(grouping.source(x, ends, lanes) + _SUMS, "sums_of_groups")
    tiles = -(-(x.shape[-1] // lanes) // 32)
    return lambda: kernel(out.shape[0] * tiles, _ROW_THREADS, [x, ends, out])
