"""Effects of padding on operators: whether one can work on a padded dimension, and the values that padding must have.

Padding is at the end of a dimension, and never reaches a value that is not padding: operators that work on every index
of the dimension alone (`EACH`) may leave anything in it, and operators that combine its elements read a value there
that changes nothing. Gradients of padding are zero then, and so are padded parameters after every update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import element_types
from mspc.ir.types import BOOL, FLOAT16, DType, TensorType
from mspc.ops.bases import Elementwise
from mspc.ops.op import Op
from mspc.sharding.rules import Rule

EACH, ZERO, ONE, LOWEST, HIGHEST = "each", "zero", "one", "lowest", "highest"
"""Roles of a dimension: every index is computed alone, or padding must have this value before the operator."""
LOOKUP, CLASSES, MEAN = "lookup", "classes", "mean"
"""Further roles: rows that integers name, of which none is padding; a result's classes, of which none is hit; a mean,
which is scaled by the padded and the given size."""

_EXTREMES = {
    "ReduceMax": LOWEST, "ReduceMin": HIGHEST, "ReduceProd": ONE, "ReduceAll": ONE, "ReduceAny": ZERO, "L2Loss": ZERO,
    "ReduceMean": MEAN,
}  # fmt: skip
_PLACES = {
    "Argmax": LOWEST, "ArgMaxWithValue": LOWEST, "Argmin": HIGHEST, "ArgMinWithValue": HIGHEST, "Softmax": LOWEST,
    "LogSoftmax": LOWEST,
}  # fmt: skip
_CROSS_ENTROPIES = ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits")
GATHERS = ("Gather", "IndexSelect", "SparseGatherV2")
_POINTWISE = frozenset((
    "Adam", "AdamWeightDecay", "ApplyGradientDescent", "ApplyMomentum", "ArgMaxWithValue", "ArgMinWithValue", "Argmax",
    "Argmin", "Assign", "AssignAdd", "AssignSub", "BatchMatMul", "BatchMatMulExt", "BiasAdd", "Bounded", "BroadcastTo",
    "Concat", "ExpandDims", "Fill", "Gather", "IndexSelect", "LayerNorm", "LogSoftmax", "MatMul", "MatMulExt",
    "OneHot", "Ones", "ReduceAll", "ReduceAny", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
    "Reshape", "RmsNorm", "SGD", "Slice", "Softmax", "SoftmaxCrossEntropyWithLogits", "SparseGatherV2",
    "SparseSoftmaxCrossEntropyWithLogits", "Split", "Squeeze", "Stack", "StackExt", "StridedSlice", "Transpose",
    "Zeros",
))  # fmt: skip
"""Operators other than elementwise ones whose result at an index of a dimension that they do not combine depends on
nothing but the operands at that index."""
_SINGULAR = {
    "Acosh": 2.0, "Div": 1.0, "RealDiv": 1.0, "FloorDiv": 1.0, "FloorMod": 1.0, "Mod": 1.0, "TruncateDiv": 1.0,
    "TruncateMod": 1.0, "Inv": 1.0, "Reciprocal": 1.0, "Log": 1.0, "Rsqrt": 1.0,
    "Sqrt": 1.0, "Pow": 1.0, "Xlogy": 1.0, "Atan2": 1.0, "Hypot": 1.0, "DivNoNan": 1.0,
}  # fmt: skip
"""Elementwise operators that have no finite result or gradient at 0, with an operand for which they have both."""
_DIVISIONS = frozenset((
    "Div", "RealDiv", "FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod", "DivNoNan", "Xlogy",
))  # fmt: skip
_ZERO_AT_ZERO = frozenset((
    "Abs", "Add", "AddExt", "AddN", "Asin", "Asinh", "Atan", "Atanh", "Cast", "Ceil", "Concat", "Elu", "Erf", "Expm1",
    "FastGeLU", "Floor", "GeLU", "HSwish", "Identity", "Log1p", "Maximum", "Minimum", "Mish", "Neg", "ReLU",
    "ReLU6", "Rint", "Round", "SeLU", "ShardingConstraint", "SiLU", "Sign", "Sin", "Sinh", "SoftShrink", "Softsign",
    "Square", "SquaredDifference", "Stack", "Sub", "SubExt", "Tan", "Tanh", "Trunc",
))  # fmt: skip
_ONE_IS_ENOUGH = frozenset(("Mul", "MatMul", "MatMulExt", "BatchMatMul", "BatchMatMulExt"))
"""Operators whose result is zero if one of their operands is."""


def role_of(op: Op, rule: Rule, factor: int) -> str | None:
    """Return the role of a factor if it is padded, or None if it must not be padded."""
    tensors = (*rule.inputs, *rule.outputs)
    if any(factor in dim and dim != (factor,) for dims in tensors for dim in dims):
        return None
    if op.seeds or not (isinstance(op, Elementwise) or op.name in _POINTWISE):
        return None
    read, made = (any((factor,) in dims for dims in side) for side in (rule.inputs, rule.outputs))
    if op.name in _PLACES and (factor,) in [rule.inputs[0][axis] for axis in _axes(op)]:
        return _PLACES[op.name]
    if op.name in _CROSS_ENTROPIES and rule.inputs[0][1] == (factor,):
        return LOWEST
    if op.name in GATHERS and rule.inputs[0][cast(Any, op).axis] == (factor,) and not made:
        return LOOKUP
    if op.name == "OneHot" and not read:
        return CLASSES
    if made:
        everywhere = all((factor,) in dims for dims in rule.outputs)
        free = factor not in rule.frozen and (read or "shape" in op.attributes())
        return EACH if everywhere and free else None
    if op.name in _EXTREMES:
        return _EXTREMES[op.name]
    summed = rule.reduction == "sum" and all(
        i in op.linear_in for i, dims in enumerate(rule.inputs) if (factor,) in dims
    )
    return ZERO if summed and factor not in rule.frozen else None


def _axes(op: Op) -> tuple[int, ...]:
    axis = cast(Any, op).axis
    return axis if isinstance(axis, tuple) else (axis,)


def adapted(op: Op, types: Sequence[TensorType], results: Sequence[TensorType]) -> Op | None:
    """Return the operator for operands of padded types and these results, or None if it has other results then."""
    attributes, shape = op.attributes(), results[0].shape
    if op.name in ("Reshape", "BroadcastTo", "Fill", "Zeros", "Ones"):
        op = replace(cast(Any, op), shape=shape)
    elif op.name == "OneHot":
        axis = attributes["axis"]
        op = replace(cast(Any, op), depth=shape[axis])
    elif op.name == "Slice":
        op = replace(cast(Any, op), size=shape)
    try:
        made = op.infer(*types)
    except MspcError:
        return None
    return op if [t.shape for t in element_types(made)] == [t.shape for t in results] else None


def fill_of(role: str, dtype: DType) -> Any:
    """Return the value that padding of an element type must have. It is half of the extremes of floats, so that
    differences to it are finite, and zero times it is zero."""
    if role in (LOWEST, HIGHEST):
        if dtype.is_float:
            extreme = float(np.finfo(np.float16 if dtype == FLOAT16 else np.float32).max)
            return (-extreme if role == LOWEST else extreme) / 2
        limits = np.iinfo(dtype.numpy) if np.dtype(dtype.numpy).kind in "iu" else None
        return role == HIGHEST if limits is None else limits.min if role == LOWEST else limits.max
    one = 1 if role == ONE else 0
    return bool(one) if dtype == BOOL else one


def singular_fill(op: Op, operand: int) -> float | None:
    """Return the value that padding of an operand must have for a finite result and gradient, or None for any."""
    if op.name not in _SINGULAR or (op.name in _DIVISIONS and operand == 0):
        return None
    return _SINGULAR[op.name]


def leaves_zero(op: Op, zeros: Sequence[bool | None]) -> bool:
    """Return whether the padding of the result is zero. zeros: whether that of each operand is; None for operands
    without the dimension."""
    padded = [zero for zero in zeros if zero is not None]
    if op.name in _ONE_IS_ENOUGH:
        return any(padded)
    if op.name in _DIVISIONS:
        return zeros[0] is True
    if op.name in _ZERO_AT_ZERO:
        return len(padded) == len(zeros) and all(padded)
    if op.name in GATHERS:
        return zeros[0] is True
    return bool(padded) and all(padded) and (op.moves or 0 in op.linear_in)
