"""CUDA kernels that copy rows exchanged by index between ranks into send slots, and out of receive slots.

A rank's indices are sorted, so that those in one owner's slice are contiguous. In every round each two ranks have
equally many slots for each other; slot `s` belongs to rank `s / SLOTS` and its row `first + s % SLOTS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.moves import RowLookup
from mspc.ops.cuda.rows_by_number import BLOCK, NamedRows, divided, head, sort_bytes, sorting, table_of
from mspc.ops.cuda.scans import sort_lines
from mspc.ops.cuda.text import WORDS, accumulating_type, definitions, grid_of, index_type, is_contiguous, lanes_of
from mspc.ops.device import Array, Device, Launch, source_text

ROUND_BYTES = 128 << 20
"""Maximum bytes of rows that a rank sends, and receives, in one round."""


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
        return definitions(
            Index=index_type(most), RANKS=self.ranks, SLOTS=self.each, SLICE=self.slice, PACKS=self.packs, V=self.lanes
        )


def slots_per_peer(count: int, ranks: int, row_bytes: int) -> int:
    """Return the number of slots that two ranks have for each other if each has `count` rows of `row_bytes` bytes."""
    return max(1, min(count, ROUND_BYTES // max(1, ranks * row_bytes)))


class NamedPlaces:
    """Sorted indices [count] of a rank into a table of all ranks' slices, and kernels for their rows.

    rows: of the other side of the exchange; only the element type matters. memory: `bytes_of` bytes.
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
        source = head(named) + definitions(W=word) + slots.constants(max(self._count, slots.slice))
        source += source_text("ops/cuda/exchanged_rows.cu")
        names = ("find_owners", "name_places", "pack_rows", "put_rows", "clear_rows", "clear_places", "take_rows")
        self._kernels = {name: device.kernel(source, name) for name in names}

    @staticmethod
    def bytes_of(count: int, ranks: int) -> tuple[int, ...]:
        """Return the bytes that it takes."""
        return sort_bytes(1, count), 8 * count, 4 * (ranks + 1)

    def sort(self) -> None:
        """Sort the positions, and find the first one of each rank's slice."""
        self._sort()
        self._kernels["find_owners"](grid_of(1), BLOCK, [self._names, self._begins])

    def name(self, first: int, places: Array, arriving: Array) -> None:
        """Write the local indices of this round's slots, each relative to its owner's slice; none in slots of received
        rows."""
        self._run("name_places", 1, [self._names, self._begins, np.int32(first), places])
        self._run("clear_places", 1, [arriving])

    def pack(self, first: int, rows: Array, packed: Array) -> None:
        """Write the rows of this round's slots."""
        self._run("pack_rows", self._slots.packs, [self._names, self._begins, np.int32(first), rows, packed])

    def put(self, first: int, arrived: Array, out: Array) -> None:
        """Copy this round's slots to the rows that asked for them."""
        self._run("put_rows", self._slots.packs, [self._names, self._begins, np.int32(first), arrived, out])

    def take(self, table: Array, places: Array, rows: Array) -> None:
        """Write the rows of this rank's slice that other ranks request."""
        self._run("take_rows", self._slots.packs, [table, places, rows])

    def clear(self, out: Array) -> None:
        """Write zeros for invalid indices."""
        grid = self._slots.blocks(self._count, self._slots.packs)
        self._kernels["clear_rows"](grid, BLOCK, [self._names, self._begins, out])

    def _run(self, name: str, packs: int, arguments: list[object]) -> None:
        self._kernels[name](self._slots.blocks(self._slots.all, packs), BLOCK, arguments)


class ArrivedRows:
    """A table [size, ...] that takes rows which arrive in slots, each with its position.

    out: the table. places, rows: of the slots. sets: the last row of a position is stored instead of the sum. memory:
    `bytes_of` it.
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
        source = definitions(T=dtype, A=accumulating_type(dtype), S="float" if self._rounds else dtype)
        source += head(named) + slots.constants(slots.slice) + source_text("ops/cuda/arrived_rows.cu")
        names = ["clear_table"] + (["set_arrived", "hold_places"] if sets else ["add_arrived"])
        self._kernels = {name: device.kernel(source, name) for name in names + ["round_table"] * self._rounds}
        self._sets = sets

    @staticmethod
    def bytes_of(slots: int, size: int, inner: int, wide: bool) -> tuple[int, ...]:
        """Return the bytes needed for a table of `size` rows of `inner` elements. wide: accumulate in Float32."""
        return sort_bytes(1, slots), 8 * slots, 4 * size, 4 * size * inner * wide

    @staticmethod
    def is_wide(dtype: DType) -> bool:
        """Whether such elements are accumulated in Float32 and rounded once."""
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
_MAX_EXPERTS = 2048
"""Upper bound of the experts for whose ends a block has its own sorted list."""


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
    """Return the launches that make the results of `ExpertPlaces`; None for unsupported sizes. counts: receives the
    number of rows of each block (Int32); rows beyond a block's capacity get no position."""
    rows, experts = source.shape[0], ends.shape[0]
    if not rows or not 0 < experts <= _MAX_EXPERTS or blocks.outer * blocks.parts * blocks.size >= 2**31:
        return None
    (group,), sort = divided(device, 0, (4,)), None
    if blocks.outer > 1:
        group, order, ordered = divided(device, 0, (4 * rows, 4 * rows, source.nbytes))
        held = 8 * rows + source.nbytes + 3 * 256  # with alignment padding
        sort = sort_lines(device, source, 0, False, ordered.view(source.dtype), order.view("int32"), held)
        if sort is None:
            return None
    first, groups, begin, count = blocks.own
    text = definitions(
        I=dtype_of(ends.dtype), S=dtype_of(source.dtype), P=dtype_of(results[0].dtype),
        ROWS=rows, OUTER=blocks.outer, PARTS=blocks.parts, SIZE=blocks.size, EXPERTS=experts,
        EACH=experts // blocks.parts, FIRST=first, GROUPS=groups, BEGIN=begin, COUNT=count, THREADS=_THREADS,
    ) + source_text("ops/cuda/place_rows.cu")  # fmt: skip
    grouping, kernel = (device.kernel(text, name) for name in ("group_rows", "place_rows"))

    def launch() -> None:
        if sort is not None:
            sort()
            grouping(-(-rows // 256), 256, [order, group])
        kernel(blocks.outer * blocks.parts, _THREADS, [ends, source, group, *results, counts])

    return launch


# CUDA kernel that numbers the choices of every expert, and makes the tables for sending tokens there and back.


_MAX_COUNTS = 48 << 8
"""Int32 numbers in the shared memory that a block gets without asking."""


def route_tokens(
    device: Device, experts: Array, tables: Array, places: Array, tokens_first: bool
) -> Launch | None:  # fmt: skip
    """Return the launch of `TopKRouter`'s tables, or None if unsupported. tokens_first: all choices of a token precede
    those of the next token."""
    batch, tokens, choices = experts.shape
    _, count, capacity = tables.shape
    segments = max(1, _THREADS // count)
    if not is_contiguous(experts, ("Int32", "Int64")) or count * segments > _MAX_COUNTS:
        return None
    if not batch or tokens * choices * count >= 1 << 31 or count * capacity >= 1 << 31:
        return None
    source = definitions(
        I=dtype_of(experts.dtype), TOKENS=tokens, CHOICES=choices, EXPERTS=count, CAPACITY=capacity, SEGMENTS=segments,
        TOKENS_FIRST=tokens_first,
    ) + source_text("ops/cuda/route_tokens.cu")  # fmt: skip
    kernel = device.kernel(source, "route_tokens")
    return lambda: kernel(batch, _THREADS, [experts, tables, places])


# These CUDA kernels give every row of a group the group's row, and add up the rows of every group.
#
# Rows of a group are together. `Grouping` says how their places follow from the ends of groups.


_ROW_THREADS = 256


@dataclass(frozen=True)
class Grouping:
    """Groups of rows. lists: of ends, one per block of `size` rows; `parts` blocks have all groups, `each` of them per
    block. first: rows of other ranks before this one's. begin, count: the groups of this rank. in_order: the ends
    ascend with the groups; else the first group's end is the smallest."""

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
        packs = rows.shape[-1] // lanes
        return definitions(
            T=dtype, I=dtype_of(ends.dtype), A=accumulating_type(dtype),
            LISTS=self.lists, PARTS=self.parts, EACH=self.each, SIZE=self.size, FIRST=self.first, BEGIN=self.begin,
            COUNT=self.count, IN_ORDER=self.in_order, THREADS=_ROW_THREADS, V=lanes, PACKS=packs, TILES=-(-packs // 32),
        ) + source_text("ops/cuda/rows_of_groups.cu")  # fmt: skip


def over_groups(device: Device, name: str, grouping: Grouping, rows: Array, ends: Array, out: Array) -> Launch | None:
    """Return the launch of "rows_of_groups", which writes the row of every row's group, zeros if it has none, or of
    "sums_of_groups", the sums of the rows of every group."""
    if not math.prod(out.shape) or not rows.size or not grouping.each:
        return None
    lanes = lanes_of(rows.dtype.itemsize, rows.shape[-1], rows, out)
    kernel = device.kernel(grouping.source(rows, ends, lanes), name)
    blocks = out.shape[0] * (-(-rows.shape[-1] // (32 * lanes)) if name == "sums_of_groups" else 1)
    return lambda: kernel(blocks, _ROW_THREADS, [rows, ends, out])
