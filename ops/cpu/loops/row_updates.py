"""The rows of tables that integers name are updated in one loop: their places are sorted, and the gradient of a row is
added up, in the order of the rows that it is the sum of, where the row is updated.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.types import DType, TensorType
from mspc.ops.cpu.loops.addresses import Addresses
from mspc.ops.cpu.loops.kernel import Function, Kernel, shared
from mspc.ops.cpu.scratch import scratch
from mspc.ops.cuda.math import one_word
from mspc.ops.cuda.update import element_function
from mspc.ops.device import C_TYPES, c_type, computing_type
from mspc.ops.fused.grouped_row_update import GroupedRowUpdate

_PARTS = 16
_COLUMNS = 16
"""Elements of a row that are worth a part of their own."""
_NAMES, _SIZES, _MEMORY = 1, 2, 3
"""Places of a function's arguments behind the operands' addresses."""

Kind = tuple[DType, ...]


def row_update_functions(op: GroupedRowUpdate, types: Sequence[TensorType]) -> dict[Kind, str] | None:
    """By the element types of a member's operands the C++ of its function, called NAME; None where one has none."""
    found: dict[Kind, str] = {}
    for kind in _kinds(op, types):
        if kind in found:
            continue
        rows = kind[op.gradient]
        if any(dtype.name not in C_TYPES for dtype in kind) or c_type(rows) != computing_type(rows):
            return None
        given = (*kind[: op.gradient + 1], *kind[op.gradient + 2 :])
        if not rows.is_float or not op.member.statements(given):
            return None
        found[kind] = _function(op, kind, given)
    return found


def _kinds(op: GroupedRowUpdate, types: Sequence[TensorType]) -> list[Kind]:
    """The element types of every member's operands."""
    dtypes = tuple(type.dtype for type in types)
    return [dtypes[begin : begin + op.width] for begin in range(0, len(dtypes), op.width)]


def _function(op: GroupedRowUpdate, kind: Kind, dtypes: Sequence[DType]) -> str:
    """The function that works off parts [first, last). a[0] has the addresses of all members' operands; a[1] a member,
    a first and a last element of its rows and a place in memory for every part; a[2] for every member its rows, their
    elements, the integers, and `RowLookup`'s offset and total; a[3] is memory for names and their copies."""
    update, gradient = op.member, op.gradient
    names, computed = update.operands, computing_type(dtypes[0])
    tensors = [i for i in range(len(names)) if i not in update.numbers and i != gradient]
    rows, ids = c_type(kind[gradient]), c_type(kind[gradient + 1])
    place = [i if i < gradient else i + 1 for i in range(len(names))]
    scalars = [
        f"const {computed} {names[i]} = ({computed})wide(*(const {c_type(dtypes[i])}*)row[{place[i]}]);"
        for i in update.numbers
    ]
    pointers = [f"{c_type(dtypes[i])}* const p{i} = ({c_type(dtypes[i])}*)row[{place[i]}] + at;" for i in tensors]
    element = [f"{computed} v{i} = ({computed})wide(p{i}[j]);" for i in tensors]
    given = [f"v{i}" if i in tensors else f"({computed})sum[j]" if i == gradient else n for i, n in enumerate(names)]
    element.append(f"update_element({', '.join(given)});")
    element += [f"p{i}[j] = narrow<{c_type(dtypes[i])}>(v{i});" for i in update.mutates]
    text = _FUNCTION.replace("@ROWS@", rows).replace("@IDS@", ids).replace("@WIDTH@", str(op.width))
    text = text.replace("@GRADIENT@", str(gradient)).replace("@SCALARS@", "\n        ".join(scalars))
    text = text.replace("@POINTERS@", "\n                ".join(pointers))
    text = text.replace("@ELEMENT@", "\n                    ".join(element))
    head = element_function(update, one_word(computed), update.statements(dtypes))
    return "\n".join(["namespace n_NAME {", *head, "}", text])


_FUNCTION = r"""
extern "C" void NAME(void* const* const a, const i64 first, const i64 last) {
    using namespace n_NAME;
    for (i64 number = first; number < last; ++number) {
        const i64* const part = (const i64*)a[1] + 4 * number;
        const i64* const sizes = (const i64*)a[2] + 5 * part[0];
        void* const* const row = (void* const*)a[0] + part[0] * @WIDTH@;
        const i64 size = sizes[0], inner = sizes[1], count = sizes[2], offset = sizes[3], total = sizes[4];
        const @ROWS@* const rows = (const @ROWS@*)row[@GRADIENT@];
        const @IDS@* const ids = (const @IDS@*)row[@GRADIENT@ + 1];
        u64* names = (u64*)a[3] + part[3];
        u64* other = names + count;
        i64 found = 0;
        for (i64 i = 0; i < count; ++i) {
            const i64 id = (i64)ids[i], place = (total && id < 0 ? id + total : id) - offset;
            if (place >= 0 && place < size) names[found++] = (u64)place << 32 | (u64)i;
        }
        for (int shift = 32; (u64)(size - 1) >> (shift - 32); shift += 8) {
            i64 begins[257] = {0};
            for (i64 n = 0; n < found; ++n) ++begins[(names[n] >> shift & 255) + 1];
            for (int digit = 0; digit < 256; ++digit) begins[digit + 1] += begins[digit];
            for (i64 n = 0; n < found; ++n) other[begins[names[n] >> shift & 255]++] = names[n];
            u64* const sorted = other;
            other = names, names = sorted;
        }
        @SCALARS@
        for (i64 n = 0, end; n < found; n = end) {
            const i64 place = (i64)(names[n] >> 32);
            for (end = n + 1; end < found && (i64)(names[end] >> 32) == place; ++end) {}
            for (i64 k = part[1]; k < part[2]; k += 64) {
                const i64 length = part[2] - k < 64 ? part[2] - k : 64, at = place * inner + k;
                @ROWS@ sum[64];
                for (i64 j = 0; j < length; ++j) sum[j] = 0;
                for (i64 m = n; m < end; ++m) {
                    const @ROWS@* const given = rows + (i64)(unsigned int)names[m] * inner + k;
                    _Pragma("omp simd") for (i64 j = 0; j < length; ++j) sum[j] += given[j];
                }
                @POINTERS@
                _Pragma("omp simd") for (i64 j = 0; j < length; ++j) {
                    @ELEMENT@
                }
            }
        }
    }
}
"""


def row_update_kernel(
    op: GroupedRowUpdate, types: Sequence[TensorType], functions: Sequence[Function], plain: Kernel
) -> Kernel:
    """The kernel of an operator.

    Args:
        functions: of the members, in the order in which their element types come first. plain: NumPy's kernel, for
        parameters that are not contiguous and integers that name no row at all.
    """
    kinds, lookups = _kinds(op, types), [sum_.lookup(*[t.shape for t in own]) for sum_, _, own in op.members(types)]
    sizes = np.array([(one.size, one.inner, one.count, one.offset, one.total) for one in lookups], np.int64)
    addresses = Addresses(len(types))
    writes, reads = set(op.mutates), [i for i in range(len(types)) if i not in op.mutates]
    limits = [(m * op.width + op.gradient + 1, one.total) for m, one in enumerate(lookups) if one.total and one.count]
    runs: list[tuple[Callable[[Any], None], Addresses, int]] = []
    for kind, function in zip(dict.fromkeys(kinds), functions, strict=True):
        parts = _parts_of([m for m, own in enumerate(kinds) if own == kind], sizes)
        if not len(parts):
            continue
        table = Addresses(4)
        table.table[0] = ctypes.addressof(addresses.table)
        table.hold(_NAMES, parts)
        table.hold(_SIZES, sizes)
        work = int((sizes[parts[:, 0], 2] * (parts[:, 2] - parts[:, 1] + _PARTS)).sum()) * 4
        runs.append((shared(function, len(parts), work), table, int(parts[-1, 3] + 2 * sizes[parts[-1, 0], 2])))

    def kernel(*operands: Any) -> Any:
        apart = not all(operands[place].flags.c_contiguous for place in writes)
        if apart or any(_is_outside(operands[place], total) for place, total in limits):
            return plain(*operands)
        for place in writes:
            addresses.put(place, operands[place])
        for place in reads:
            addresses.read(place, operands[place], types[place].dtype.numpy)
        for run, table, names in runs:
            memory = scratch("row names", (names,), np.uint64)
            table.put(_MEMORY, memory)
            run(table.table)
        addresses.release()
        return tuple(operands[place] for place in op.mutates)

    return kernel


def _is_outside(ids: Any, total: int) -> bool:
    """Whether an integer names no row of the global table."""
    return bool(ids.min() < -total or ids.max() >= total)


def _parts_of(members: Sequence[int], sizes: Any) -> Any:
    """(member, first element of rows, last element, place of its names) of all parts, an Int64 array."""
    found: list[tuple[int, int, int, int]] = []
    place = 0
    for member in members:
        size, inner, count = (int(n) for n in sizes[member, :3])
        if not size or not count:
            continue
        split = max(1, min(_PARTS // len(members), inner // _COLUMNS))
        bounds = [inner * i // split for i in range(split + 1)]
        for first, last in itertools.pairwise(bounds):
            found.append((member, first, last, place))
            place += 2 * count
    return np.array(found, np.int64).reshape(-1, 4)
