"""Arithmetic over symbols, as exported programs describe sizes by it: read into data, computed and shown from there.

Programs have two forms of the same: calls (`Add(Mul(Integer(2), Symbol('s77', integer=True)), Integer(1))`) and
arithmetic (`2*s77 + 1`). Both are Python's grammar, and nothing of them is evaluated by Python.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mspc.ir.late_dataclass import dataclass

Number = int | float | bool
LONGEST = 1 << 14
"""Characters of an expression."""
LARGEST_POWER = 1 << 12


@dataclass(frozen=True, slots=True)
class Call:
    """An operation over expressions."""

    kind: str
    operands: tuple[Expression, ...]


Expression = Number | str | Call
"""A number, the name of a symbol, or an operation."""


def _divided(left: Number, right: Number) -> Number:
    """Exact where that is a whole number."""
    both_whole = isinstance(left, int) and isinstance(right, int)
    return left // right if both_whole and left % right == 0 else left / right


def _power(base: Number, exponent: Number) -> Number:
    if abs(exponent) > LARGEST_POWER or abs(base) > 1 << 62:
        raise OverflowError("a power is too large")
    return base**exponent


OPERATIONS: dict[str, Callable[..., Number]] = {
    "Add": lambda *each: sum(each),
    "Mul": lambda *each: math.prod(each),
    "Pow": _power,
    "PowByNatural": _power,
    "FloatPow": _power,
    "Rational": _divided,
    "IntTrueDiv": operator.truediv,
    "FloatTrueDiv": operator.truediv,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda left, right: -(-left // right),
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "ModularIndexing": lambda base, divisor, modulus: base // divisor % modulus,
    "Max": max,
    "Min": min,
    "Abs": abs,
    "floor": math.floor,
    "ceiling": math.ceil,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
    "TruncToInt": math.trunc,
    "TruncToFloat": lambda value: float(math.trunc(value)),
    "RoundToInt": round,
    "ToFloat": float,
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "And": lambda *each: all(each),
    "Or": lambda *each: any(each),
    "Not": operator.not_,
}  # fmt: skip
"""What calls compute."""
OTHER_NAMES = {"Eq": "Equality", "Ne": "Unequality", "Lt": "StrictLessThan", "Le": "LessThan",
               "Gt": "StrictGreaterThan", "Ge": "GreaterThan", "Identity": "", "Integer": "", "Float": ""}  # fmt: skip
"""Names of the same; of "" the first operand is all."""
BINARY: dict[type[ast.AST], str] = {
    ast.Add: "Add", ast.Mult: "Mul", ast.Pow: "Pow", ast.FloorDiv: "FloorDiv", ast.Mod: "Mod", ast.Div: "Rational",
    ast.Eq: "Equality", ast.NotEq: "Unequality", ast.Lt: "StrictLessThan", ast.LtE: "LessThan",
    ast.Gt: "StrictGreaterThan", ast.GtE: "GreaterThan", ast.BitAnd: "And", ast.BitOr: "Or",
}  # fmt: skip
SIGNS = {"Add": " + ", "Mul": "*", "Pow": "**", "PowByNatural": "**", "FloorDiv": "//", "CleanDiv": "//", "Mod": "%",
         "PythonMod": "%", "Rational": "/", "IntTrueDiv": "/", "FloatTrueDiv": "/", "Equality": " == ",
         "Unequality": " != ", "StrictLessThan": " < ", "LessThan": " <= ", "StrictGreaterThan": " > ",
         "GreaterThan": " >= "}  # fmt: skip
LITERALS: dict[str, Number] = {"true": True, "false": False, "oo": math.inf, "int_oo": math.inf}


@functools.lru_cache(maxsize=4096)
def parsed(text: str) -> Expression:
    """What an expression says.

    Raises:
        ValueError: it is none, or has an operation that is not known.
    """
    if len(text) > LONGEST:
        raise ValueError(f"an expression of {len(text)} characters is too long")
    try:
        return _of(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"{text!r:.80} is no expression") from None


def _of(tree: ast.expr) -> Expression:
    match tree:
        case ast.Constant(value=bool() | int() | float() as value):
            return value
        case ast.Name(id=name):
            return LITERALS.get(name, name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _of(operand)
            return -inner if isinstance(inner, int | float) else Call("Mul", (-1, inner))
        case ast.UnaryOp(op=ast.Invert() | ast.Not(), operand=operand):
            return Call("Not", (_of(operand),))
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return Call("Add", (_of(left), Call("Mul", (-1, _of(right)))))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return Call(BINARY[type(op)], (_of(left), _of(right)))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in BINARY:
            return Call(BINARY[type(op)], (_of(left), _of(right)))
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name)), *_]):
            return name
        case ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str(text)), *_]):
            return float(text)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _call(name, [_of(arg) for arg in args])
        case _:
            raise ValueError(f"{ast.unparse(tree)!r:.80} is no arithmetic over sizes")


def _call(name: str, operands: Sequence[Expression]) -> Expression:
    known = OTHER_NAMES.get(name, name)
    if not known and operands:
        return operands[0]
    if known not in OPERATIONS:
        raise ValueError(f"sizes are computed by {name!r:.60}, which mspc does not know")
    return Call(known, tuple(operands))


def symbols(expression: Expression) -> Iterator[str]:
    """The names of symbols in it, in order."""
    if isinstance(expression, str):
        yield expression
    elif isinstance(expression, Call):
        for operand in expression.operands:
            yield from symbols(operand)


def value_of(expression: Expression, sizes: Mapping[str, int]) -> Number:
    """What it is where symbols have these values.

    Raises:
        KeyError: a symbol has none. ValueError: there is no result.
    """
    if isinstance(expression, str):
        return sizes[expression]
    if not isinstance(expression, Call):
        return expression
    operands = [value_of(operand, sizes) for operand in expression.operands]
    try:
        found: Any = OPERATIONS[expression.kind](*operands)
    except (ArithmeticError, TypeError, ValueError) as error:
        raise ValueError(f"{shown(expression)} has no value: {error}") from None
    if isinstance(found, complex) or (isinstance(found, float) and not math.isfinite(found)):
        raise ValueError(f"{shown(expression)} has no value")
    return found


def shown(expression: Expression) -> str:
    """The expression as people write it."""
    if not isinstance(expression, Call):
        return str(expression)
    sign = SIGNS.get(expression.kind)
    if sign is None:
        return f"{expression.kind}({', '.join(map(shown, expression.operands))})"
    text = sign.join(_bracketed(operand, expression.kind) for operand in expression.operands)
    return text.replace(" + -", " - ")


def _bracketed(operand: Expression, outer: str) -> str:
    """An operand, in brackets where the sign around it would take only a part of it."""
    text = shown(operand)
    plain = not isinstance(operand, Call) or operand.kind not in SIGNS or (operand.kind == "Mul" and outer == "Add")
    return text if plain else f"({text})"
