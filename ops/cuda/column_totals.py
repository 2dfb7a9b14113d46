"""Totals of columns that a kernel along rows adds up as it goes from row to row: every group of threads that works at a
row keeps those of its own rows in registers, and a second kernel adds these up. The order of additions never changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mspc.ops.cuda.loop_parts import PARTIAL, LoopReduction
from mspc.ops.cuda.source import neutral
from mspc.ops.device import Array, Device, Launch, c_type

_ALIGNMENT = 256
_WIDE = 8
"""The fewest columns of a block: 32 bytes of Float32, the least that memory gives."""
_EACH = 4
"""Partial totals that a thread adds up at least."""
_LEAST, _MOST = 256, 1024
"""Threads of a block."""
_ADDED = r"""
// A block has `wide` columns of one total; of each a thread takes every slices-th of the partial totals.
extern "C" __global__ void __launch_bounds__(1024) column_totals(TARGETS, int parts, int columns, int wide) {
    __shared__ KIND sums[1024];
    const KIND* partial;
    RESULT* to;
    long long count;
    CHOICE
    const int slices = blockDim.x / wide, slice = threadIdx.x / wide;
    const int column = blockIdx.x * wide + threadIdx.x % wide;
    KIND total = NEUTRAL;
    #pragma unroll 8
    for (int part = slice; part < parts; part += slices)
        if (column < columns) total = HOW::of(total, partial[(size_t)part * columns + column]);
    sums[threadIdx.x] = total;
    for (int half = slices / 2; half; half /= 2) {
        __syncthreads();
        if (slice < half) sums[threadIdx.x] = HOW::of(sums[threadIdx.x], sums[threadIdx.x + half * wide]);
    }
    if (slice || column >= columns) return;
    total = sums[threadIdx.x];
    to[column] = narrow<RESULT>(count > 1 ? total / (KIND)count : total);
}
"""
"""Many small blocks keep a GPU at work for the few microseconds that this takes."""


class ColumnTotals:
    """The totals of a kernel with `parts` groups of threads, each of which works at one row of `columns` at a time.

    partial: room for the groups' own totals, one array for each.
    """

    def __init__(self, device: Device, totals: Sequence[LoopReduction], parts: int, columns: int) -> None:
        self.totals, self.parts, self.columns = totals, parts, columns
        self.partial = partial_totals(device, totals, parts * columns)

    def accumulators(self) -> list[str]:
        """C++ ahead of the rows; a thread has V elements of every one of its PACKS."""
        return [
            line
            for i, total in enumerate(self.totals)
            for line in (
                f"{total.type} c{i}[PACKS][V];",
                "#pragma unroll",
                "for (int k = 0; k < PACKS; ++k)",
                "    #pragma unroll",
                f"    for (int j = 0; j < V; ++j) c{i}[k][j] = ({total.type})({_neutral(total)});",
            )
        ]

    def update(self, i: int) -> str:
        """C++ for an element of pack k that total i takes, where the row is the group's own."""
        total = self.totals[i]
        return f"if (mine) c{i}[k][j] = {total.how}::of(c{i}[k][j], ({total.type}){total.value});"

    def stores(self) -> list[str]:
        """C++ behind the rows."""
        writes = [f"w{i}[place] = c{i}[k][j];" for i in range(len(self.totals))]
        return [
            "const size_t part = ((size_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP) * COLUMNS;",
            "#pragma unroll",
            "for (int k = 0; k < PACKS; ++k) {",
            "    #pragma unroll",
            "    for (int j = 0; j < V; ++j) {",
            "        const int column = (k * GROUP + lane) * V + j;",
            "        if (!EXACT && column >= COLUMNS) continue;",
            "        const size_t place = part + column;",
            *(f"        {write}" for write in writes),
            "    }",
            "}",
        ]

    def parameters(self) -> list[tuple[str, Array]]:
        """What the kernel along rows takes for them, and the arguments."""
        return [(f"{total.type}* w{i}", self.partial[i]) for i, total in enumerate(self.totals)]

    def launches(self, device: Device) -> list[Launch]:
        """What adds the groups' own totals up."""
        return added_parts(device, self.totals, self.partial, self.parts, self.columns)


def partial_totals(device: Device, totals: Sequence[LoopReduction], count: int) -> list[Array]:
    """Room in scratch memory for `count` partial totals of each reduction, as bytes."""
    sizes = [-(-count * PARTIAL[total.type].itemsize // _ALIGNMENT) * _ALIGNMENT for total in totals]
    memory = device.scratch(sum(sizes))
    begins = [sum(sizes[:i]) for i in range(len(sizes))]
    return [memory[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]


def added_parts(
    device: Device, totals: Sequence[LoopReduction], partial: Sequence[Array], parts: int, columns: int
) -> list[Launch]:
    """What fills totals of columns from partial ones, [parts, columns] each: one launch for those of one kind."""
    kinds: dict[tuple[str, ...], list[tuple[LoopReduction, Array]]] = {}
    for total, own in zip(totals, partial, strict=True):
        kinds.setdefault((total.type, total.how, c_type(total.dtype), _neutral(total)), []).append((total, own))
    return [_added(device, kind, of_kind, parts, columns) for kind, of_kind in kinds.items()]


def _added(
    device: Device, kind: tuple[str, ...], totals: Sequence[tuple[LoopReduction, Array]], parts: int, columns: int
) -> Launch:
    type, how, result, start = kind
    numbers = range(len(totals))
    names = {
        "KIND": type, "RESULT": result, "HOW": how, "NEUTRAL": f"({type})({start})",
        "TARGETS": ", ".join(f"const KIND* p{i}, RESULT* t{i}, long long n{i}" for i in numbers),
        "CHOICE": " else ".join(f"if (blockIdx.y == {i}) {{ partial = p{i}; to = t{i}; count = n{i}; }}"
                                for i in numbers[:-1]) + " else " * (len(totals) > 1)
        + f"{{ partial = p{numbers[-1]}; to = t{numbers[-1]}; count = n{numbers[-1]}; }}",
    }  # fmt: skip
    head = "".join(f"#define {name} {text}\n" for name, text in names.items())
    kernel = device.kernel(head + _ADDED, "column_totals")
    slices = min(_MOST // _WIDE, 1 << max(0, -(-parts // _EACH) - 1).bit_length())
    wide = max(_WIDE, _LEAST // slices)
    each = [argument for total, own in totals for argument in (own, total.array, np.int64(total.count))]
    arguments = [*each, np.int32(parts), np.int32(columns), np.int32(wide)]
    grid = (math.ceil(columns / wide), len(totals), 1)
    return lambda: kernel(grid, slices * wide, arguments)


def _neutral(total: LoopReduction) -> str:
    return neutral(total.how, total.accumulates)
