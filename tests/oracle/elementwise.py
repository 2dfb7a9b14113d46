"""Judges of what works element by element."""

from typing import Any

import numpy as np

from tests.oracle.inputs import FLOATS, TYPES, WHOLE, binary, drawn, unary
from tests.oracle.judging import Judge, torch
from tests.oracle.names import everywhere

INTEGERS = frozenset({*WHOLE, "bool"})
BOOL = frozenset({"bool"})
EITHER = ("float16", "bfloat16", "float32", "float64", *WHOLE)


def _of_two(functions: str, operators: str, theirs: Any, low: float = -3.0, high: float = 3.0, **more: Any) -> Judge:
    return Judge(everywhere(functions, operators), theirs, binary(low, high), **more)


SIMPLE = [
    Judge(everywhere("acos arccos", "ACos"), torch.acos, unary(-0.9, 0.9)),
    Judge(everywhere("", "Floor"), torch.floor, unary(types=FLOATS)),
    Judge(everywhere("", "Ceil"), torch.ceil, unary(types=FLOATS)),
    Judge(everywhere("", "Round Rint"), torch.round, unary(types=FLOATS)),
    Judge(everywhere("", "Trunc"), torch.trunc, unary(types=FLOATS)),
    Judge(("operator.invert",), torch.bitwise_not, [[drawn(3, 4, dtype=dtype)] for dtype in (*WHOLE, "bool")]),
    Judge(everywhere("invert", "Invert"), torch.bitwise_not, [[drawn(3, 4, dtype=dtype)] for dtype in WHOLE]),
    Judge(("ops.Identity",), lambda x: x.clone(), unary()),
]
COMPARED = [
    _of_two("eq equal", "Equal", torch.eq),
    Judge(
        everywhere("isclose", "IsClose"),
        torch.isclose,
        [case for case in binary() if case[0].dtype == case[1].dtype],
    ),
]
_BITS = [case for case in binary(types=(*WHOLE, "bool")) if not any(x.dtype.kind == "f" for x in case)]
_KINDS = ("float16", "bfloat16", "float32", "float64", *WHOLE)
ARITHMETIC = [
    Judge(everywhere("add", "Add"), torch.add, binary(types=_KINDS)),
    Judge(everywhere("sub subtract", "Sub"), torch.sub, binary(types=_KINDS)),
    Judge(
        everywhere("floor_div floor_divide", "FloorDiv"),
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        binary(0.5, 9.0, _KINDS),
    ),
    Judge(
        everywhere("floor_mod remainder", "FloorMod"),
        torch.remainder,
        binary(0.5, 9.0, _KINDS),
    ),
    Judge(("ops.TruncateDiv",), lambda x, y: torch.div(x, y, rounding_mode="trunc"), binary(0.5, 9.0, _KINDS)),
    Judge(everywhere("pow tensor_pow", "Pow"), torch.pow, binary(0.5, 3.0, _KINDS), loose=4),
    Judge(("ops.SquaredDifference",), lambda x, y: (x - y) ** 2, binary(types=_KINDS)),
    Judge(("ops.DivNoNan",), lambda x, y: torch.where(y == 0, 0, x / y).to((x / y).dtype), binary(0.5)),
    Judge(
        everywhere("xlogy", "Xlogy"),
        lambda x, y: torch.where(x == 0, 0, torch.xlogy(x, y)).to(torch.xlogy(x, y).dtype),
        binary(0.5),
    ),
    Judge(("operator.and_",), torch.bitwise_and, _BITS),
    Judge(("operator.or_",), torch.bitwise_or, _BITS),
    Judge(("operator.xor",), torch.bitwise_xor, _BITS),
]
_CHOICE = [
    [drawn(3, 4, dtype="bool"), drawn(3, 4, dtype=one), drawn(4, dtype=other)]
    for one in TYPES
    for other in TYPES
    if one <= other
] + [[drawn(3, 1, dtype="bool"), drawn(4), drawn()], [drawn(0, 4, dtype="bool"), drawn(0, 4), drawn(4)]]
CHOSEN = [
    Judge(everywhere("where select", "Select", "Tensor.where Tensor.select mint.select"), torch.where, _CHOICE),
    Judge(
        everywhere("where select", "", "Tensor.where Tensor.select mint.select"),
        torch.where,
        [[drawn(3, 4, dtype="bool"), drawn(3, 4, dtype=kind)] for kind in TYPES],
        arguments=[(2,), (2.5,)],
    ),
    Judge(
        everywhere("masked_fill", "MaskedFill"),
        lambda x, mask, value: x.masked_fill(mask, value),
        [[drawn(3, 4, dtype=kind), drawn(4, dtype="bool")] for kind in EITHER]
        + [[drawn(3, 1, 2), drawn(4, 1, dtype="bool")]],
        arguments=[(2,)],
    ),
    Judge(
        everywhere("clamp clip clip_by_value"),
        lambda x, low, high: torch.clamp(x, low, high),
        [
            *unary(types=("float16", "bfloat16", "float32", "float64", "int8", "int32", "int64")),
            [np.array([-1.0, 2.0, 0.0, 5.0])],
        ],
        arguments=[(-1, 2), (None, 2), (-1, None), (3, 1), (-0.5, 0.75)],
    ),
]
JUDGES = [*SIMPLE, *COMPARED, *ARITHMETIC, *CHOSEN]
