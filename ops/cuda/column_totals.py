"""Totals of columns that a kernel along rows adds up as it goes from row to row: every group of threads that works at a
row keeps those of its own rows in registers, and a second kernel adds these up. The order of additions never changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mspc.ops.cuda.loop_parts import PARTIAL, LoopReduction
from mspc.ops.cuda.source import constants, grid_of, neutral
from mspc.ops.device import Array, Device, Launch, c_type

_ALIGNMENT = 16
_ADDED = r"""
// A block's 32 columns; each of its 32 warps takes every 32nd of the partial totals.
extern "C" __global__ void __launch_bounds__(1024) column_totals(const KIND* partial, RESULT* to) {
    __shared__ KIND sums[32][33];
    const int lane = threadIdx.x & 31, slice = threadIdx.x >> 5;
    const int column = blockIdx.x * 32 + lane;
    KIND total = NEUTRAL;
    #pragma unroll 8
    for (int part = slice; part < PARTS; part += 32)
        if (column < COLUMNS) total = HOW::of(total, partial[(size_t)part * COLUMNS + column]);
    sums[slice][lane] = total;
    __syncthreads();
    if (slice || column >= COLUMNS) return;
    #pragma unroll
    for (int other = 1; other < 32; ++other) total = HOW::of(total, sums[other][lane]);
    to[column] = narrow<RESULT>(COUNT > 1 ? total / (KIND)COUNT : total);
}
"""


class ColumnTotals:
    """The totals of a kernel with `parts` groups of threads, each of which works at one row of `columns` at a time.

    partial: room for the groups' own totals, one array for each.
    """

    def __init__(self, device: Device, totals: Sequence[LoopReduction], parts: int, columns: int) -> None:
        self.totals, self.parts, self.columns = totals, parts, columns
        types = [PARTIAL[total.type] for total in totals]
        sizes = [-(-parts * columns * type.itemsize // _ALIGNMENT) * _ALIGNMENT for type in types]
        memory = device.scratch(sum(sizes))
        self.partial: list[Array] = [
            memory[sum(sizes[:i]) : sum(sizes[:i]) + size].view(type.numpy)
            for i, (size, type) in enumerate(zip(sizes, types, strict=True))
        ]

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
        return [self._added(device, total, partial) for total, partial in zip(self.totals, self.partial, strict=True)]

    def _added(self, device: Device, total: LoopReduction, partial: Array) -> Launch:
        names = {
            "KIND": total.type, "RESULT": c_type(total.dtype), "HOW": total.how,
            "NEUTRAL": f"({total.type})({_neutral(total)})",
        }  # fmt: skip
        head = "".join(f"#define {name} {text}\n" for name, text in names.items())
        head += constants(PARTS=self.parts, COLUMNS=self.columns, COUNT=total.count)
        kernel = device.kernel(head + _ADDED, "column_totals")
        arguments, grid = [partial, total.array], grid_of(math.ceil(self.columns / 32))
        return lambda: kernel(grid, 1024, arguments, 0)


def _neutral(total: LoopReduction) -> str:
    return neutral(total.how, total.accumulates)
