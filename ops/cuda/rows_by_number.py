"""CUDA kernels that gather, add up and update rows by index, for several lookups in one launch.

A name is an index and the number of its row: equal indices stay in row order. A chunk of names is sorted by counting,
for each name, the names before it; its position among all names is the sum of its positions in the chunks. Many names
are sorted by the digits of their indices instead. A table on the GPU has a row per lookup: the addresses of its arrays,
and the fields that differ.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.moves import WORDS, RowLookup, add_along, gather
from mspc.ops.cuda.text import (
    accumulating_type,
    address,
    combining,
    definitions,
    grid_of,
    index_type,
    lanes_of,
    macros,
    one_word,
)
from mspc.ops.cuda.update import element_function, indented, takes_packs, updated
from mspc.ops.device import Array, Copy, Device, Launch, all_of, c_type, computing_type, in_order, nothing, source_text

BLOCK = 256
_CHUNK = 512
"""Names that are sorted by counting, at least; a multiple of the block, and a power of two."""
_SEARCH = 18
"""Ratio of the largest squared chunk size to the number of names. A name is compared with all of its own chunk and
searched in all others; this size minimises the total, with a search step counted as four comparisons."""
_MAX_COUNTED = 1 << 15
"""Names up to which counting and searching are faster than sorting by digits."""
_MAX_BITS, _EACH = 9, 16
"""Bits of a digit at most, as a block has counts of all digits for each of its warps; names of a thread."""
ABREAST = 8
"""Chunks in which a thread searches at once."""
_ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Edges:
    """The other ends of edges. sources: the row of each edge in a table, found as `lookup` says; None: its own number.
    weights: [edges, heads], factors of the rows or of equal parts of them."""

    lookup: RowLookup
    sources: Array | None = None
    weights: Array | None = None

    @property
    def heads(self) -> int:
        """The number of weights of an edge."""
        return 1 if self.weights is None else max(1, self.weights.size // max(1, self.lookup.count))


@dataclass(frozen=True, slots=True)
class NamedRows:
    """Rows named by ids, as `lookup` says: `rows` are added up to the rows of a table `out`, on those of `base` or on
    zeros; or they are the table, and `out` receives the looked-up rows. edges: the rows are found by them. how: "Sum",
    or "Largest" or "Smallest" for these instead of sums."""

    lookup: RowLookup
    rows: Array
    ids: Array
    out: Array
    base: Array | None = None
    edges: Edges | None = None
    how: str = "Sum"


def chunk_of(count: int) -> int:
    """Return how many names are sorted by counting in a lookup of `count`."""
    chunk = _CHUNK
    while chunk * chunk < _SEARCH * count:
        chunk *= 2
    return chunk


def head(sums: Sequence[NamedRows]) -> str:
    """Return the beginning of kernels that read a table of these, which differ only in their addresses."""
    first = sums[0].lookup
    alike = all(_places(one.lookup) == _places(first) for one in sums)
    size, offset, total = _places(first) if alike else (0, 0, 0)
    return definitions(
        I=dtype_of(sums[0].ids.dtype), LOOKUPS=len(sums), BATCH=first.batch, COUNT=first.count, ALIKE=alike, SIZE=size,
        OFFSET=offset, TOTAL=total, BLOCK=BLOCK,
    ) + source_text("ops/cuda/names.cuh")  # fmt: skip


def table_of(
    device: Device, sums: Sequence[NamedRows], begins_blocks: Sequence[int], blocks: Sequence[int],
) -> Array:  # fmt: skip
    """Return the table of these lookups, with the number of blocks of each in kernels over their indices."""
    table: list[list[int]] = []
    begins, begins_block, block = 0, 0, 0
    for one, of_begins, own in zip(sums, begins_blocks, blocks, strict=True):
        given = one.ids, one.rows, one.out if one.base is None else one.base, one.out
        others = (None, None) if one.edges is None else (one.edges.sources, one.edges.weights)
        arrays = [0 if array is None else address(array) for array in (*given, *others)]
        table.append([*arrays, *_places(one.lookup), begins, begins_block, block])
        begins += one.lookup.batch * (one.lookup.size + 1)
        begins_block += of_begins
        block += own
    return device.xp.asarray(np.array(table, np.int64))


def sort_bytes(groups: int, count: int) -> int:
    """Return the bytes beside the result that it takes to sort `count` names in each of several groups."""
    parts = -(-count // (BLOCK * _EACH)) + 1 if count > _MAX_COUNTED else 0
    return groups * (8 * count + 4 * parts * (1 << _MAX_BITS))


def sorting(device: Device, sums: Sequence[NamedRows], table: Array, chunks: Array, names: Array) -> Launch:
    """Return the launches that sort the names of these: UInt64 [len(sums), batch, count]. chunks: `sort_bytes`."""
    lookup = sums[0].lookup
    chunk = chunk_of(lookup.count)
    groups = len(sums) * lookup.batch
    if lookup.count > _MAX_COUNTED:
        return _sorting_by_digits(device, sums, table, chunks, names)
    source = head(sums) + definitions(CHUNK=chunk, ABREAST=ABREAST) + source_text("ops/cuda/sort_names.cu")
    sort = device.kernel(source, "sort_chunks")
    merge = device.kernel(source, "merge_chunks") if lookup.count > chunk else None

    def launch() -> None:
        if lookup.count:
            sort(grid_of(groups * -(-lookup.count // BLOCK)), BLOCK, [table, chunks if merge else names])
        if merge is not None:
            merge(grid_of(-(-groups * lookup.count // BLOCK)), BLOCK, [chunks, names])

    return launch


def _sorting_by_digits(
    device: Device, sums: Sequence[NamedRows], table: Array, chunks: Array, names: Array
) -> Launch:  # fmt: skip
    lookup, largest = sums[0].lookup, max(one.lookup.size for one in sums)
    passes = -(-largest.bit_length() // _MAX_BITS)
    bits, groups = -(-largest.bit_length() // passes), len(sums) * lookup.batch
    blocks, held = groups * -(-lookup.count // (BLOCK * _EACH)), 8 * groups * lookup.count
    source = head(sums) + definitions(BITS=bits, LARGEST=largest, EACH=_EACH)
    source += source_text("ops/cuda/sort_digits.cu")
    count, add, place = (device.kernel(source, f"{verb}_digits") for verb in ("count", "sum", "place"))
    totals = chunks[held : held + 4 * groups << bits]
    counts = chunks[held + (4 * groups << bits) :]

    def launch() -> None:
        for number in range(passes):
            # The last pass writes the result.
            source, target = (chunks, names) if (passes - number) % 2 else (names, chunks)
            shift = np.int32(number * bits)
            count(grid_of(blocks), BLOCK, [table, source, counts, shift])
            add(grid_of(-(-(groups << bits) * 32 // BLOCK)), BLOCK, [counts, totals])
            place(grid_of(blocks), BLOCK, [table, source, counts, totals, target, shift])

    return launch


def order_rows(device: Device, lookup: RowLookup, ids: Array, names: Array, begins: Array) -> Launch:
    """Return the launch of the sorted names of a lookup without a batch, and the first name of every place."""
    one = NamedRows(lookup, ids, ids, ids)
    (chunks,) = divided(device, 0, (sort_bytes(1, lookup.count),))
    return _ordering(device, [one], table_of(device, [one], [0], [0]), chunks, names, begins)


def _ordering(
    device: Device, sums: Sequence[NamedRows], table: Array, chunks: Array, names: Array, begins: Array
) -> Launch:  # fmt: skip
    # Sorting does not depend on the rows: lookups in tables of one size share its kernels.
    sort = sorting(device, sums, table, chunks, names)
    find = device.kernel(head(sums) + source_text("ops/cuda/find_begins.cu"), "find_begins")
    blocks = grid_of(sum(_begins_blocks(sums)))
    return all_of([sort, lambda: find(blocks, BLOCK, [table, names, begins])])


def _begins_blocks(sums: Sequence[NamedRows]) -> list[int]:
    return [-(-one.lookup.batch * (one.lookup.size + 1) // BLOCK) for one in sums]


def divided(device: Device, held: int, sizes: Sequence[int]) -> list[Array]:
    """Return scratch memory of these numbers of bytes, after `held` bytes."""
    begins = [-(-held // _ALIGNMENT) * _ALIGNMENT]
    for size in sizes:
        begins.append(begins[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    memory = device.scratch(begins[-1])
    return [memory[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]


def _places(lookup: RowLookup) -> tuple[int, int, int]:
    """Return the fields that differ between lookups of one launch."""
    return lookup.size, lookup.offset, lookup.total


# These CUDA kernels add up the rows that name the same place: the transpose of a lookup, or of several.
#
# The names are sorted first, equal ones in the order of their rows, so that every sum has one owner and the same bits
# each time. A place that many rows name is not left to one thread: rows that fill a tile of the sorted ones are added
# up first, by threads of their own, and if places have many rows on average, several lanes share one.


_TILE, _SMALL = 16, 64
"""Minimum number of sorted rows that are added up early; their number if equal sums of several are added up, too."""
_FULL = 4096
"""Packs of sums per multiprocessor from which rows that are looked up keep memory busy without sharing."""
_NARROW, _FEW = 128, 1 << 21
"""Elements of all lanes' rows, and of all sums, up to which lanes share an index of fewer rows: some have many."""
_ABREAST = 8
"""Packs of a row that neighbouring threads should have."""


def add_rows(device: Device, name: str, lookup: RowLookup, rows: Array, ids: Array, out: Array,
             base: Array | None = None, held: int = 0, how: str = "Sum") -> Launch | None:  # fmt: skip
    """Return the launch that sums the rows of each id (the transpose of `gather`), added to the rows of `base` or to
    zeros. held: bytes at the start of the scratch memory that are in use. how: as in `NamedRows`."""
    return add_rows_of_several(device, name, [NamedRows(lookup, rows, ids, out, base, how=how)], held)


def add_rows_of_several(device: Device, name: str, several: Sequence[NamedRows], held: int = 0) -> Launch | None:
    """Return the same for several lookups, in one set of launches for those that `alike` groups; all or none have a
    base."""
    kinds: dict[Hashable, list[NamedRows]] = {}
    for one in several:
        if math.prod(one.out.shape):
            kinds.setdefault(alike(one), []).append(one)
    return in_order(*[added_rows(device, name, own, held) for own in kinds.values()]) if kinds else None


def alike(one: NamedRows) -> Hashable:
    """Return a key equal for sums that one set of launches does."""
    lookup = one.lookup
    dtypes = dtype_of(one.rows.dtype), dtype_of(one.ids.dtype)
    return dtypes, lookup.batch, lookup.middle, lookup.inner, lookup.count, share_of(lookup)


def share_of(lookup: RowLookup) -> int:
    """Return the number of lanes that share an index."""
    share, most = 1, min(_NARROW // max(1, lookup.inner), _FEW // max(1, lookup.inner * lookup.size))
    while share < 32 and share * (2 if share < most else 8) <= lookup.count // lookup.size:
        share *= 2
    return share


def tiles_of(count: int) -> tuple[int, int, int, int]:
    """Return how many sorted rows are added up first in a lookup of `count`, and how many such sums there are; how many
    of these are added up then, and how many sums that makes. So no thread adds up many, whatever places rows have."""
    most = _TILE
    while most * most * 32 < count:
        most *= 2
    tile, fan = min(most, _SMALL), 4 * most // _SMALL if most > _SMALL else 1
    return tile, count // tile, fan, count // (tile * fan) if fan > 1 else 0


def sum_source(sums: Sequence[NamedRows], lanes: int, each: int, share: int) -> str:
    """Return row_sums.cuh and its definitions, for rows in packs of `lanes` elements, of which a thread has `each`.
    share: lanes that share an index."""
    lookup, dtype = sums[0].lookup, dtype_of(sums[0].rows.dtype)
    edges = sums[0].edges or Edges(lookup)
    table, sources, weights = edges.lookup, edges.sources, edges.weights
    most = max(lookup.count, table.size, *(one.lookup.size for one in sums))
    elements = max(len(sums) * lookup.count, most) * lookup.batch * lookup.middle * lookup.inner
    packs, (tile, _, fan, _) = lookup.inner // lanes, tiles_of(lookup.count)
    return definitions(T=dtype, A=accumulating_type(dtype), Index=index_type(elements)) + head(sums) + definitions(
        MIDDLE=lookup.middle, INNER=packs, V=lanes, TILE=tile, FAN=fan, SHARE=share, EACH=each, APART=packs // each,
        LOOKS_UP=sources is not None, SOURCES=table.size, SOURCES_OFFSET=table.offset, SOURCES_TOTAL=table.total,
        WEIGHTED=weights is not None, HEAD=packs // edges.heads,
        S="int" if sources is None else dtype_of(sources.dtype),
        W=dtype if weights is None else dtype_of(weights.dtype),
    ) + combining(sums[0].how, dtype) + source_text("ops/cuda/row_sums.cuh")  # fmt: skip


def bytes_of_tiles(sums: Sequence[NamedRows]) -> int:
    """Return the bytes of the sums that `adding_tiles` makes."""
    lookup, dtype = sums[0].lookup, dtype_of(sums[0].rows.dtype)
    _, tiles, _, large = tiles_of(lookup.count)
    return len(sums) * lookup.batch * lookup.middle * (tiles + large) * lookup.inner * max(4, dtype.itemsize)


def adding_tiles(device: Device, source: str, sums: Sequence[NamedRows], packs: int, arrays: list[Array]) -> Launch:
    """Return the launch that adds up tiles, if there are any. arrays: table, sorted names, and the sums of tiles."""
    lookup = sums[0].lookup
    groups, (_, tiles, _, large) = len(sums) * lookup.batch * lookup.middle, tiles_of(lookup.count)
    return all_of([
        partial(device.kernel(source, kernel), grid_of(-(-groups * count * packs // BLOCK)), BLOCK, arrays)
        for kernel, count in (("add_tiles", tiles), ("add_large_tiles", large))
        if count
    ])  # fmt: skip


def added_rows(device: Device, name: str, sums: Sequence[NamedRows], held: int,
               order: tuple[Array, Array] | None = None) -> Launch:  # fmt: skip
    """Return the launch of sums that are `alike`, in the order of `order_rows` if that is given."""
    lookup, dtype = sums[0].lookup, dtype_of(sums[0].rows.dtype)
    based, heads = sums[0].base is not None, 1 if sums[0].edges is None else sums[0].edges.heads
    arrays = [a for one in sums for a in (one.rows, one.out, *([] if one.base is None else [one.base]))]
    lanes = lanes_of(dtype.itemsize, lookup.inner // heads, *arrays)
    packs, groups, share = lookup.inner // lanes, lookup.batch * lookup.middle, share_of(lookup)
    looks_up = sums[0].edges is not None and sums[0].edges.sources is not None
    if looks_up and lookup.size * packs >= _FULL * device.multiprocessors:
        share = 1
    counts = (1, 2) if looks_up else (1, 2, 4, 8)
    each = max(n for n in counts if n == 1 or (packs % n == 0 and packs // n >= _ABREAST and share == 1))
    source = sum_source(sums, lanes, each, share) + definitions(BASED=based, O=dtype_of(sums[0].out.dtype))
    source += source_text("ops/cuda/add_rows.cu", name=name)
    begins_of = [lookup.batch * (one.lookup.size + 1) for one in sums]
    own = 0 if order else lookup.batch * len(sums)
    parts = sort_bytes(own, lookup.count), 8 * own * lookup.count, 0 if order else 4 * sum(begins_of)
    chunks, names, begins, tiles = divided(device, held, (*parts, bytes_of_tiles(sums)))
    names, begins = order or (names, begins)
    blocks = [-(-groups * one.lookup.size * (packs // each) * share // BLOCK) for one in sums]
    table = table_of(device, sums, _begins_blocks(sums), blocks)
    sort = nothing if order else _ordering(device, sums, table, chunks, names, begins)
    ahead = adding_tiles(device, source, sums, packs, [table, names, tiles])
    add = device.kernel(source, name)
    return all_of([sort, ahead, lambda: add(grid_of(sum(blocks)), BLOCK, [table, names, begins, tiles])])


def edge_products(
    device: Device, sides: Sequence[tuple[RowLookup, Array, Array]], heads: int, names: Array | None, out: Array
) -> Launch | None:  # fmt: skip
    """Return the launch of the products of the rows that edges name in two tables, summed over each of `heads` parts.
    sides: lookups, tables and ids of both ends. names: an order of the edges (`order_rows`)."""
    (lookup, rows, ids), (other, other_rows, other_ids) = sides
    if not math.prod(out.shape):
        return None
    dtypes = dtype_of(rows.dtype), dtype_of(other_rows.dtype)
    head = lookup.inner // heads
    lanes = lanes_of(max(dtype.itemsize for dtype in dtypes), head, rows, other_rows)
    group = 1
    while group < 32 and group < head // lanes:
        group *= 2
    places = {f: f"{n.size}ll, {n.offset}ll, {n.total}ll" for f, n in (("FIRST", lookup), ("SECOND", other))}
    source = macros(**places) + definitions(
        T=dtypes[0], U=dtypes[1], I=dtype_of(ids.dtype), J=dtype_of(other_ids.dtype), O=dtype_of(out.dtype),
        A=accumulating_type(max(dtypes, key=lambda dtype: dtype.itemsize)), COUNT=lookup.count, HEADS=heads,
        INNER=head // lanes, V=lanes, GROUP=group, BLOCK=BLOCK, ORDERED=names is not None,
    ) + source_text("ops/cuda/edge_products.cu")  # fmt: skip
    kernel = device.kernel(source, "edge_products")
    grid = grid_of(-(-lookup.count * heads * group // BLOCK))
    return lambda: kernel(grid, BLOCK, [rows, ids, other_rows, other_ids, ids if names is None else names, out])


# CUDA kernels that update the indexed rows of tables.
#
# The integers are sorted as for sums of rows (`row_sums`), so that the gradient of a row is added up in the same order,
# by the threads that update the row: it is never in memory. The cost of a launch depends on the integers, not on the
# tables.


@dataclass(frozen=True, slots=True)
class UpdatedRows:
    """A table with updated rows. sums: the rows of its gradient. operands: those of the update, None for the gradient.
    copy: another array for the new values of operand 0."""

    sums: NamedRows
    operands: Sequence[Array | None]
    copy: Copy | None = None


def update_rows(device: Device, op: Any, gradient: int, several: Sequence[UpdatedRows]) -> Launch | None:
    """Return the launch of the update `op` of every table, with the sums of rows as operand `gradient`, in one set for
    equal ones. op: an `Update` that changes nothing for a gradient of 0; None is returned if it has no `statements`."""
    kinds: dict[Hashable, list[UpdatedRows]] = {}
    for one in several:
        if math.prod(one.sums.out.shape) and math.prod(one.sums.rows.shape):
            copied = None if one.copy is None else dtype_of(one.copy.array.dtype)
            kinds.setdefault((alike(one.sums), _dtypes(one), copied), []).append(one)
    if not all(op.statements(_dtypes(one)) for one in several):
        return None
    return in_order(*[_update(device, op, gradient, own) for own in kinds.values()]) if kinds else nothing


def _dtypes(one: UpdatedRows) -> tuple[DType, ...]:
    return tuple(dtype_of((one.sums.rows if array is None else array).dtype) for array in one.operands)


def _update(device: Device, op: Any, gradient: int, tables: Sequence[UpdatedRows]) -> Launch:
    sums = [one.sums for one in tables]
    lookup, dtypes = sums[0].lookup, _dtypes(tables[0])
    tensors = [i for i in range(len(dtypes)) if i not in op.scalars and i != gradient]
    widest = max(dtypes[i].itemsize for i in (*tensors, gradient))
    arrays = [array for one in tables for i, array in enumerate(one.operands) if i in tensors]
    lanes = lanes_of(widest, lookup.inner, *arrays, *[one.rows for one in sums])
    while not all(takes_packs(one.operands[0], one.copy, lanes) for one in tables):
        lanes //= 2
    packs, share = lookup.inner // lanes, share_of(lookup)
    each = max(n for n in (1, 2, 4) if n == 1 or (packs % n == 0 and packs // n >= _ABREAST and share == 1))
    source = source_text("ops/cuda/formulas.cuh") + sum_source(sums, lanes, each, share)
    source += _source(op, dtypes, tensors, gradient, tables[0].copy)
    names = len(sums) * lookup.count
    parts = (sort_bytes(len(sums), lookup.count), 8 * names, bytes_of_tiles(sums))
    chunks, sorted_names, tiles = divided(device, 0, parts)
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
    """Return a table's row: addresses of operands, and of a copy."""
    row = [0 if array is None else address(array) for array in one.operands]
    return row if one.copy is None else [*row, address(one.copy.array), one.copy.columns, one.copy.pitch]


def _source(op: Any, dtypes: Sequence[DType], tensors: Sequence[int], gradient: int, copy: Copy | None) -> str:
    type, names = computing_type(dtypes[0]), op.operands
    width = len(names) + (0 if copy is None else 3)
    scalars = [
        f"const {one_word(type)} {name} = ({one_word(type)})wide(*(const {c_type(dtypes[i])}*)row[{i}]);"
        for i, name in enumerate(names)
        if i not in (*tensors, gradient)
    ]
    lines = [f"Pack<{c_type(dtypes[i])}, V> a{i} = *(const Pack<{c_type(dtypes[i])}, V>*)"
             f"(({c_type(dtypes[i])}*)row[{i}] + to);" for i in tensors]  # fmt: skip
    slope = f"const {type} v{gradient} = ({type})wide(narrow<T>(total[e][j]));"
    element = updated(op, dtypes, {i: f"a{i}.at[j]" for i in tensors}, [slope], {gradient: f"v{gradient}"})
    lines += ["for (int j = 0; j < V; ++j) {", *indented(element), "}"]
    lines += [f"*(Pack<{c_type(dtypes[i])}, V>*)(({c_type(dtypes[i])}*)row[{i}] + to) = a{i};" for i in op.mutates]
    if copy is not None:
        kind, place = c_type(dtype_of(copy.array.dtype)), len(names)
        lines += [f"Pack<{kind}, V> c;", f"for (int j = 0; j < V; ++j) c.at[j] = narrow<{kind}>(wide(a0.at[j]));"]
        lines += [f"*(Pack<{kind}, V>*)(({kind}*)row[{place}] + to / row[{place + 1}] * row[{place + 2}]"
                  f" + to % row[{place + 1}]) = c;"]  # fmt: skip
    function = "\n".join(element_function(op, one_word(type), op.statements(dtypes)))
    parts = {"width": width, "scalars": "\n    ".join(scalars), "row": "\n        ".join(lines)}
    return function + "\n" + source_text("ops/cuda/update_rows.cu", **parts)


# One CUDA kernel gathers rows from many tables, and rounds those with a narrower result.


def look_up(device: Device, several: Sequence[NamedRows]) -> Launch | None:
    """Return the launch that looks rows up, one for all that differ only in the tables' sizes; `out` may have another
    floating element type, to which they are rounded."""
    kinds: dict[Hashable, list[NamedRows]] = {}
    for one in several:
        if math.prod(one.out.shape):
            lookup = one.lookup
            dtypes = dtype_of(one.rows.dtype), dtype_of(one.ids.dtype), dtype_of(one.out.dtype)
            kind = dtypes, lookup.batch, lookup.middle, lookup.inner, lookup.count
            kinds.setdefault(kind, []).append(one)
    return in_order(*[_look_up(device, own) for own in kinds.values()]) if kinds else None


def _look_up(device: Device, tables: Sequence[NamedRows]) -> Launch:
    lookup = tables[0].lookup
    source, target = dtype_of(tables[0].rows.dtype), dtype_of(tables[0].out.dtype)
    arrays: list[Array] = [array for one in tables for array in (one.rows, one.out)]
    lanes = lanes_of(max(source.itemsize, target.itemsize), lookup.inner, *arrays)
    packs = len(tables) * lookup.batch * lookup.middle * lookup.count * (lookup.inner // lanes)
    rounds = source != target
    types = (source, target) if rounds else (WORDS[source.itemsize],) * 2
    nothing = "narrow<T>(0.0f)" if rounds else "0"
    text = definitions(T=types[0], O=types[1], Index=index_type(packs)) + head(tables)
    text += definitions(MIDDLE=lookup.middle, INNER=lookup.inner // lanes, V=lanes, PACKS=packs)
    element = "narrow<O>(wide(found.at[j]))" if rounds else "found.at[j]"
    text += source_text("ops/cuda/look_up.cu", element=element, nothing=nothing)
    kernel = device.kernel(text, "look_up")
    table = table_of(device, tables, [0] * len(tables), [0] * len(tables))
    return lambda: kernel(grid_of(-(-packs // BLOCK)), BLOCK, [table])


# These CUDA kernels put rows and elements at places that integers name; of several for one place the last stays.


_MAX_FEW = 64
"""Updates up to which every one looks whether a later one is for its place."""
_FEW_LINES, _MIN_SORTED = 1024, 4096
"""Lines up to which, and updates of each from which, updates are sorted instead of added line by line."""
_MAX_POSITIONS = 1 << 31
"""Places that 32 bits count."""


def scatter_few(device: Device, dims: Sequence[int], begins: Sequence[int], sizes: Sequence[int], x: Array,
                indices: Array, updates: Array, out: Array) -> Launch | None:  # fmt: skip
    """Return the launch that puts few slices, which indices[..., k] name in the dimensions `dims`, into a copy of x, or
    into x itself if that is `out`. None for many."""
    shape, count = x.shape, math.prod(indices.shape[:-1])
    rest = [d for d in range(len(shape)) if d not in dims]
    row, item = math.prod(shape[d] for d in rest), dtype_of(x.dtype).itemsize
    if not math.prod(shape) or not count or count > _MAX_FEW:
        return None
    lanes = lanes_of(item, shape[-1], x, updates, out) if rest and rest[-1] == len(shape) - 1 else 1
    packs = (*shape[:-1], shape[-1] // lanes)
    steps = [math.prod(packs[d + 1 :]) for d in range(len(shape))]
    named: list[str] = []
    for k, d in enumerate(dims):
        size, begin = sizes[k] if sizes else shape[d], begins[k] if begins else 0
        named.append(
            f"{{ long long id = (long long)ids[number * {len(dims)} + {k}]; if (id < 0) id += {size}ll; "
            f"id -= {begin}ll; "
            f"if (id < 0 || id >= {shape[d]}ll) return -1; place += id * {steps[d]}ll; }}"
        )
    target = [f"target += rest % {packs[d]}ll * {steps[d]}ll; rest /= {packs[d]}ll;" for d in reversed(rest)]
    source = definitions(I=dtype_of(indices.dtype), W=WORDS[item * lanes], COUNT=count, ROW=row // lanes)
    places = {"named": "\n    ".join(named), "target": "\n    ".join(target)}
    source += source_text("ops/cuda/write_few.cu", **places)
    kernel = device.kernel(source, "write_few")
    grid = grid_of(-(-(count * row // lanes) // BLOCK))

    def launch() -> None:
        if not device.same(x, out):
            device.copy(x, out)
        kernel(grid, BLOCK, [indices, updates, out])

    return launch


def gather_nd(device: Device, shape: Sequence[int], begins: Sequence[int], sizes: Sequence[int], x: Array,
              indices: Array, out: Array) -> Launch | None:  # fmt: skip
    """Return the launch of the rows of x at indices[..., k]; x is a slice of `sizes` that begins at `begins` in its
    first dimensions."""
    rows, inner, count = _lookup(shape, indices)
    if not math.prod(out.shape) or max(rows, count) >= _MAX_POSITIONS:
        return None
    places = device.scratch(4 * count).view(np.int32)
    found = gather(device, "gather_nd", RowLookup(1, 1, rows, inner, count), x, places, out)
    return in_order(_scatter_places(device, shape, begins, sizes, indices, places), found)


def scatter_nd(device: Device, shape: Sequence[int], begins: Sequence[int], sizes: Sequence[int], x: Array,
               indices: Array, updates: Array, out: Array, how: str) -> Launch | None:  # fmt: skip
    """Return the launch that puts rows into a copy of x, or combines them there, see `NamedRows.how`; see
    `gather_nd`."""
    rows, inner, count = _lookup(shape, indices)
    if not math.prod(out.shape) or not count or not inner or max(rows, count) >= _MAX_POSITIONS:
        return None
    held = -(-4 * count // _ALIGNMENT) * _ALIGNMENT
    memory = device.scratch(held + (0 if how else 4 * rows))
    places = memory[: 4 * count].view(np.int32)
    found = _scatter_places(device, shape, begins, sizes, indices, places)
    if how:
        lookup = RowLookup(1, 1, rows, inner, count)
        return in_order(found, add_rows(device, "scatter_add", lookup, updates, places, out, x, held, how))
    marks = memory[held:].view(np.int32)
    return in_order(found, _marked(device, (1, rows, count, 1), inner, x, places, False, updates, out, marks))


def scatter_along(device: Device, sizes: tuple[int, int, int, int], x: Array, ids: Array, updates: Array, out: Array,
                  how: str) -> Launch | None:  # fmt: skip
    """Return the launch of out[o, ids[o, p, i], i] = updates[o, p, i] in a copy of x, or combined with it, see
    `NamedRows.how`. sizes: (outer, places, updates, inner)."""
    outer, size, count, inner = sizes
    if not math.prod(out.shape) or not math.prod(updates.shape) or max(outer * size * inner, count) >= _MAX_POSITIONS:
        return None
    given = outer * count * inner
    if how and outer * inner <= _FEW_LINES and count >= _MIN_SORTED and given < _MAX_POSITIONS:
        line = (f"long long id = (long long)ids[at]; if (id < 0) id += {size}ll; inside = id >= 0 && id < {size}ll; "
                f"place = (at / {count * inner} * {size}ll + id) * {inner} + at % {inner};")  # fmt: skip
        places = device.scratch(4 * given).view(np.int32)
        lookup = RowLookup(1, 1, outer * size * inner, 1, given)
        added = add_rows(device, "scatter_along", lookup, updates, places, out, x, 4 * given, how)
        return in_order(_named_places(device, ids, given, line, places), added)
    if how:
        return add_along(device, "scatter_along", outer, size, count, inner, ids, updates, out, x, how)
    marks = device.scratch(4 * outer * size * inner).view(np.int32)
    return _marked(device, sizes, 1, x, ids, True, updates, out, marks)


def _lookup(shape: Sequence[int], indices: Array) -> tuple[int, int, int]:
    """Return (rows that can be named, elements of a row, named rows)."""
    named = indices.shape[-1]
    return math.prod(shape[:named]), math.prod(shape[named:]), math.prod(indices.shape[:-1])


def _scatter_places(device: Device, shape: Sequence[int], begins: Sequence[int], sizes: Sequence[int], indices: Array,
            places: Array) -> Launch:  # fmt: skip
    """Return the launch that writes the row that each index names, -1 for one of another slice."""
    named, count = indices.shape[-1], math.prod(indices.shape[:-1])
    lines: list[str] = []
    for d in range(named):
        size, begin = (sizes or shape)[d], begins[d] if begins else 0
        lines.append(
            f"{{ long long id = (long long)ids[at * {named} + {d}]; if (id < 0) id += {size}ll; id -= {begin}ll; "
            f"inside = inside && id >= 0 && id < {shape[d]}ll; place = place * {shape[d]}ll + id; }}"
        )
    return _named_places(device, indices, count, "\n    ".join(lines), places)


def _named_places(device: Device, indices: Array, count: int, named: str, places: Array) -> Launch:
    source = definitions(I=dtype_of(indices.dtype), COUNT=count)
    source += source_text("ops/cuda/places_of_rows.cu", named=named)
    kernel = device.kernel(source, "places_of_rows")
    grid = grid_of(-(-count // BLOCK))
    return lambda: kernel(grid, BLOCK, [indices, places])


def _marked(device: Device, sizes: tuple[int, int, int, int], row: int, x: Array, ids: Array, wraps: bool,
            updates: Array, out: Array, marks: Array) -> Launch:  # fmt: skip
    """Return launches that note for every position the last update, and copy that or the old value. row: elements of a
    position."""
    outer, size, count, inner = sizes
    given, places = outer * count * inner, outer * size * inner
    item = dtype_of(x.dtype).itemsize
    lanes = lanes_of(item, row, x, updates, out)
    packs = places * row // lanes
    source = definitions(
        I=dtype_of(ids.dtype), W=WORDS[item * lanes], Index=index_type(max(given, places) * row), PLACES=places,
        UPDATES=given, SIZE=size, COUNT=count, INNER=inner, WRAPS=wraps, PACKS=packs, ROW=row // lanes,
    ) + source_text("ops/cuda/write_marked.cu")  # fmt: skip
    clear, mark, write = (device.kernel(source, name) for name in ("clear_marks", "mark_places", "write_marked"))

    def launch() -> None:
        clear(grid_of(-(-places // BLOCK)), BLOCK, [marks])
        mark(grid_of(-(-given // BLOCK)), BLOCK, [ids, marks])
        write(grid_of(-(-packs // BLOCK)), BLOCK, [x, updates, marks, out])

    return launch
