"""These functions are arithmetic, element by element."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import ops
from mspc.api.numpy.promotion import as_float, as_type, operand, pair
from mspc.ir.types import BOOL

# Of two operands ------------------------------------------------------------------------------------------


def divide(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """x1 / x2; integers are Float32."""
    left, right = pair(x1, x2)
    return as_type(ops.div(as_float(left), as_float(right)), dtype)


def _like_tensor(x1: Any, x2: Any) -> Any:
    """A number in the element type of the tensor beside it."""
    if isinstance(x1, (bool, int, float)) and hasattr(x2, "shape"):
        return ops.scalar_to_tensor(x1, x2.dtype), x2
    if isinstance(x2, (bool, int, float)) and hasattr(x1, "shape"):
        return x1, ops.scalar_to_tensor(x2, x1.dtype)
    return pair(x1, x2)


def maximum(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """The greater one; a number has the element type of the tensor beside it."""
    left, right = _like_tensor(x1, x2)
    if left.dtype == BOOL:
        return as_type(ops.logical_or(left, right), dtype)
    return as_type(ops.maximum(left, right), dtype)


def minimum(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """The smaller one; a number has the element type of the tensor beside it."""
    left, right = _like_tensor(x1, x2)
    if left.dtype == BOOL:
        return as_type(ops.logical_and(left, right), dtype)
    return as_type(ops.minimum(left, right), dtype)


def clip(x: Any, xmin: Any, xmax: Any, dtype: Any = None) -> Any:
    """x, xmin where it is smaller, xmax where it is greater; None for no bound."""
    found = x if xmin is None else maximum(x, xmin)
    return as_type(found if xmax is None else minimum(found, xmax), dtype)


def arctan2(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """The angle of the point (x2, x1)."""
    left, right = pair(x1, x2)
    return as_type(ops.Atan2()(as_float(left), as_float(right)), dtype)


def hypot(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """sqrt(x1 * x1 + x2 * x2)."""
    left, right = pair(x1, x2)
    return as_type(ops.Hypot()(as_float(left), as_float(right)), dtype)


def logaddexp(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """log(exp(x1) + exp(x2)), without overflow."""
    left, right = pair(x1, x2)
    left, right = as_float(left), as_float(right)
    return as_type(ops.maximum(left, right) + ops.log1p(ops.exp(-ops.abs(left - right))), dtype)


def logaddexp2(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """log2(2 ** x1 + 2 ** x2), without overflow."""
    left, right = pair(x1, x2)
    return as_type(logaddexp(as_float(left) * math.log(2), as_float(right) * math.log(2)) * (1 / math.log(2)), dtype)


def copysign(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """|x1| with the sign of x2, in the element type of x1."""
    left, right = operand(x1), operand(x2)
    size = ops.abs(left)
    return as_type(ops.where(ops.less(right, 0), -size, size), dtype)


def heaviside(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """0 below 0, x2 at 0, 1 above."""
    left, right = pair(x1, x2)
    above = ops.cast(ops.greater(left, 0), right.dtype)
    return as_type(ops.where(ops.equal(left, 0), right, above), dtype)


def bits_of(operator: Any, x1: Any, x2: Any) -> Any:
    left, right = pair(x1, x2)
    return operator(left, right)


# Of one operand -------------------------------------------------------------------------------------------


def reciprocal(x: Any, dtype: Any = None) -> Any:
    """1 / x, of integers the whole part."""
    found = ops.reciprocal(as_float(x))
    return as_type(found if x.dtype.is_float else ops.cast(ops.trunc(found), x.dtype), dtype)
