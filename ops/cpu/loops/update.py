"""Updates of many parameters are one loop over elements, in chunks that threads share out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.types import DType, TensorType
from mspc.ops.cpu.loops.addresses import Addresses
from mspc.ops.cpu.loops.kernel import Function, Kernel, shared
from mspc.ops.cuda.math import one_word
from mspc.ops.cuda.update import element_function
from mspc.ops.device import C_TYPES, c_type, computing_type
from mspc.ops.fused.grouped_update import GroupedUpdate
from mspc.ops.op import Op
from mspc.ops.optim.optimizer import Update

_CHUNK = 1 << 14
"""Elements of a chunk: few enough that threads end together."""

Members = Sequence[Sequence[TensorType]]


def members_of(op: Op, types: Sequence[TensorType]) -> tuple[Update, Members] | None:
    """(the update, the types of the operands of all its members) of an operator that is one; else None."""
    if isinstance(op, GroupedUpdate):
        return op.member, op.members(types)
    return (op, [types]) if isinstance(op, Update) else None


def update_functions(op: Update, members: Members) -> dict[tuple[DType, ...], str] | None:
    """By the element types of a member's operands the C++ of its function, called NAME; None where one has none."""
    found: dict[tuple[DType, ...], str] = {}
    for types in members:
        dtypes = tuple(type.dtype for type in types)
        if dtypes not in found:
            if any(dtype.name not in C_TYPES for dtype in dtypes) or not op.statements(dtypes):
                return None
            found[dtypes] = _function(op, dtypes)
    return found


def _function(op: Update, dtypes: Sequence[DType]) -> str:
    """The function that updates chunks [first, last). a[0] has the addresses of all members' operands, a[1] a member,
    a first and a last element for every chunk."""
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
    element = [f"{computed} v{i} = ({computed})wide(p{i}[j]);" for i in tensors]
    element.append(f"update_element({', '.join(f'v{i}' if i in tensors else n for i, n in enumerate(names))});")
    element += [f"p{i}[j] = narrow<{c_type(dtypes[i])}>(v{i});" for i in op.mutates]
    body.append('_Pragma("omp simd") for (i64 j = 0; j < length; ++j) {')
    body += [f"    {text}" for text in element]
    body.append("}")
    return "\n".join(
        [
            "namespace n_NAME {",
            *element_function(op, one_word(computed), op.statements(dtypes)),
            "}",
            'extern "C" void NAME(void* const* const a, const i64 first, const i64 last) {',
            "    using namespace n_NAME;",
            "    for (i64 number = first; number < last; ++number) {",
            *(f"        {text}" for text in body),
            "    }",
            "}",
            "",
        ]
    )


def update_kernel(op: Op, update: Update, members: Members, functions: Sequence[Function], plain: Kernel) -> Kernel:
    """The kernel of an update's operator.

    Args:
        functions: of the members, in the order in which their element types come first. plain: NumPy's kernel, for
        parameters that are not contiguous.
    """
    width = len(update.operands)
    kinds = list(dict.fromkeys(tuple(type.dtype for type in types) for types in members))
    addresses = Addresses(width * len(members))
    reads = [
        (place, type.dtype.numpy)
        for place, type in enumerate(type for types in members for type in types)
        if place % width not in update.mutates
    ]
    writes = [place for place in range(width * len(members)) if place % width in update.mutates]
    results = [place for place in range(width * len(members)) if place % width in update.mutates[: update.outputs]]
    runs: list[tuple[Callable[[Any], None], Addresses]] = []
    for kind, function in zip(kinds, functions, strict=True):
        chunks = _chunks(members, kind)
        if len(chunks):
            table = Addresses(2)
            table.table[0] = ctypes.addressof(addresses.table)
            table.hold(1, chunks)
            runs.append((shared(function, len(chunks), len(chunks) * _CHUNK * width), table))

    def kernel(*operands: Any) -> Any:
        if not all(operands[place].flags.c_contiguous for place in writes):
            return plain(*operands)
        for place in writes:
            addresses.put(place, operands[place])
        for place, dtype in reads:
            addresses.read(place, operands[place], dtype)
        for run, table in runs:
            run(table.table)
        addresses.release()
        made = tuple(operands[place] for place in results)
        return made if len(made) > 1 or isinstance(op, GroupedUpdate) else made[0]

    return kernel


def _chunks(members: Members, kind: tuple[DType, ...]) -> Any:
    """(member, first element, last element) of all chunks of the members of one kind, an Int64 array."""
    found: list[tuple[int, int, int]] = []
    for number, types in enumerate(members):
        if tuple(type.dtype for type in types) == kind:
            size = types[0].size
            found += [(number, begin, min(begin + _CHUNK, size)) for begin in range(0, size, _CHUNK)]
    return np.array(found, np.int64).reshape(-1, 3)
