"""A CUDA kernel that runs an optimizer's update of many parameters.

A table on the GPU holds the addresses of every member's operands and its number of elements; a block updates one chunk
of one member. Members of different sizes share a launch, and scalars are read from the GPU by every thread. An operand
that is only read may be columns of a larger matrix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.types import DType, dtype_of
from mspc.ops.cuda.text import address, one_word
from mspc.ops.device import Array, Copy, Device, Launch, all_of, c_type, computing_type, source_text

_BLOCK = 256
_LONGEST = 4
"""Maximum number of packs that a thread updates."""
_WAVES = 8
"""Blocks per multiprocessor of a launch, if there is enough work."""


_Member = tuple[Sequence[Array], Copy | None]


def launch_updates(
    device: Device, op: Any, members: Sequence[Sequence[Array]], copies: Sequence[Copy | None] = ()
) -> Launch | None:
    """Return the launch of the update `op` of every member, its operands in the operator's order. Members with the same
    element types share a kernel. op: an `Update`; None is returned if it has no `statements` for the element types.
    copies: for every member another array for the new value of its operand 0."""
    groups: dict[tuple[DType, ...], list[_Member]] = {}
    for operands, copy in zip(members, copies or [None] * len(members), strict=True):
        if operands[0].size:
            groups.setdefault(tuple(dtype_of(array.dtype) for array in operands), []).append((operands, copy))
    launches: list[Launch] = []
    if not groups and not op.statements([dtype_of(array.dtype) for array in members[0]]):
        return None
    for dtypes, group in groups.items():
        if not op.statements(dtypes):
            return None
        # Members without a copy go with the first kind of those that have one.
        kinds = list(dict.fromkeys(dtype_of(copy.array.dtype) for _, copy in group if copy is not None)) or [None]
        for kind in kinds:
            own = [m for m in group if (kinds[0] if m[1] is None else dtype_of(m[1].array.dtype)) == kind]
            launches.append(_launch(device, op, dtypes, own, kind))

    return all_of(launches)


def _launch(
    device: Device, op: Any, dtypes: Sequence[DType], members: Sequence[_Member], copy_type: DType | None
) -> Launch:
    tensors = [i for i in range(len(dtypes)) if i not in op.scalars]
    pack = 16 // max(dtypes[i].itemsize for i in tensors)
    while any(address(operands[i]) % (pack * dtypes[i].itemsize) for operands, _ in members for i in tensors):
        pack //= 2
    while not all(takes_packs(operands[0], copy, pack) for operands, copy in members):
        pack //= 2
    apart = next((i for i in tensors if not all(operands[i].flags.c_contiguous for operands, _ in members)), -1)
    while apart >= 0 and not all(_are_packs(*_rows(o[apart]), o[apart].size, pack) for o, _ in members):
        pack //= 2
    flight = 2 if len(tensors) <= 4 else 1
    total = sum(operands[0].size for operands, _ in members)
    repeats = total // (pack * flight * _BLOCK * _WAVES * device.multiprocessors)
    span = _BLOCK * pack * flight * max(1, min(_LONGEST // flight, repeats))
    table: list[list[int]] = []
    blocks: list[tuple[int, int]] = []
    rows = any(copy is not None and copy.columns < operands[0].size for operands, copy in members)
    for number, (operands, copy) in enumerate(members):
        row = [*(address(array) for array in operands), operands[0].size]
        if copy_type is not None:
            row += [0, 1, 1] if copy is None else [address(copy.array), copy.columns, copy.pitch]
        if apart >= 0:
            row += _rows(operands[apart])
        table.append(row)
        blocks += [(number, chunk) for chunk in range(-(-operands[0].size // span))]
    source = source_text("ops/cuda/formulas.cuh") + update_source(op, dtypes, pack, flight, copy_type, rows, apart)
    kernel = device.kernel(source, "update")
    arguments = (
        device.xp.asarray(np.array(table, np.uint64)),
        device.xp.asarray(np.array(blocks, np.uint32)),
        device.stop,
        np.uint64(span),
    )

    return partial(kernel, len(blocks), _BLOCK, arguments)


def _rows(array: Array) -> tuple[int, int]:
    """Return the elements of a row of an operand, and from row to row; one without gaps is one row."""
    if array.flags.c_contiguous:
        return array.size, array.size
    return array.shape[-1], array.strides[-2] // array.itemsize


def _are_packs(columns: int, pitch: int, size: int, pack: int) -> bool:
    """Return True if no pack of `pack` elements in rows crosses a gap."""
    return columns >= size or not (columns % pack or pitch % pack)


def _place_in_rows(columns: str, pitch: str) -> str:
    return f"(u64)((unsigned int){{0}} / {columns}) * {pitch} + (unsigned int){{0}} % {columns}"


def takes_packs(updated: Array, copy: Copy | None, pack: int) -> bool:
    """Return True if the copy of an updated array, if any, can be written in packs of `pack` elements."""
    if copy is None:
        return True
    aligned = address(copy.array) % (pack * copy.array.dtype.itemsize) == 0
    return aligned and _are_packs(copy.columns, copy.pitch, updated.size, pack)


def update_source(
    op: Any, dtypes: Sequence[DType], pack: int, flight: int, copy_type: DType | None = None, rows: bool = False,
    apart: int = -1,
) -> str:  # fmt: skip
    """Return the kernel `update`: `pack` elements at once, `flight` packs loaded before the first is used. copy_type:
    element type of copies of operand 0, None if there are none. rows: some operand has gaps between rows. apart: that
    operand; -1 for none."""
    names: Sequence[str] = op.operands
    tensors = [i for i in range(len(names)) if i not in op.scalars]
    copy_place, bounds = "", str(_BLOCK)
    if copy_type is not None:
        copy_place = "copy + {0}"
        # As many blocks at the same time as without copies.
        bounds = f"{_BLOCK}, {5 if len(tensors) <= 3 else 4}"
    if rows:
        copy_place = f"copy + {_place_in_rows('columns', 'pitch')}"
    lines = [
        *_operands_of_block(op, dtypes, tensors, copy_type, rows, apart),
        *_loop(op, dtypes, tensors, pack, flight, copy_type, copy_place, apart),
    ]
    return "\n".join(
        [
            *element_function(op, one_word(computing_type(dtypes[0])), op.statements(dtypes)),
            f'extern "C" __global__ void __launch_bounds__({bounds}) update(',
            "    const u64* table, const unsigned int* blocks, const int* stop, const u64 span) {",
            *(line if line.lstrip().startswith("#") else f"    {line}" for line in lines),
            "}",
            "",
        ]
    )


def element_function(op: Any, type: str, statements: str) -> list[str]:
    """Return the function `update_element`, which updates one element."""
    element = [f"{type}& {name}" if i in op.mutates else f"const {type} {name}" for i, name in enumerate(op.operands)]
    body = [
        f"const {_constant(value, type)[0]} {name} = {_constant(value, type)[1]};"
        for name, value in op.attributes().items()
        if re.search(rf"\b{name}\b", statements)
    ]
    body += [line.strip() for line in re.sub(r"\bT\b", type, statements).strip().splitlines()]
    head = f"__device__ __forceinline__ void update_element({', '.join(element)}) {{"
    return [head, *(f"    {line}" for line in body), "}"]


def _operands_of_block(
    op: Any, dtypes: Sequence[DType], tensors: Sequence[int], copy_type: DType | None, rows: bool, apart: int
) -> list[str]:
    type, count = one_word(computing_type(dtypes[0])), len(op.operands)
    known = count + (1 if copy_type is None else 4)
    lines = [
        "if (stop[0]) return;",
        f"const u64* const row = table + (u64)blocks[2 * blockIdx.x] * {known + (0 if apart < 0 else 2)};",
        f"const u64 size = row[{count}], begin = blocks[2 * blockIdx.x + 1] * span;",
        "const u64 end = begin + span < size ? begin + span : size;",
    ]
    for i, name in enumerate(op.operands):
        kind = c_type(dtypes[i])
        if i in tensors:
            lines.append(f"{kind}* const p{i} = ({kind}*)row[{i}];")
        else:
            lines.append(f"const {type} {name} = ({type})wide(*(const {kind}*)row[{i}]);")
    if copy_type is not None:
        lines.append(f"{c_type(copy_type)}* const copy = ({c_type(copy_type)}*)row[{count + 1}];")
    if rows:
        lines.append(f"const unsigned int columns = row[{count + 2}];")
        lines.append(f"const u64 pitch = row[{count + 3}];")
    if apart >= 0:
        lines.append(f"const unsigned int own_columns = row[{known}];")
        lines.append(f"const u64 own_pitch = row[{known + 1}];")
    return lines


def _loop(
    op: Any, dtypes: Sequence[DType], tensors: Sequence[int], pack: int, flight: int, copy_type: DType | None,
    copied: str, apart: int,
) -> list[str]:  # fmt: skip
    """Return packs of a block's span, and the elements after the last full one. copied: the address of the copy of
    element {0}. apart: the operand with gaps between rows."""
    places = {i: f"p{i} + {{0}}" for i in tensors}
    if apart >= 0:
        places[apart] = f"p{apart} + {_place_in_rows('own_columns', 'own_pitch')}"
    mutates: Sequence[int] = op.mutates
    step = _BLOCK * pack
    place = f"const u64 i = at + u * {step};"
    lines = [f"for (u64 at = begin + threadIdx.x * {pack}; at < end; at += {step * flight}) {{"]
    lines += [f"    Pack<{c_type(dtypes[i])}, {pack}> a{i}[{flight}];" for i in tensors]
    lines += ["    #pragma unroll", f"    for (int u = 0; u < {flight}; ++u) {{", f"        {place}"]
    lines += [f"        if (i + {pack} <= size) {{"]
    packs = {i: f"(const Pack<{c_type(dtypes[i])}, {pack}>*)({place.format('i')})" for i, place in places.items()}
    lines += [f"            a{i}[u] = *{place};" for i, place in packs.items()]
    lines += ["        }", "    }", "    #pragma unroll", f"    for (int u = 0; u < {flight}; ++u) {{"]
    lines += [f"        {place}"]
    lines += [f"        if (i + {pack} <= size) {{", "            #pragma unroll"]
    lines += [f"            for (int j = 0; j < {pack}; ++j) {{"]
    lines += indented(updated(op, dtypes, {i: f"a{i}[u].at[j]" for i in tensors}), 16)
    lines += ["            }"]
    lines += [f"            *(Pack<{c_type(dtypes[i])}, {pack}>*)(p{i} + i) = a{i}[u];" for i in mutates]
    if copy_type is not None:
        lines += ["            if (copy) {", f"                Pack<{c_type(copy_type)}, {pack}> c;"]
        lines += [f"                for (int j = 0; j < {pack}; ++j)"]
        lines += [f"                    c.at[j] = narrow<{c_type(copy_type)}>(wide(a0[u].at[j]));"]
        lines += [f"                *(Pack<{c_type(copy_type)}, {pack}>*)({copied.format('i')}) = c;", "            }"]
    lines += ["        } else {", "            #pragma unroll 1", "            for (u64 k = i; k < size; ++k) {"]
    lines += indented(updated(op, dtypes, {i: f"*({place.format('k')})" for i, place in places.items()}), 16)
    if copy_type is not None:
        lines += [f"                if (copy) *({copied.format('k')}) = narrow<{c_type(copy_type)}>(wide(p0[k]));"]
    return [*lines, "            }", "        }", "    }", "}"]


def updated(
    op: Any, dtypes: Sequence[DType], places: Mapping[int, str], more: Sequence[str] = (),
    given: Mapping[int, str] | None = None,
) -> list[str]:  # fmt: skip
    """Return C++ that updates the elements at these positions, for a CPU or a GPU. more: statements before the update.
    given: expressions of operands that are neither at these positions nor scalars."""
    type = computing_type(dtypes[0])
    lines = [f"{type} v{i} = ({type})wide({place});" for i, place in places.items()]
    known: dict[int, str] = {**{i: f"v{i}" for i in places}, **(given or {})}
    call = f"update_element({', '.join(known.get(i, name) for i, name in enumerate(op.operands))});"
    return [*lines, *more, call, *(f"{places[i]} = narrow<{c_type(dtypes[i])}>(v{i});" for i in op.mutates)]


def indented(lines: Sequence[str], spaces: int = 4) -> list[str]:
    """Return lines of C++ that are indented further."""
    return [f"{' ' * spaces}{line}" for line in lines]


def _constant(value: Any, type: str) -> tuple[str, str]:
    return ("bool", str(value).lower()) if isinstance(value, bool) else (type, f"({type}){value!r}")
