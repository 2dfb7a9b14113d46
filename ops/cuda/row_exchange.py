"""These CUDA kernels put rows that ranks exchange by their places into slots, and take those that arrive out of them.

The places that a rank names are sorted, so that those of one owner's slice lie together. In every round each two ranks
have as many slots for each other; a slot `s` is of the rank `s / SLOTS`, and of its row `first + s % SLOTS`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.index import RowLookup
from mspc.ops.cuda.move import MOVE
from mspc.ops.cuda.row_names import BLOCK, NamedRows, head, sorting, table_of
from mspc.ops.cuda.source import COMMON, WORDS, accumulating_type, constants, grid_of, index_type
from mspc.ops.device import Array, Device, c_type

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
    each one's slice of the table. lanes: elements that a thread moves at once, packs: so many of them in a row."""

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
        """The grid of a kernel with a thread for every pack of so many rows."""
        return grid_of(-(-rows * packs // BLOCK))

    def constants(self, rows: int) -> str:
        """What all kernels know. rows: of the arrays that they reach."""
        most = max(self.all, rows) * self.packs * self.lanes
        return f"typedef {index_type(most)} Index;\n" + constants(
            RANKS=self.ranks, SLOTS=self.each, SLICE=self.slice, PACKS=self.packs, V=self.lanes
        )


def slots_each(count: int, ranks: int, row_bytes: int) -> int:
    """Slots that two ranks have for each other where each names `count` rows of so many bytes."""
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
        """Bytes that it takes."""
        return 8 * count, 8 * count, 4 * (ranks + 1)

    def sort(self) -> None:
        """Sort the places, and find where those of each rank's slice begin."""
        self._sort()
        self._kernels["find_owners"](grid_of(1), BLOCK, [self._names, self._begins])

    def name(self, first: int, places: Array, arriving: Array) -> None:
        """The places of this round's slots, each in its owner's slice; none in slots of those that arrive."""
        self._run("name_places", 1, [self._names, self._begins, np.int32(first), places])
        self._run("clear_places", 1, [arriving])

    def pack(self, first: int, rows: Array, packed: Array) -> None:
        """The rows of this round's slots."""
        self._run("pack_rows", self._slots.packs, [self._names, self._begins, np.int32(first), rows, packed])

    def put(self, first: int, arrived: Array, out: Array) -> None:
        """What has arrived in this round's slots to the rows that asked for it."""
        self._run("put_rows", self._slots.packs, [self._names, self._begins, np.int32(first), arrived, out])

    def take(self, table: Array, places: Array, rows: Array) -> None:
        """The rows of this rank's slice at the places that others ask for."""
        self._run("take_rows", self._slots.packs, [table, places, rows])

    def clear(self, out: Array) -> None:
        """Zeros for places that are none."""
        grid = self._slots.blocks(self._count, self._slots.packs)
        self._kernels["clear_rows"](grid, BLOCK, [self._names, self._begins, out])

    def _run(self, name: str, packs: int, arguments: list[object]) -> None:
        self._kernels[name](self._slots.blocks(self._slots.all, packs), BLOCK, arguments)


class ArrivedRows:
    """A table [size, ...] that takes rows which arrive in slots, each with its place.

    Args:
        out: the table. places, rows: of the slots. sets: the last row of a place stands there in place of the sum.
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
        """Bytes that it takes for a table of `size` rows of `inner` elements. wide: sums are made in Float32."""
        return 8 * slots, 8 * slots, 4 * size, 4 * size * inner * wide

    @staticmethod
    def is_wide(dtype: DType) -> bool:
        """Whether sums of such elements are made in Float32 and rounded once."""
        return dtype.is_float and dtype.itemsize == 2

    def begin(self) -> None:
        """Zeros everywhere."""
        grid = self._slots.blocks(self._slots.slice, self._slots.packs)
        self._kernels["clear_table"](grid, BLOCK, [self._wide, self._holders])

    def take(self) -> None:
        """Take what has arrived in this round."""
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
