"""This module finds where an update of elements changes nothing, by the lines that it consists of."""

from __future__ import annotations

from mspc.ops.fused.body import BodyLine
from mspc.ops.fused.update import FusedUpdate
from mspc.ops.math.arithmetic import Add, Mul, Neg, Sub
from mspc.ops.math.elementwise import Identity
from mspc.ops.tensor.reshape import Cast

_ZERO, _LESS_ZERO = "+0", "-0"
_NUMBERS = ("number", "-number")
_SIGNS = {_ZERO: _LESS_ZERO, _LESS_ZERO: _ZERO, "number": "-number", "-number": "number"}


def unchanged_at_zero(update: FusedUpdate, gradient: int) -> bool:
    """Whether every element stays as it is, to the bit, where the operand `gradient` is +0, as a sum of nothing is.

    Scalars count as finite and not negative. By a negative learning rate the dense update makes a parameter of -0 +0,
    and by one that is infinite or NaN it makes every element NaN: these are then left as they are.
    """
    known: dict[tuple[str, int], str] = {("x", index): f"x{index}" for index in range(len(update.operands))}
    known |= dict.fromkeys((("x", index) for index in update.numbers), "number")
    known["x", gradient] = _ZERO
    for number, line in enumerate(update.lines()):
        known["t", number] = _value(line, [known[place] for place in line.operands])
    return all(known["t", line] == f"x{index}" for index, line in enumerate(update.writes))


def _value(line: BodyLine, given: list[str]) -> str:
    """What a line computes: a zero of a sign, a number of a sign, an operand as it is, or "" for what is not known.

    By IEEE 754: x - +0 and x + -0 are x, also where x is -0 or NaN; a finite number of no sign leaves a zero its own.
    """
    kind = type(line.op)  # others are computed in some other way, as an Add with a factor is
    if kind is Identity:
        return given[0]
    if isinstance(line.op, Cast):
        return given[0] if given[0] in _SIGNS and line.op.dst_type.is_float else ""
    if kind is Neg:
        return _SIGNS.get(given[0], "")
    if kind is Mul:
        return _product(given[0], given[1])
    if kind is Sub:
        return given[0] if given[1] == _ZERO else ""
    if kind is Add and _LESS_ZERO in given:
        return given[1] if given[0] == _LESS_ZERO else given[0]
    return ""


def _product(first: str, second: str) -> str:
    if first in _NUMBERS:
        first, second = second, first
    if first not in _SIGNS or second not in _NUMBERS:
        return ""
    return first if second == "number" else _SIGNS[first]
