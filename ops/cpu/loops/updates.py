"""Update indexed rows of tables in one loop: their positions are sorted, and the gradient of a row is
added up, in the order of its terms, right before its update.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mspc.ir.types import DType, TensorType
from mspc.ops.cpu.blocks import scratch
from mspc.ops.cpu.loops.kernel import Addresses, Function, Kernel, shared
from mspc.ops.cuda.moves import RowLookup
from mspc.ops.cuda.text import one_word
from mspc.ops.cuda.update import element_function, indented, updated
from mspc.ops.device import C_TYPES, c_type, computing_type, source_text
from mspc.ops.fused.grouped_rows import GroupedRowUpdate
from mspc.ops.fused.updates import GroupedUpdate
from mspc.ops.op import Op
from mspc.ops.optim.optimizer import Update
from mspc.ops.tensor.embedding import RowSums
from mspc.ops.tensor.scatter import TensorScatterUpdate

_PARTS = 16
_COLUMNS = 16
"""Elements of a row that are worth a part of their own."""
_NAMES, _SIZES, _MEMORY = 1, 2, 3
"""Places of a function's arguments after the operands' addresses."""

Kind = tuple[DType, ...]


def row_update_functions(op: GroupedRowUpdate, types: Sequence[TensorType]) -> dict[Kind, str] | None:
    """Return C++ of a member's function, called NAME, by the element types of its operands; None if there is none."""
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
    dtypes = tuple(type.dtype for type in types)
    return [dtypes[begin : begin + op.width] for begin in range(0, len(dtypes), op.width)]


def _function(op: GroupedRowUpdate, kind: Kind, dtypes: Sequence[DType]) -> str:
    """Return the function that works off parts [first, last), see row_update.cpp."""
    update, gradient = op.member, op.gradient
    names, computed = update.operands, computing_type(dtypes[0])
    tensors = [i for i in range(len(names)) if i not in update.numbers and i != gradient]
    place = [i if i < gradient else i + 1 for i in range(len(names))]
    scalars = [
        f"const {computed} {names[i]} = ({computed})wide(*(const {c_type(dtypes[i])}*)row[{place[i]}]);"
        for i in update.numbers
    ]
    pointers = [f"{c_type(dtypes[i])}* const p{i} = ({c_type(dtypes[i])}*)row[{place[i]}] + at;" for i in tensors]
    element = updated(update, dtypes, {i: f"p{i}[j]" for i in tensors}, given={gradient: f"({computed})sum[j]"})
    text = source_text(
        "ops/cpu/loops/row_update.cpp", rows=c_type(kind[gradient]), ids=c_type(kind[gradient + 1]), width=op.width,
        gradient=gradient, scalars="\n        ".join(scalars), pointers="\n                ".join(pointers),
        element="\n                    ".join(element),
    )  # fmt: skip
    head = element_function(update, one_word(computed), update.statements(dtypes))
    return "\n".join(["namespace n_NAME {", *head, "}", text])


def row_update_kernel(
    op: GroupedRowUpdate, types: Sequence[TensorType], functions: Sequence[Function], plain: Kernel
) -> Kernel:
    """Return the kernel of an operator. functions: of the members, in the order in which their element types come
    first. plain: NumPy's kernel, for parameters that are not contiguous and integers that name no row at all."""
    kinds, lookups = _kinds(op, types), [sum_.lookup(*[t.shape for t in own]) for sum_, _, own in op.members(types)]
    sizes = np.array([(one.size, one.inner, one.count, one.offset, one.total) for one in lookups], np.int64)
    addresses = Addresses(len(types))
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

    def run_all() -> None:
        for run, table, names in runs:
            memory = scratch("row names", (names,), np.uint64)
            table.put(_MEMORY, memory)
            run(table.table)

    update = _updating(types, op.mutates, op.mutates, addresses, run_all, plain)

    def kernel(*operands: Any) -> Any:
        for place, total in limits:
            ids = operands[place]
            if ids.min() < -total or ids.max() >= total:  # an integer names no row of the global table
                return plain(*operands)
        return update(*operands)

    return kernel


def _updating(
    types: Sequence[TensorType], writes: Sequence[int], results: Sequence[int], addresses: Addresses,
    run: Callable[[], None], plain: Kernel, alone: bool = False,
) -> Kernel:  # fmt: skip
    """Return the kernel that puts its operands of these types into a table, runs, and returns those of `results`, or
    the one of them that is `alone`. plain: the kernel for operands to write that are not contiguous."""
    reads = [(place, type.dtype.numpy) for place, type in enumerate(types) if place not in writes]

    def kernel(*operands: Any) -> Any:
        if not all(operands[place].flags.c_contiguous for place in writes):
            return plain(*operands)
        for place in writes:
            addresses.put(place, operands[place])
        for place, dtype in reads:
            addresses.read(place, operands[place], dtype)
        run()
        addresses.release()
        made = tuple(operands[place] for place in results)
        return made[0] if alone else made

    return kernel


def _parts_of(members: Sequence[int], sizes: Any) -> Any:
    """Return (member, first element of rows, last element, place of its names) of all parts, an Int64 array."""
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


# Updates of many parameters are one loop over elements, in chunks that threads share out.


_CHUNK = 1 << 14
"""Elements of a chunk: few enough that threads end together."""

Members = Sequence[Sequence[TensorType]]


def members_of(op: Op, types: Sequence[TensorType]) -> tuple[Update, Members] | None:
    """Return (the update, the types of the operands of all its members) of an operator that is one; else None."""
    if isinstance(op, GroupedUpdate):
        return op.member, op.members(types)
    return (op, [types]) if isinstance(op, Update) else None


def update_functions(op: Update, members: Members) -> dict[tuple[DType, ...], str] | None:
    """Return C++ of a member's function, called NAME, by the element types of its operands; None if there is none."""
    found: dict[tuple[DType, ...], str] = {}
    for types in members:
        dtypes = tuple(type.dtype for type in types)
        if dtypes not in found:
            if any(dtype.name not in C_TYPES for dtype in dtypes) or not op.statements(dtypes):
                return None
            found[dtypes] = _update_function(op, dtypes)
    return found


def _update_function(op: Update, dtypes: Sequence[DType]) -> str:
    """Return the function that updates chunks [first, last). a[0] has the addresses of all members' operands, a[1] a
    member, a first and a last element for every chunk."""
    names = op.operands
    tensors = [i for i in range(len(names)) if i not in op.scalars]
    computed = computing_type(dtypes[0])
    body = [
        "const i64* const chunk = (const i64*)a[1] + 3 * number;",
        f"void* const* const row = (void* const*)a[0] + chunk[0] * {len(names)};",
        "const i64 begin = chunk[1], length = chunk[2] - chunk[1];",
    ]
    for i, name in enumerate(names):
        kind = c_type(dtypes[i])
        if i in tensors:
            body.append(f"{kind}* const p{i} = ({kind}*)row[{i}] + begin;")
        else:
            body.append(f"const {computed} {name} = ({computed})wide(*(const {kind}*)row[{i}]);")
    element = updated(op, dtypes, {i: f"p{i}[j]" for i in tensors})
    body += ['_Pragma("omp simd") for (i64 j = 0; j < length; ++j) {', *indented(element), "}"]
    return "\n".join(
        [
            "namespace n_NAME {",
            *element_function(op, one_word(computed), op.statements(dtypes)),
            "}",
            'extern "C" void NAME(void* const* const a, const i64 first, const i64 last) {',
            "    using namespace n_NAME;",
            "    for (i64 number = first; number < last; ++number) {",
            *indented(body, 8),
            "    }",
            "}",
            "",
        ]
    )


def update_kernel(op: Op, update: Update, members: Members, functions: Sequence[Function], plain: Kernel) -> Kernel:
    """Return the kernel of an update's operator. functions: of the members, in the order in which their element types
    come first. plain: NumPy's kernel, for parameters that are not contiguous."""
    width = len(update.operands)
    kinds = list(dict.fromkeys(tuple(type.dtype for type in types) for types in members))
    addresses = Addresses(width * len(members))
    types = [type for types in members for type in types]
    writes = [place for place in range(len(types)) if place % width in update.mutates]
    results = [place for place in writes if place % width in update.mutates[: update.outputs]]
    runs: list[tuple[Callable[[Any], None], Addresses]] = []
    for kind, function in zip(kinds, functions, strict=True):
        chunks = _chunks(members, kind)
        if len(chunks):
            table = Addresses(2)
            table.table[0] = ctypes.addressof(addresses.table)
            table.hold(1, chunks)
            runs.append((shared(function, len(chunks), len(chunks) * _CHUNK * width), table))

    def run_all() -> None:
        for run, table in runs:
            run(table.table)

    alone = len(results) == 1 and not isinstance(op, GroupedUpdate)
    return _updating(types, writes, results, addresses, run_all, plain, alone)


def _chunks(members: Members, kind: tuple[DType, ...]) -> Any:
    """Return (member, first element, last element) of all chunks of the members of one kind, an Int64 array."""
    found: list[tuple[int, int, int]] = []
    for number, types in enumerate(members):
        if tuple(type.dtype for type in types) == kind:
            size = types[0].size
            found += [(number, begin, min(begin + _CHUNK, size)) for begin in range(0, size, _CHUNK)]
    return np.array(found, np.int64).reshape(-1, 3)


# Rows are combined by integers in one loop, which needs no order of them: every part owns groups, columns or rows.

_COMBINED = {
    "add": "total[k] + given[k]",
    "subtract": "total[k] - given[k]",
    "multiply": "total[k] * given[k]",
    "maximum": "given[k] != given[k] || given[k] > total[k] ? given[k] : total[k]",
    "minimum": "given[k] != given[k] || given[k] < total[k] ? given[k] : total[k]",
}
"""C++ of combined elements, by the function of NumPy; a NaN wins."""
_ROWS, _IDS, _RESULT, _FLAG, _FIRST = range(5)


class RowSumsCall(NamedTuple):
    """A call that combines rows. operands: what each of them is in row_sums.cpp."""

    lookup: RowLookup
    operands: tuple[int, ...]
    combine: str = "add"


def row_sums_call(op: Op, types: Sequence[TensorType]) -> RowSumsCall | None:
    """Return the rows that an operator combines, or None if it combines none by one integer each."""
    if isinstance(op, RowSums):
        return RowSumsCall(op.lookup(types[0].shape, types[1].shape), (_ROWS, _IDS))
    if not isinstance(op, TensorScatterUpdate) or op.dims or op.combine not in _COMBINED or types[1].shape[-1] != 1:
        return None
    rows, *inner = types[0].shape
    lookup = RowLookup(1, 1, rows, math.prod(inner), types[1].size, *(op.begins or (0,)), *(op.sizes or (rows,)))
    return RowSumsCall(lookup, (_FIRST, _IDS, _ROWS), op.combine)


def row_sums_function(call: RowSumsCall, types: Sequence[TensorType]) -> str | None:
    """Return C++ of a function, called NAME, that combines rows by ids; None if their type is too narrow for
    accumulation."""
    lookup, rows, ids = call.lookup, types[call.operands.index(_ROWS)].dtype, types[1].dtype
    if rows.name not in C_TYPES or c_type(rows) != computing_type(rows) or rows.kind == "b":
        return None
    if not lookup.batch * lookup.middle:
        return None
    sizes, split = _sizes(lookup), _split(lookup)
    bounds = {f"{name}_from": 0 for name in sizes} | {f"{name}_to": size for name, size in sizes.items()}
    bounds |= {f"{split}_from": "from", f"{split}_to": "to"}
    check, place, table = "", "id", lookup.size * lookup.inner
    if lookup.total:
        check = f"if (id < -{lookup.total}ll || id >= {lookup.total}ll) {{ *(i64*)a[3] = 1; continue; }}"
        place = f"(id < 0 ? id + {lookup.total}ll : id)"
    first = f"((const {c_type(rows)}*)a[4])[group * {table} + row * {lookup.inner} + k]"
    return source_text(
        "ops/cpu/loops/row_sums.cpp", kind=c_type(rows), ids=c_type(ids), length=sizes[split],
        parts=parts_of(lookup), table=table, inner=lookup.inner, count=lookup.count, middle=lookup.middle, check=check,
        place=place, offset=lookup.offset, first=first if _FIRST in call.operands else 0,
        combined=_COMBINED[call.combine], **bounds,
    )  # fmt: skip


def row_sums_kernel(
    call: RowSumsCall, types: Sequence[TensorType], result: TensorType, function: Function, plain: Kernel
) -> Kernel:
    """Return the kernel `function(*operands, out=None)`. plain: NumPy's, which reports wrong ids."""
    addresses = Addresses(5)
    flag = np.zeros(1, np.int64)
    addresses.hold(_FLAG, flag)
    size = types[call.operands.index(_ROWS)].size
    run = shared(function, parts_of(call.lookup), 4 * size + result.size)
    dtypes = [type.dtype.numpy for type in types]

    def kernel(*operands: Any, out: Any = None) -> Any:
        made = np.empty(result.shape, result.dtype.numpy) if out is None else out
        for place, operand, dtype in zip(call.operands, operands, dtypes, strict=True):
            addresses.read(place, operand, dtype)
        addresses.put(_RESULT, made)
        flag[0] = 0
        run(addresses.table)
        addresses.release()
        if flag[0]:
            made[...] = plain(*operands)
        return made

    return kernel


def parts_of(lookup: RowLookup) -> int:
    """Return the number of parts that may be computed at the same time."""
    split = _split(lookup)
    return max(1, min(_PARTS, _sizes(lookup)[split] // (_COLUMNS if split == "columns" else 1)))


def _sizes(lookup: RowLookup) -> dict[str, int]:
    return {"groups": lookup.batch * lookup.middle, "columns": lookup.inner, "rows": lookup.size}


def _split(lookup: RowLookup) -> str:
    """Return the dimension divided into parts: columns rather than rows, as some rows have most of the ids."""
    sizes = _sizes(lookup)
    if sizes["groups"] >= _PARTS:
        return "groups"
    return "columns" if sizes["columns"] >= math.isqrt(_PARTS) * _COLUMNS else "rows"
