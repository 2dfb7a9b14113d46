"""Element types are converted implicitly here, as MindSpore's operators convert their operands."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from mspc.ir.types import (
    BFLOAT16,
    BOOL,
    COMPLEX64,
    COMPLEX128,
    DTYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    DType,
    real_of,
)
from mspc.ops.op import Op


def promoted(left: DType, right: DType) -> DType:
    """The element type that both convert to: complex numbers beat floats, floats beat integers, integers beat
    Bool, and the wider one wins.
    """
    if left == right:
        return left
    if left.kind == "b" or right.kind == "b":
        return right if left.kind == "b" else left
    if left.is_complex or right.is_complex:
        return COMPLEX128 if FLOAT64 in (real_of(left), real_of(right)) else COMPLEX64
    if left.is_float != right.is_float:
        return left if left.is_float else right
    if {left, right} == {FLOAT16, BFLOAT16}:
        return FLOAT32
    if left.kind != right.kind:
        unsigned, signed = (left, right) if left.kind == "u" else (right, left)
        if unsigned.itemsize < signed.itemsize:
            return signed
        return DTYPES.get(f"Int{unsigned.itemsize * 16}", DTYPES["Int64"])
    return left if left.itemsize >= right.itemsize else right


def operand_dtypes(op: Op, dtypes: Sequence[DType]) -> Sequence[DType]:
    """The element types that Casts must bring the operands of `op` to, one for each.

    Operators say it by `promotes`: "common" is the promoted type of the operands, "float" the same with integers and
    Bool as Float32 (division), "bool" is Bool. Operands before `promotes_from` stay as they are.
    """
    kind = getattr(op, "promotes", "")
    first = promotes_from(op)
    if not kind or len(dtypes) <= first:
        return dtypes
    target = functools.reduce(promoted, dtypes[first:])
    if kind == "float" and not (target.is_float or target.is_complex):
        target = FLOAT32
    if kind == "bool":
        target = BOOL
    return (*dtypes[:first], *[target] * (len(dtypes) - first))


def promotes_from(op: Op) -> int:
    """The first operand that `operand_dtypes` brings to a common type; a number among these takes its type from them,
    not from the operands before."""
    return getattr(op, "promotes_from", 0)
