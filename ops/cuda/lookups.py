"""One CUDA kernel looks rows up in many tables, and rounds them on the way where it is to."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from mspc.ir.types import dtype_of
from mspc.ops.cuda.row_names import BLOCK, NamedRows, head, table_of
from mspc.ops.cuda.source import constants, grid_of, index_type, lanes_of
from mspc.ops.device import Array, Device, Launch, c_type, in_order

_BITS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "u64"}
"""What elements are copied as, by their bytes."""
_KERNEL = r"""
extern "C" __global__ void __launch_bounds__(BLOCK) look_up(const Lookup* table) {
    const Index at = (Index)blockIdx.x * BLOCK + threadIdx.x;
    if (at >= PACKS) return;
    const Index i = at % INNER, n = at / INNER % COUNT, groups = at / INNER / COUNT, group = groups % (BATCH * MIDDLE);
    const Lookup& lookup = table[groups / (BATCH * MIDDLE)];
    const int place = place_of(((const I*)lookup.ids)[group / MIDDLE * COUNT + n], lookup);
    Pack<T, V> found;
    if (place == NONE) for (int j = 0; j < V; ++j) found.at[j] = @NOTHING@;
    else found = *(const Pack<T, V>*)((const T*)lookup.rows + (((u64)group * size_of(lookup) + place) * INNER + i) * V);
    Pack<O, V> made;
    for (int j = 0; j < V; ++j) made.at[j] = @ELEMENT@;
    *(Pack<O, V>*)((O*)lookup.out + (((u64)group * COUNT + n) * INNER + i) * V) = made;
}
"""


def look_up(device: Device, several: Sequence[NamedRows]) -> Launch | None:
    """Launch that looks rows up, one for all that are alike but for the tables' sizes; `out` may have another floating
    element type, to which they are rounded."""
    kinds: dict[Hashable, list[NamedRows]] = {}
    for one in several:
        if math.prod(one.out.shape):
            lookup = one.lookup
            dtypes = dtype_of(one.rows.dtype), dtype_of(one.ids.dtype), dtype_of(one.out.dtype)
            kind = dtypes, lookup.batch, lookup.middle, lookup.inner, lookup.count
            kinds.setdefault(kind, []).append(one)
    return in_order(*[_launch(device, own) for own in kinds.values()]) if kinds else None


def _launch(device: Device, tables: Sequence[NamedRows]) -> Launch:
    lookup = tables[0].lookup
    source, target = dtype_of(tables[0].rows.dtype), dtype_of(tables[0].out.dtype)
    arrays: list[Array] = [array for one in tables for array in (one.rows, one.out)]
    lanes = lanes_of(max(source.itemsize, target.itemsize), lookup.inner, *arrays)
    packs = len(tables) * lookup.batch * lookup.middle * lookup.count * (lookup.inner // lanes)
    rounds = source != target
    types = (c_type(source), c_type(target)) if rounds else (_BITS[source.itemsize],) * 2
    nothing = "narrow<T>(0.0f)" if rounds else "0"
    text = f"typedef {types[0]} T;\ntypedef {types[1]} O;\ntypedef {index_type(packs)} Index;\n"
    text += head(tables)
    text += constants(MIDDLE=lookup.middle, INNER=lookup.inner // lanes, V=lanes, PACKS=packs)
    element = "narrow<O>(wide(found.at[j]))" if rounds else "found.at[j]"
    kernel = device.kernel(text + _KERNEL.replace("@ELEMENT@", element).replace("@NOTHING@", nothing), "look_up")
    table = table_of(device, tables, [0] * len(tables), [0] * len(tables))
    return lambda: kernel(grid_of(-(-packs // BLOCK)), BLOCK, [table])
