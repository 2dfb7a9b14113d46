"""Elementwise operations: mspc's operators if they compute the same for an element type, else NumPy functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.types import BOOL, DType
from mspc.mindspore_api import ops
from mspc.ops.math.xla_elementwise import ELEMENTWISE
from mspc.readers.stablehlo.emitter import BroadcastView, HloEmitter, Known, attribute, tensor
from mspc.readers.stablehlo.kinds.kind import Kinds, word
from mspc.readers.stablehlo.module import HloOperation

NATIVE: Mapping[str, tuple[str, Callable[[], Any]]] = {
    "add": ("iufc", ops.Add), "subtract": ("iufc", ops.Sub), "multiply": ("iufc", ops.Mul), "divide": ("f", ops.Div),
    "negate": ("if", ops.Neg), "abs": ("if", ops.Abs), "maximum": ("iuf", ops.Maximum), "minimum": ("iuf", ops.Minimum),
    "power": ("f", ops.Pow), "exponential": ("f", ops.Exp), "exponential_minus_one": ("f", ops.Expm1),
    "log": ("f", ops.Log), "log_plus_one": ("f", ops.Log1p), "logistic": ("f", ops.Sigmoid), "tanh": ("f", ops.Tanh),
    "sqrt": ("f", ops.Sqrt), "rsqrt": ("f", ops.Rsqrt), "sine": ("f", ops.Sin), "cosine": ("f", ops.Cos),
    "tan": ("f", ops.Tan), "floor": ("f", ops.Floor), "ceil": ("f", ops.Ceil), "sign": ("if", ops.Sign),
    "round_nearest_even": ("f", ops.Rint), "real": ("c", ops.Real), "imag": ("c", ops.Imag),
    "complex": ("f", ops.Complex), "is_finite": ("f", ops.IsFinite), "acos": ("f", ops.ACos), "asin": ("f", ops.Asin),
    "acosh": ("f", ops.Acosh), "asinh": ("f", ops.Asinh), "atan": ("f", ops.Atan), "atanh": ("f", ops.Atanh),
    "cosh": ("f", ops.Cosh), "sinh": ("f", ops.Sinh),
}  # fmt: skip
"""(kinds of element types, operator) of operations: b Bool, i and u integers, f floats, c complex numbers."""
LOGICAL: Mapping[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "and": (ops.LogicalAnd, ops.BitwiseAnd), "or": (ops.LogicalOr, ops.BitwiseOr),
    "xor": (ops.LogicalXor, ops.BitwiseXor), "not": (ops.LogicalNot, ops.Invert), "add": (ops.LogicalOr, ops.Add),
    "multiply": (ops.LogicalAnd, ops.Mul), "maximum": (ops.LogicalOr, ops.Maximum),
    "minimum": (ops.LogicalAnd, ops.Minimum),
}  # fmt: skip
"""Operators of Bool, and of integers."""
ORDERS: Mapping[str, Callable[[], Any]] = {
    "EQ": ops.Equal, "NE": ops.NotEqual, "LT": ops.Less, "LE": ops.LessEqual, "GT": ops.Greater,
    "GE": ops.GreaterEqual,
}  # fmt: skip


def elementwise(name: str, e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the result of an elementwise operation."""
    return [emitted(name, e, given, tensor(operation.types[0]).shape)]


def emitted(name: str, e: HloEmitter, given: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Return the result of an elementwise operation: known numbers, or that of an operator."""
    folded = e.folded(name, given, (), shape)
    if folded is not None:
        return folded
    kind = e.type_of(given[-1]).dtype.kind
    kinds, native = NATIVE.get(name, ("", None))
    if name in LOGICAL and kind in "biu" and not (kind in "iu" and name in NATIVE):
        found = e.call(LOGICAL[name][kind != "b"](), *map(e.loose, given))
    elif name == "abs" and kind == "c":
        found = e.call(ops.ComplexAbs(), e.loose(given[0]))
    elif native is not None and kind in kinds:
        found = e.call(native(), *map(e.loose, given))
    else:
        found = e.call(ops.XlaFunction(name, ()), *map(e.loose, given))
    return e.spread(found, shape)


def shifted(name: str, e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return shifted bits; mspc's operators shift by numbers that are less than the number of bits."""
    type, by = tensor(operation.types[0]), given[1]
    folded = e.folded(name, given, (), type.shape)
    if folded is not None:
        return [folded]
    native = {"shift_left": ops.LeftShift, "shift_right_logical": ops.RightShift}.get(name)
    few = isinstance(by, Known) and ((by.base >= 0) & (by.base < 8 * type.dtype.itemsize)).all()
    if native is None or not few or (type.dtype.kind == "i" and name != "shift_left"):
        return [emitted(name, e, given, type.shape)]
    return [e.spread(e.call(native(), *map(e.loose, given)), type.shape)]


def compared(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return whether pairs of elements are in an order."""
    direction = word(operation, "comparison_direction", tuple(ORDERS))
    kind = word(operation, "compare_type", ("FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED", "NOTYPE"), "NOTYPE")
    shape = tensor(operation.types[0]).shape
    settings = (direction, "TOTALORDER") if kind == "TOTALORDER" else (direction,)
    folded = e.folded("compare", given, settings, shape)
    if folded is not None:
        return [folded]
    dtype = e.type_of(given[0]).dtype
    if kind == "TOTALORDER" or dtype.kind not in "iuf":
        return [e.spread(e.call(ops.XlaFunction("compare", settings), *map(e.loose, given)), shape)]
    return [e.spread(e.call(ORDERS[direction](), *map(e.loose, given)), shape)]


def selected(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return elements of one of two tensors."""
    shape = tensor(operation.types[0]).shape
    condition = given[0]
    operator: Any = ops.Select()
    if e.type_of(given[1]).dtype.is_complex:
        operator = ops.XlaFunction("select", ())
    is_one_of_many = e.program.module.rank >= 0  # the condition may be another one on others, and programs stay alike
    if isinstance(condition, Known) and condition.base.size == 1 and not is_one_of_many:
        return [given[1] if condition.base.reshape(()) else given[2]]
    folded = e.folded("select", given, (), shape)
    if folded is not None:
        return [folded]
    if e.shape_of(condition) != shape:  # one condition for all elements
        condition = BroadcastView(e.reshaped(e.whole(condition), (1,) * len(shape)), shape)
    return [e.spread(e.call(operator, *map(e.loose, (condition, *given[1:]))), shape)]


def clamped(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    shape = tensor(operation.types[0]).shape
    low, x, high = (each if e.shape_of(each) == shape else _as_repeated(e, each, shape) for each in given)
    return [emitted("minimum", e, (emitted("maximum", e, (low, x), shape), high), shape)]


def bounded(e: HloEmitter, x: Any, most: int) -> Any:
    """Return integers within 0 and a largest one."""
    type = e.type_of(x)
    low, high = (Known(np.full((1,) * type.rank, n, type.dtype.numpy), type.shape) for n in (0, most))
    return emitted("minimum", e, (emitted("maximum", e, (x, low), type.shape), high), type.shape)


def _as_repeated(e: HloEmitter, value: Any, shape: tuple[int, ...]) -> Any:
    """Return a number as a tensor that repeats it."""
    ones = (1,) * len(shape)
    return Known(value.base.reshape(ones), shape) if isinstance(value, Known) else BroadcastView(
        e.reshaped(value, ones), shape)  # fmt: skip


def converted(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the elements in another type."""
    return [converted_to(e, given[0], tensor(operation.types[0]).dtype)]


def converted_to(e: HloEmitter, value: Any, dtype: DType) -> Any:
    own = e.type_of(value)
    if own.dtype == dtype:
        return value
    settings = (dtype.name.lower(),)
    folded = e.folded("convert", (value,), settings, own.shape)
    if folded is not None:
        return folded
    is_plain = own.dtype.kind in "biuf" and dtype.kind in "iuf" and not (own.dtype.kind == "f" and dtype.kind in "iu")
    if dtype == BOOL and own.dtype.kind in "iuf":
        found = e.call(ops.NotEqual(), e.loose(value), e.constant(np.zeros((), own.dtype.numpy)))
    elif is_plain:
        found = e.call(ops.Cast(), e.loose(value), dtype)
    else:
        found = e.call(ops.XlaFunction("convert", settings), e.loose(value))
    return e.spread(found, own.shape)


def less_precise(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return floats rounded to fewer bits: `format = e5m10`."""
    text = attribute(operation, "format", default="")
    exponent, _, mantissa = str(text).removeprefix("e").partition("m")
    settings = (
        int(exponent) if exponent else attribute(operation, "exponent_bits", default=0),
        int(mantissa) if mantissa else attribute(operation, "mantissa_bits", default=0),
    )
    return [e.host("reduce_precision", settings, given[0])]


def same_bits(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return the same bits as elements of another type."""
    type, value = tensor(operation.types[0]), given[0]
    name = type.dtype.name.lower()
    if isinstance(value, Known) and type.shape == value.shape:
        return [Known(ELEMENTWISE["bitcast_convert"](value.base, name), value.shape)]
    return [e.host("bitcast_convert", (name,), value)]


def of_floats(
    operator: Callable[[], Any], e: HloEmitter, operation: HloOperation, given: Sequence[Any]
) -> Sequence[Any]:
    """Return the result of an elementwise operation of CHLO that is one of mspc's operators for floats."""
    return [e.spread(e.call(operator(), *map(e.loose, given)), tensor(operation.types[0]).shape)]


def unknown_numbers(e: HloEmitter, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
    """Return all operands unchanged."""
    return list(given)


_OF_CHLO = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan", "next_after")
_SPECIAL = frozenset(("compare", "convert", "select", "clamp", "reduce_precision", "bitcast_convert", "next_after",
                      "shift_left", "shift_right_logical", "shift_right_arithmetic"))  # fmt: skip
ELEMENTWISE_KINDS: Kinds = {
    **{name: partial(elementwise, name) for name in ELEMENTWISE if name not in _SPECIAL and name not in _OF_CHLO[:-2]},
    **{name: partial(shifted, name) for name in ("shift_left", "shift_right_logical", "shift_right_arithmetic")},
    "compare": compared, "select": selected, "clamp": clamped, "convert": converted,
    "reduce_precision": less_precise, "bitcast_convert": same_bits, "optimization_barrier": unknown_numbers,
    "copy": unknown_numbers,
    **{f"chlo.{name}": partial(elementwise, name) for name in _OF_CHLO},
    **{f"chlo.{name}": partial(of_floats, operator) for name, operator in {
        "erf": ops.Erf, "erfc": ops.Erfc, "erf_inv": ops.Erfinv, "lgamma": ops.Lgamma, "digamma": ops.Digamma,
        "bessel_i1e": ops.BesselI1e,
    }.items()},
    "chlo.square": lambda e, operation, given: [
        e.spread(e.call(ops.Mul(), e.loose(given[0]), e.loose(given[0])), tensor(operation.types[0]).shape)],
}  # fmt: skip
