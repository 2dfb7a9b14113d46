"""Python's operators on tensors and on values known at compile time."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mspc.compiler.frontend.argument_binding import as_it_is
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Undecided, contains_tensor, describe, on_way, way_of
from mspc.ir.diagnostics import MspcError, kind_of
from mspc.ir.graph import Value
from mspc.ir.types import BOOL, TensorType
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor

Python = Callable[..., Any]

BINARY: dict[type[ast.operator], tuple[str, str, Python]] = {
    ast.Add: ("+", "Add", operator.add),
    ast.Sub: ("-", "Sub", operator.sub),
    ast.Mult: ("*", "Mul", operator.mul),
    ast.Div: ("/", "Div", operator.truediv),
    ast.FloorDiv: ("//", "FloorDiv", operator.floordiv),
    ast.Mod: ("%", "FloorMod", operator.mod),
    ast.Pow: ("**", "Pow", operator.pow),
    ast.MatMult: ("@", "MatMul", operator.matmul),
    ast.BitAnd: ("&", "BitwiseAnd", operator.and_),
    ast.BitOr: ("|", "BitwiseOr", operator.or_),
    ast.BitXor: ("^", "BitwiseXor", operator.xor),
    ast.LShift: ("<<", "", operator.lshift),
    ast.RShift: (">>", "", operator.rshift),
}
COMPARE: dict[type[ast.cmpop], tuple[str, str, Python]] = {
    ast.Eq: ("==", "Equal", operator.eq),
    ast.NotEq: ("!=", "NotEqual", operator.ne),
    ast.Lt: ("<", "Less", operator.lt),
    ast.LtE: ("<=", "LessEqual", operator.le),
    ast.Gt: (">", "Greater", operator.gt),
    ast.GtE: (">=", "GreaterEqual", operator.ge),
}
UNARY: dict[type[ast.unaryop], tuple[str, str, Python]] = {
    ast.USub: ("-", "Neg", operator.neg),
    ast.UAdd: ("+", "", operator.pos),
    ast.Invert: ("~", "Invert", operator.invert),
}


WITH_SEQUENCES = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
"""Operators that accept lists and tuples next to tensors."""
ONE_TYPE = "let both branches leave one type and shape"


def require_decided(tracer: Tracer, what: str, *operands: Any) -> None:
    """Raise MspcError if the kind of an operand depends on the contents of a tensor."""
    for value in operands:
        if isinstance(value, Undecided):
            raise tracer.error(f"{what}: it is {value}", [ONE_TYPE], kind=TypeError, code="E0205")


def is_same(tracer: Tracer, left: Any, right: Any) -> bool:
    """Evaluate `left is right`."""
    holds = way_of(left, right)
    if holds is not None:
        ways = {is_same(tracer, on_way(left, holds, way), on_way(right, holds, way)) for way in (0, 1)}
        if len(ways) == 1:
            return ways.pop()
    require_decided(tracer, "operator is", left, right)
    return left is right


def is_graph_value(value: Any) -> bool:
    """Return whether an operator on `value` belongs in the graph: it is a tensor of the graph or a Parameter."""
    return isinstance(value, Value | Parameter)


def is_member(tracer: Tracer, left: Any, right: Any) -> Any:
    """Evaluate `left in right`: a Bool of shape () if it is known only at run time. Raise MspcError if `right` is a
    tensor, or no container."""
    if is_graph_value(right):
        raise tracer.error("'in' looks into a tensor, whose contents are not known at compile time", code="E0204")
    if isinstance(right, list | tuple) and (is_graph_value(left) or contains_tensor(right)):
        known = not is_graph_value(left)
        if any(left is item or (known and not is_graph_value(item) and left == item) for item in right):
            return True
        # A tensor of one element may equal an item that is known only at run time.
        met: Any = False
        for item in right:
            if not all(isinstance(value, Value | Tensor | bool | int | float) for value in (left, item)):
                continue
            one, other = tracer.value(left), tracer.value(item)
            if not one.tensor_type.size == other.tensor_type.size == 1:
                continue
            equal = reshape(tracer, tracer.emit(tracer.op("Equal"), one, other), ())
            met = equal if met is False else tracer.emit(tracer.op("LogicalOr"), met, equal)
        return met
    try:
        return left in right
    except TypeError as error:
        raise tracer.error(f"'in': {error}", kind=kind_of(error)) from None
    except ValueError:
        raise tracer.error("'in': an array equals nothing as a whole", kind=ValueError) from None


def binary(tracer: Tracer, kind: type[ast.operator], left: Any, right: Any) -> Any:
    """Evaluate `left <kind> right`. The tracer must have been given the place."""
    if way_of(left, right) is not None:
        return tracer.either(partial(binary, tracer, kind), left, right)
    if kind in WITH_SEQUENCES:
        left, right = _with_sequence(tracer, left, right), _with_sequence(tracer, right, left)
    symbol, name, python = BINARY[kind]
    if not is_graph_value(left) and not is_graph_value(right):
        return fold(tracer, f"operator {symbol}", python, left, right)
    if not name:
        raise tracer.error(f"operator {symbol} does not take tensors", kind=TypeError)
    if name == "MatMul":
        return matmul(tracer, left, right)
    _check_operands(tracer, symbol, left, right)
    if name.startswith("Bitwise") and _are_bool(tracer, symbol, left, right):
        name = name.replace("Bitwise", "Logical")
    return noted_number(tracer, tracer.emit(tracer.op(name), left, right), left, right)


def _with_sequence(tracer: Tracer, operand: Any, other: Any) -> Any:
    """Convert a list or tuple next to a tensor to a tensor. It takes the other's element type if that is floating
    point, or if the list has no fractions. Return anything else unchanged."""
    if not isinstance(operand, list | tuple) or not operand or not isinstance(other, Value | Tensor):
        return operand
    like = tracer.value(other).tensor_type.dtype
    items = [tracer.value(_with_sequence(tracer, item, other), like) for item in operand]
    if not like.is_float:
        like = next((item.tensor_type.dtype for item in items if item.tensor_type.dtype.is_float), like)
    return tracer.emit(tracer.op("Stack", axis=0), *(tracer.cast(item, like) for item in items))


def matmul(tracer: Tracer, left: Any, right: Any) -> Any:
    """Evaluate `left @ right` for tensors of any ranks, as NumPy does."""
    x, y = tracer.value(left), tracer.value(right)
    a, b = len(x.shape), len(y.shape)
    if a == 2 and b == 2:
        return tracer.emit(tracer.op("MatMul"), x, y)
    if a > 1 and b > 1:
        return tracer.emit(tracer.op("BatchMatMul"), x, y)
    if a == 0 or b == 0:
        raise tracer.error(
            f"operator @ needs at least 1 dimension, the shapes are {x.shape} and {y.shape}", kind=ValueError
        )
    if a == 1:
        x = reshape(tracer, x, (1, *x.shape))
    if b == 1:
        y = reshape(tracer, y, (*y.shape, 1))
    product = matmul(tracer, x, y)
    shape = list(product.shape)
    if b == 1:
        del shape[-1]
    if a == 1:
        del shape[-1 if b == 1 else -2]
    return reshape(tracer, product, tuple(shape))


def reshape(tracer: Tracer, x: Value, shape: tuple[int, ...]) -> Value:
    """Return `x` with another shape; x itself if that is its shape."""
    return x if x.shape == shape else tracer.emit(tracer.op("Reshape", shape=shape), x)


def compare(tracer: Tracer, kind: type[ast.cmpop], left: Any, right: Any) -> Any:
    """Evaluate `left <kind> right` for the comparisons that tensors have."""
    if way_of(left, right) is not None:
        return tracer.either(partial(compare, tracer, kind), left, right)
    symbol, name, python = COMPARE[kind]
    if not is_graph_value(left) and not is_graph_value(right):
        return fold(tracer, f"operator {symbol}", python, left, right)
    other = right if is_graph_value(left) else left
    if name in ("Equal", "NotEqual") and (other is None or isinstance(other, str | type)):
        return name == "NotEqual"
    _check_operands(tracer, symbol, left, right)
    return tracer.emit(tracer.op(name), left, right)


def unary(tracer: Tracer, kind: type[ast.unaryop], operand: Any) -> Any:
    """Evaluate `-x`, `+x` or `~x`."""
    if way_of(operand) is not None:
        return tracer.either(partial(unary, tracer, kind), operand)
    symbol, name, python = UNARY[kind]
    if not is_graph_value(operand):
        return fold(tracer, f"operator {symbol}", python, operand)
    if not name:
        return as_it_is(tracer, tracer.value(operand))
    if name == "Invert" and _are_bool(tracer, symbol, operand):
        name = "LogicalNot"
    return noted_number(tracer, tracer.emit(tracer.op(name), operand), operand)


def is_number(tracer: Tracer, value: Any) -> bool:
    """Return whether a value acts as a Python number: a known one, or one that a loop carries."""
    return value in tracer.weak if isinstance(value, Value) else isinstance(value, bool | int | float | np.generic)


def noted_number(tracer: Tracer, made: Value, *operands: Any) -> Value:
    """Mark a result as a Python number if it is computed from such numbers only. Return it."""
    if tracer.weak and made.tensor_type.dtype != BOOL and all(is_number(tracer, operand) for operand in operands):
        tracer.weak.add(made)
    return made


def fold(tracer: Tracer, what: str, python: Python, *operands: Any) -> Any:
    """Compute with values known at compile time. Python's exception becomes an error at the current place."""
    require_decided(tracer, what, *operands)
    try:
        result = python(*operands)
    except Exception as error:
        text = getattr(error, "message", None) or str(error) or type(error).__name__
        raised = tracer.error(f"{what}: {text}", getattr(error, "notes", ()), kind=kind_of(error))
        raised.python = None if isinstance(error, MspcError) else error
        raise raised from None
    return tracer.own(result) if isinstance(result, list) else result


def truth(tracer: Tracer, value: Any, what: str) -> bool:
    """Return the truth of a condition, which must be known at compile time. Raise MspcError if it depends on the
    contents of a tensor."""
    if isinstance(value, Value | Parameter):
        type = tracer.value(value).type
        if isinstance(type, TensorType) and type.size != 1:
            raise tracer.error(
                f"{what} is a tensor {type}; it must have one element",
                ["x.all() and x.any() make one of several; ops.select(condition, a, b) chooses for every element"],
                kind=ValueError,
            )
        raise tracer.error(
            f"{what} depends on the contents of a tensor {type}, which are not known at compile time",
            ["conditions may use shapes, Python numbers and attributes here; `if` and `while` take tensors, too"],
        )
    require_decided(tracer, what, value)
    try:
        return bool(value)
    except Exception as error:
        text = getattr(error, "message", None) or str(error)
        raise tracer.error(f"{what} has no truth value: {text}", kind=kind_of(error)) from None


def _are_bool(tracer: Tracer, symbol: str, *operands: Any) -> bool:
    """Return whether all operands of a bitwise operator are Bool. Raise MspcError if one is floating point."""
    kinds = [BOOL if isinstance(x, bool) else tracer.value(x).tensor_type.dtype for x in operands]
    for dtype in kinds:
        if dtype.is_float:
            raise tracer.error(f"operator {symbol} takes integers and Bool, not {dtype}", kind=TypeError)
    return all(dtype == BOOL for dtype in kinds)


def _check_operands(tracer: Tracer, symbol: str, left: Any, right: Any) -> None:
    for side, operand in (("left", left), ("right", right)):
        if not isinstance(operand, Value | Tensor | np.ndarray | np.generic | bool | int | float | list | tuple):
            raise tracer.error(
                f"operator {symbol}: the {side} operand is {describe(operand)}, not a tensor or a number",
                kind=TypeError,
            )
