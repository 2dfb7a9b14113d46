"""These CUDA kernels update the rows of tables that integers name, and leave all others as they are.

The integers are sorted as for sums of rows (`row_sums`), so that the gradient of a row is added up in the same order,
by the threads that update the row: it is never in memory. What a launch costs depends on the integers, not on the
tables.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.math import MATH, one_word
from mspc.ops.cuda.row_names import BLOCK, NamedRows, divided, sorting, table_of
from mspc.ops.cuda.row_sums import adding_tiles, alike, bytes_of_tiles, share_of, sum_source
from mspc.ops.cuda.source import address, grid_of, lanes_of
from mspc.ops.cuda.update import element_function
from mspc.ops.device import Array, Copy, Device, Launch, c_type, computing_type, in_order

_ABREAST = 8
"""Packs of a row that neighbouring threads should have."""


@dataclass(frozen=True, slots=True)
class UpdatedRows:
    """A table whose rows are updated. sums: the rows of its gradient. operands: those of the update, None for the
    gradient. copy: where else the new values of operand 0 go."""

    sums: NamedRows
    operands: Sequence[Array | None]
    copy: Copy | None = None


def update_rows(device: Device, op: Any, gradient: int, several: Sequence[UpdatedRows]) -> Launch | None:
    """Launch of the update `op` of every table, whose operand `gradient` is the sums of rows, in one set for all that
    are alike.

    Args:
        op: an `Update` that changes nothing where the gradient is 0; None is returned where it has no `statements`.
    """
    kinds: dict[Hashable, list[UpdatedRows]] = {}
    for one in several:
        if math.prod(one.sums.out.shape) and math.prod(one.sums.rows.shape):
            copied = None if one.copy is None else dtype_of(one.copy.array.dtype)
            kinds.setdefault((alike(one.sums), _dtypes(one), copied), []).append(one)
    if not all(op.statements(_dtypes(one)) for one in several):
        return None
    return in_order(*[_launch(device, op, gradient, own) for own in kinds.values()]) if kinds else _nothing


def _nothing() -> None: ...


def _dtypes(one: UpdatedRows) -> tuple[DType, ...]:
    """The element types of the update's operands."""
    return tuple(dtype_of((one.sums.rows if array is None else array).dtype) for array in one.operands)


def _launch(device: Device, op: Any, gradient: int, tables: Sequence[UpdatedRows]) -> Launch:
    sums = [one.sums for one in tables]
    lookup, dtypes = sums[0].lookup, _dtypes(tables[0])
    tensors = [i for i in range(len(dtypes)) if i not in op.scalars and i != gradient]
    widest = max(dtypes[i].itemsize for i in (*tensors, gradient))
    arrays = [array for one in tables for i, array in enumerate(one.operands) if i in tensors]
    lanes = lanes_of(widest, lookup.inner, *arrays, *[one.rows for one in sums])
    while not all(_takes_packs(one, lanes) for one in tables):
        lanes //= 2
    packs, share = lookup.inner // lanes, share_of(lookup)
    each = max(n for n in (1, 2, 4) if n == 1 or (packs % n == 0 and packs // n >= _ABREAST and share == 1))
    source = MATH + sum_source(sums, lanes, each) + _source(op, dtypes, tensors, gradient, tables[0].copy)
    names = len(sums) * lookup.count
    chunks, sorted_names, tiles = divided(device, 0, (8 * names, 8 * names, bytes_of_tiles(sums)))
    table = table_of(device, sums, [0] * len(sums), [0] * len(sums))
    operands = device.xp.asarray(np.array([_row(one) for one in tables], np.int64))
    sort = sorting(device, sums, table, chunks, sorted_names)
    ahead = adding_tiles(device, source, sums, packs, [table, sorted_names, tiles])
    kernel = device.kernel(source, "update_rows")
    blocks = -(-names * (packs // each) * share // BLOCK)

    def launch() -> None:
        sort()
        ahead()
        kernel(grid_of(blocks), BLOCK, [table, operands, sorted_names, tiles, device.stop])

    return launch


def _row(one: UpdatedRows) -> list[int]:
    """What the kernel's table has of a table: addresses of operands, and where a copy is."""
    row = [0 if array is None else address(array) for array in one.operands]
    return row if one.copy is None else [*row, address(one.copy.array), one.copy.columns, one.copy.pitch]


def _takes_packs(one: UpdatedRows, lanes: int) -> bool:
    """Whether packs of a row are packs of its copy."""
    copy = one.copy
    if copy is None:
        return True
    return not (address(copy.array) % (lanes * copy.array.dtype.itemsize) or copy.columns % lanes or copy.pitch % lanes)


def _source(op: Any, dtypes: Sequence[DType], tensors: Sequence[int], gradient: int, copy: Copy | None) -> str:
    """The kernel `update_rows`."""
    type, names = computing_type(dtypes[0]), op.operands
    given = [f"v{i}" if i in (*tensors, gradient) else name for i, name in enumerate(names)]
    width = len(names) + (0 if copy is None else 3)
    scalars = [
        f"const {one_word(type)} {name} = ({one_word(type)})wide(*(const {c_type(dtypes[i])}*)row[{i}]);"
        for i, name in enumerate(names)
        if i not in (*tensors, gradient)
    ]
    lines = [f"Pack<{c_type(dtypes[i])}, V> a{i} = *(const Pack<{c_type(dtypes[i])}, V>*)"
             f"(({c_type(dtypes[i])}*)row[{i}] + to);" for i in tensors]  # fmt: skip
    lines += ["for (int j = 0; j < V; ++j) {"]
    lines += [f"    {type} v{i} = ({type})wide(a{i}.at[j]);" for i in tensors]
    lines += [f"    const {type} v{gradient} = ({type})wide(narrow<T>(total[e][j]));"]
    lines += [f"    update_element({', '.join(given)});"]
    lines += [f"    a{i}.at[j] = narrow<{c_type(dtypes[i])}>(v{i});" for i in op.mutates]
    lines += ["}"]
    lines += [f"*(Pack<{c_type(dtypes[i])}, V>*)(({c_type(dtypes[i])}*)row[{i}] + to) = a{i};" for i in op.mutates]
    if copy is not None:
        kind, place = c_type(dtype_of(copy.array.dtype)), len(names)
        lines += [f"Pack<{kind}, V> c;", f"for (int j = 0; j < V; ++j) c.at[j] = narrow<{kind}>(wide(a0.at[j]));"]
        lines += [f"*(Pack<{kind}, V>*)(({kind}*)row[{place}] + to / row[{place + 1}] * row[{place + 2}]"
                  f" + to % row[{place + 1}]) = c;"]  # fmt: skip
    element = "\n".join(element_function(op, one_word(type), op.statements(dtypes)))
    body = _KERNEL.replace("@WIDTH@", str(width)).replace("@SCALARS@", "\n    ".join(scalars))
    return element + body.replace("@ROW@", "\n        ".join(lines))


_KERNEL = r"""
// How many sorted names are of one place, which begins at `begin`, and all those ahead of it.
__device__ __forceinline__ int end_of_place(const u64* sorted, int begin) {
    const int place = place_of_name(sorted[begin]);
    int low = begin + 1, step = 1;
    while (low < COUNT && place_of_name(sorted[low]) == place) { low += step; step *= 2; }
    const int first = step == 1 ? low : low - step / 2 + 1;
    const int count = (low < COUNT ? low : COUNT) - first;
    return first + names_before(sorted + first, count, name_of(place + 1, 0));
}

// A place is of the threads of its first name, which have EACH packs of the row, every APART-th of them.
extern "C" __global__ void __launch_bounds__(BLOCK) update_rows(
    const Lookup* table, const u64* operands, const u64* sorted, const A* sums, const int* stop) {
    if (stop[0]) return;
    const u64 at = ((u64)blockIdx.x * BLOCK + threadIdx.x) / SHARE;
    const int share = threadIdx.x % SHARE;
    const Index i = at % APART, number = at / APART / COUNT;
    const int n = (int)(at / APART % COUNT);
    int place = NONE;
    if (number < LOOKUPS) {
        sorted += (u64)number * COUNT;
        place = place_of_name(sorted[n]);
        if (n && place == place_of_name(sorted[n - 1])) place = NONE;
    }
    A total[EACH][V];
    for (int e = 0; e < EACH; ++e)
        for (int j = 0; j < V; ++j) total[e][j] = 0;
    if (place != NONE)
        add_sorted(total, (const T*)table[number].rows, sorted, sums + number * TILES * INNER * V, n,
                   end_of_place(sorted, n), i, share);
    join_shares(total);
    if (place == NONE || share) return;
    const u64* const row = operands + (u64)number * @WIDTH@;
    @SCALARS@
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const u64 to = ((u64)place * INNER + i + e * APART) * V;
        @ROW@
    }
}
"""
