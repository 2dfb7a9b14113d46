"""Judges of what works element by element."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.oracle.inputs import FLOATS, TYPES, WHOLE, binary, drawn, unary
from tests.oracle.judging import Judge, torch
from tests.oracle.names import everywhere

INTEGERS = frozenset({*WHOLE, "bool"})
BOOL = frozenset({"bool"})
EITHER = ("float16", "bfloat16", "float32", "float64", *WHOLE)


def _whole_quotient(x: Any, y: Any, rounding_mode: str) -> Any:
    """The quotient of halves is cut off as it is; PyTorch rounds it to a half before."""
    if x.dtype == y.dtype == torch.bfloat16:
        return torch.div(x.float(), y.float(), rounding_mode=rounding_mode).to(x.dtype)
    return torch.div(x, y, rounding_mode=rounding_mode)


def _smooth(functions: str, operators: str, theirs: Any, low: float = -3.0, high: float = 3.0, **more: Any) -> Judge:
    return Judge(everywhere(functions, operators), theirs, unary(low, high), **more)


def _of_two(functions: str, operators: str, theirs: Any, low: float = -3.0, high: float = 3.0, **more: Any) -> Judge:
    return Judge(everywhere(functions, operators), theirs, binary(low, high), **more)


def _logical_not(x: Any) -> Any:
    return torch.logical_not(x)


SMOOTH = [
    _smooth("sqrt", "Sqrt", torch.sqrt, 0.1),
    _smooth("rsqrt", "Rsqrt", torch.rsqrt, 0.1),
    _smooth("reciprocal", "Reciprocal Inv", torch.reciprocal, 0.3),
    _smooth("exp", "Exp", torch.exp),
    _smooth("expm1", "Expm1", torch.expm1),
    _smooth("log", "Log", torch.log, 0.1),
    _smooth("log1p", "Log1p", torch.log1p, -0.9),
    _smooth("erf", "Erf", torch.erf),
    _smooth("erfc", "Erfc", torch.erfc, loose=4),
    _smooth("erfinv", "Erfinv", torch.erfinv, -0.95, 0.95, loose=4),
    _smooth("sin", "Sin", torch.sin),
    _smooth("cos", "Cos", torch.cos),
    _smooth("tan", "Tan", torch.tan, -1.3, 1.3, loose=4),
    _smooth("asin arcsin", "Asin", torch.asin, -0.9, 0.9),
    _smooth("acos arccos", "ACos", torch.acos, -0.9, 0.9),
    _smooth("atan arctan", "Atan", torch.atan),
    _smooth("sinh", "Sinh", torch.sinh),
    _smooth("cosh", "Cosh", torch.cosh),
    _smooth("asinh arcsinh", "Asinh", torch.asinh),
    _smooth("acosh arccosh", "Acosh", torch.acosh, 1.1, loose=4),
    _smooth("atanh arctanh", "Atanh", torch.atanh, -0.9, 0.9),
]
SIMPLE = [
    Judge(everywhere("abs absolute", "Abs"), torch.abs, unary(types=EITHER)),
    Judge(everywhere("neg negative", "Neg"), torch.neg, unary(types=EITHER)),
    Judge(everywhere("sign", "Sign"), torch.sign, unary(types=EITHER)),
    Judge(everywhere("square", "Square"), torch.square, unary(types=EITHER)),
    Judge(everywhere("floor"), torch.floor, unary(types=EITHER)),
    Judge(everywhere("ceil"), torch.ceil, unary(types=EITHER)),
    Judge(everywhere("round"), torch.round, unary(types=EITHER)),
    Judge(everywhere("trunc"), torch.trunc, unary(types=EITHER)),
    Judge(everywhere("", "Floor"), torch.floor, unary(types=FLOATS)),
    Judge(everywhere("", "Ceil"), torch.ceil, unary(types=FLOATS)),
    Judge(everywhere("", "Round Rint"), torch.round, unary(types=FLOATS)),
    Judge(everywhere("", "Trunc"), torch.trunc, unary(types=FLOATS)),
    Judge(everywhere("isnan", "IsNan"), torch.isnan, unary()),
    Judge(everywhere("isinf", "IsInf"), torch.isinf, unary()),
    Judge(everywhere("isfinite", "IsFinite"), torch.isfinite, unary()),
    Judge(everywhere("logical_not", "LogicalNot"), _logical_not, unary()),
    Judge(("operator.invert",), torch.bitwise_not, [[drawn(3, 4, dtype=dtype)] for dtype in (*WHOLE, "bool")]),
    Judge(everywhere("invert", "Invert"), torch.bitwise_not, [[drawn(3, 4, dtype=dtype)] for dtype in WHOLE]),
    Judge(("ops.Identity",), lambda x: x.clone(), unary()),
    Judge(everywhere("nan_to_num", "NanToNum"), torch.nan_to_num, unary(types=("float32", "float64"))),
]
COMPARED = [
    _of_two("eq equal", "Equal", torch.eq),
    _of_two("ne not_equal", "NotEqual", torch.ne),
    _of_two("gt greater", "Greater", torch.gt),
    _of_two("ge greater_equal", "GreaterEqual", torch.ge),
    _of_two("lt less", "Less", torch.lt),
    _of_two("le less_equal", "LessEqual", torch.le),
    _of_two("logical_and", "LogicalAnd", torch.logical_and),
    _of_two("logical_or", "LogicalOr", torch.logical_or),
    _of_two("logical_xor", "LogicalXor", torch.logical_xor),
    Judge(
        everywhere("isclose", "IsClose"),
        torch.isclose,
        [case for case in binary() if case[0].dtype == case[1].dtype],
    ),
    Judge(
        everywhere("isclose"),
        lambda x, y, *rest: torch.isclose(x, y, *rest),
        [case for case in binary(types=("float32", "float64")) if case[0].dtype == case[1].dtype],
        arguments=[(0.5, 0.1, True)],
    ),
]
_BITS = [case for case in binary(types=(*WHOLE, "bool")) if not any(x.dtype.kind == "f" for x in case)]
_KINDS = ("float16", "bfloat16", "float32", "float64", *WHOLE)
ARITHMETIC = [
    Judge(everywhere("add", "Add"), torch.add, binary(types=_KINDS)),
    Judge(everywhere("sub subtract", "Sub"), torch.sub, binary(types=_KINDS)),
    Judge(everywhere("mul multiply", "Mul"), torch.mul, binary(types=_KINDS)),
    _of_two("div divide true_divide", "Div RealDiv", torch.div, 0.5),
    Judge(
        everywhere("div"),
        _whole_quotient,
        binary(0.5, 9.0, _KINDS),
        named=[{"rounding_mode": m} for m in ("floor", "trunc")],
    ),
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
    Judge(everywhere("fmod", "Mod TruncateMod"), torch.fmod, binary(0.5, 9.0, _KINDS)),
    Judge(("ops.TruncateDiv",), lambda x, y: torch.div(x, y, rounding_mode="trunc"), binary(0.5, 9.0, _KINDS)),
    Judge(everywhere("pow tensor_pow", "Pow"), torch.pow, binary(0.5, 3.0, _KINDS), loose=4),
    _of_two("maximum", "Maximum", torch.maximum),
    _of_two("minimum", "Minimum", torch.minimum),
    Judge(("ops.SquaredDifference",), lambda x, y: (x - y) ** 2, binary(types=_KINDS)),
    Judge(("ops.DivNoNan",), lambda x, y: torch.where(y == 0, 0, x / y).to((x / y).dtype), binary(0.5)),
    _of_two("atan2 arctan2", "Atan2", torch.atan2, 0.3),
    Judge(everywhere("hypot", "Hypot"), torch.hypot, binary(0.3, types=("float32", "float64"))),
    Judge(
        everywhere("xlogy", "Xlogy"),
        lambda x, y: torch.where(x == 0, 0, torch.xlogy(x, y)).to(torch.xlogy(x, y).dtype),
        binary(0.5),
    ),
    Judge(everywhere("bitwise_and", "BitwiseAnd"), torch.bitwise_and, _BITS),
    Judge(everywhere("bitwise_or", "BitwiseOr"), torch.bitwise_or, _BITS),
    Judge(everywhere("bitwise_xor", "BitwiseXor"), torch.bitwise_xor, _BITS),
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
JUDGES = [*SMOOTH, *SIMPLE, *COMPARED, *ARITHMETIC, *CHOSEN]
