"""Implicit conversion of element types, as MindSpore's operators convert their operands."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.types import BFLOAT16, DTYPES, FLOAT16, FLOAT32, DType
from mspc.ops.op import Op


def promoted(left: DType, right: DType) -> DType:
    """The element type that both convert to: floats beat integers, integers beat Bool, and the wider one
    wins.
    """
    if left == right:
        return left
    if left.kind == "b" or right.kind == "b":
        return right if left.kind == "b" else left
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


def operand_dtype(op: Op, dtypes: Sequence[DType]) -> DType | None:
    """The element type that a Cast must bring every operand of `op` to, None where nothing is to be cast.

    Operators say it by `promotes`: "common" is the promoted type of all operands, "float" the same with
    integers and Bool as Float32 (division).
    """
    kind = getattr(op, "promotes", "")
    if not kind or not dtypes:
        return None
    target = dtypes[0]
    for dtype in dtypes[1:]:
        target = promoted(target, dtype)
    if kind == "float" and not target.is_float:
        target = FLOAT32
    return None if all(dtype == target for dtype in dtypes) else target
