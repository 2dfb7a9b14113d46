"""Rows are added up by integers in one loop, which needs no order of them: every part owns groups, columns or rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.ir.types import TensorType
from mspc.ops.cpu.loops.addresses import Addresses
from mspc.ops.cpu.loops.kernel import Function, Kernel, shared
from mspc.ops.cuda.index import RowLookup
from mspc.ops.device import C_TYPES, c_type, computing_type

_PARTS = 16
_COLUMNS = 16
"""Elements of a row that are worth a part of their own."""


def row_sums_function(lookup: RowLookup, types: Sequence[TensorType]) -> str | None:
    """The C++ of a function, called NAME, that sums rows by ids; None where their type is too narrow to add up in.

    a[0] are the rows, a[1] the ids, a[2] the result, a[3] an Int64 that is set to 1 for an id that names no row at all.
    """
    rows, ids = types
    if rows.dtype.name not in C_TYPES or c_type(rows.dtype) != computing_type(rows.dtype) or rows.dtype.kind == "b":
        return None
    kind, place = c_type(rows.dtype), "id"
    check = ""
    if lookup.total:
        check = f"if (id < -{lookup.total}ll || id >= {lookup.total}ll) {{ *(i64*)a[3] = 1; continue; }}"
        place = f"(id < 0 ? id + {lookup.total}ll : id)"
    groups = lookup.batch * lookup.middle
    split = _split(lookup)
    shares = {name: ("0", str(size)) for name, size in _sizes(lookup).items()}
    shares[split] = ("from", "to")
    (group_0, group_1), (column_0, column_1), (row_0, row_1) = (shares[n] for n in ("groups", "columns", "rows"))
    return f"""
extern "C" void NAME(void* const* const a, const i64 first, const i64 last) {{
    const {kind}* const rows = (const {kind}*)a[0];
    const {c_type(ids.dtype)}* const ids = (const {c_type(ids.dtype)}*)a[1];
    {kind}* const out = ({kind}*)a[2];
    for (i64 part = first; part < last; ++part) {{
        const i64 from = part * {_sizes(lookup)[split]}ll / {parts_of(lookup)};
        const i64 to = (part + 1) * {_sizes(lookup)[split]}ll / {parts_of(lookup)};
        (void)from, (void)to;
        for (i64 group = {group_0}; group < {group_1}; ++group) {{
            {kind}* const table = out + group * {lookup.size * lookup.inner};
            for (i64 row = {row_0}; row < {row_1}; ++row)
                for (i64 k = {column_0}; k < {column_1}; ++k) table[row * {lookup.inner} + k] = 0;
            for (i64 i = 0; i < {lookup.count}; ++i) {{
                const i64 id = (i64)ids[group / {lookup.middle} * {lookup.count} + i];
                {check}
                const i64 row = {place} - {lookup.offset};
                if (row < {row_0} || row >= {row_1}) continue;
                const {kind}* const given = rows + (group * {lookup.count} + i) * {lookup.inner};
                {kind}* const total = table + row * {lookup.inner};
                _Pragma("omp simd") for (i64 k = {column_0}; k < {column_1}; ++k) total[k] += given[k];
            }}
        }}
    }}
}}
""" if groups else None


def row_sums_kernel(
    lookup: RowLookup, types: Sequence[TensorType], result: TensorType, function: Function, plain: Kernel
) -> Kernel:
    """The kernel `function(rows, ids, out=None)`. plain: NumPy's, which says what is wrong with ids."""
    addresses = Addresses(4)
    flag = np.zeros(1, np.int64)
    addresses.hold(3, flag)
    run = shared(function, parts_of(lookup), 4 * types[0].size + result.size)

    def kernel(rows: Any, ids: Any, out: Any = None) -> Any:
        made = np.empty(result.shape, result.dtype.numpy) if out is None else out
        addresses.read(0, rows, types[0].dtype.numpy)
        addresses.read(1, ids, types[1].dtype.numpy)
        addresses.put(2, made)
        flag[0] = 0
        run(addresses.table)
        addresses.release()
        if flag[0]:
            made[...] = plain(rows, ids)
        return made

    return kernel


def parts_of(lookup: RowLookup) -> int:
    """Parts that may be worked off at the same time."""
    split = _split(lookup)
    return max(1, min(_PARTS, _sizes(lookup)[split] // (_COLUMNS if split == "columns" else 1)))


def _sizes(lookup: RowLookup) -> dict[str, int]:
    return {"groups": lookup.batch * lookup.middle, "columns": lookup.inner, "rows": lookup.size}


def _split(lookup: RowLookup) -> str:
    """What is divided into parts: columns rather than rows, as some rows have most of the ids."""
    sizes = _sizes(lookup)
    if sizes["groups"] >= _PARTS:
        return "groups"
    return "columns" if sizes["columns"] >= math.isqrt(_PARTS) * _COLUMNS else "rows"
