"""Arithmetic and functions element by element."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import ops
from mspc.api.numpy.promotion import as_float, as_type, operand, pair
from mspc.ir.types import BOOL, FLOAT32

# Of two operands ------------------------------------------------------------------------------------------


def add(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """x1 + x2."""
    return as_type(ops.add(*pair(x1, x2)), dtype)


def subtract(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """x1 - x2."""
    return as_type(ops.sub(*pair(x1, x2)), dtype)


def multiply(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """x1 * x2."""
    return as_type(ops.mul(*pair(x1, x2)), dtype)


def divide(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """x1 / x2; integers are Float32."""
    left, right = pair(x1, x2)
    return as_type(ops.div(as_float(left), as_float(right)), dtype)


true_divide = divide


def floor_divide(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """The greatest integer up to x1 / x2."""
    return as_type(ops.floor_div(*pair(x1, x2)), dtype)


def remainder(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """What is left of x1 when x2 is taken away as often as it fits, with the sign of x2."""
    return as_type(ops.floor_mod(*pair(x1, x2)), dtype)


mod = remainder


def fmod(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """What is left of x1 when x2 is taken away as often as it fits, with the sign of x1."""
    return as_type(ops.Mod()(*pair(x1, x2)), dtype)


def divmod(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """(floor_divide, remainder)."""
    return floor_divide(x1, x2, dtype), remainder(x1, x2, dtype)


def power(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """x1 to the power of x2."""
    return as_type(ops.pow(*pair(x1, x2)), dtype)


def float_power(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """x1 to the power of x2, computed in Float32."""
    return as_type(ops.pow(as_type(operand(x1), FLOAT32), as_type(operand(x2), FLOAT32)), dtype)


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


def _bits(operator: Any, x1: Any, x2: Any) -> Any:
    left, right = pair(x1, x2)
    return operator(left, right)


def bitwise_and(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """The bits that both have."""
    return as_type(_bits(ops.BitwiseAnd(), x1, x2), dtype)


def bitwise_or(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """The bits that one has."""
    return as_type(_bits(ops.BitwiseOr(), x1, x2), dtype)


def bitwise_xor(x1: Any, x2: Any, dtype: Any = None) -> Any:
    """The bits that just one has."""
    return as_type(_bits(ops.BitwiseXor(), x1, x2), dtype)


def invert(x: Any, dtype: Any = None) -> Any:
    """The bits that it has not."""
    return as_type(ops.Invert()(x), dtype)


bitwise_not = invert

# Of one operand -------------------------------------------------------------------------------------------


def sin(x: Any, dtype: Any = None) -> Any:
    """The sine."""
    return as_type(ops.sin(as_float(x)), dtype)


def cos(x: Any, dtype: Any = None) -> Any:
    """The cosine."""
    return as_type(ops.cos(as_float(x)), dtype)


def tan(x: Any, dtype: Any = None) -> Any:
    """The tangent."""
    return as_type(ops.tan(as_float(x)), dtype)


def arcsin(x: Any, dtype: Any = None) -> Any:
    """The inverse of the sine."""
    return as_type(ops.asin(as_float(x)), dtype)


def arccos(input: Any, dtype: Any = None) -> Any:
    """The inverse of the cosine."""
    return as_type(ops.acos(as_float(input)), dtype)


def arctan(x: Any, dtype: Any = None) -> Any:
    """The inverse of the tangent."""
    return as_type(ops.atan(as_float(x)), dtype)


def sinh(x: Any, dtype: Any = None) -> Any:
    """The hyperbolic sine."""
    return as_type(ops.sinh(as_float(x)), dtype)


def cosh(x: Any, dtype: Any = None) -> Any:
    """The hyperbolic cosine."""
    return as_type(ops.cosh(as_float(x)), dtype)


def tanh(x: Any, dtype: Any = None) -> Any:
    """The hyperbolic tangent."""
    return as_type(ops.tanh(as_float(x)), dtype)


def arcsinh(x: Any, dtype: Any = None) -> Any:
    """The inverse of the hyperbolic sine."""
    return as_type(ops.Asinh()(as_float(x)), dtype)


def arccosh(x: Any, dtype: Any = None) -> Any:
    """The inverse of the hyperbolic cosine."""
    return as_type(ops.Acosh()(as_float(x)), dtype)


def arctanh(x: Any, dtype: Any = None) -> Any:
    """The inverse of the hyperbolic tangent."""
    return as_type(ops.Atanh()(as_float(x)), dtype)


def exp(x: Any, dtype: Any = None) -> Any:
    """e to the power of x."""
    return as_type(ops.exp(as_float(x)), dtype)


def expm1(x: Any, dtype: Any = None) -> Any:
    """exp(x) - 1, exact near 0."""
    return as_type(ops.expm1(as_float(x)), dtype)


def exp2(x: Any, dtype: Any = None) -> Any:
    """2 to the power of x."""
    return as_type(power(2, x), dtype)


def log(x: Any, dtype: Any = None) -> Any:
    """The natural logarithm."""
    return as_type(ops.log(as_float(x)), dtype)


def log1p(x: Any, dtype: Any = None) -> Any:
    """log(1 + x), exact near 0."""
    return as_type(ops.log1p(as_float(x)), dtype)


def log2(x: Any, dtype: Any = None) -> Any:
    """The logarithm to the base 2."""
    return as_type(ops.log(as_float(x)) * (1 / math.log(2)), dtype)


def log10(x: Any, dtype: Any = None) -> Any:
    """The logarithm to the base 10."""
    return as_type(ops.log(as_float(x)) * (1 / math.log(10)), dtype)


def sqrt(x: Any, dtype: Any = None) -> Any:
    """The square root."""
    return as_type(ops.sqrt(as_float(x)), dtype)


def square(x: Any, dtype: Any = None) -> Any:
    """x * x."""
    return as_type(ops.square(x), dtype)


def reciprocal(x: Any, dtype: Any = None) -> Any:
    """1 / x, of integers the whole part."""
    found = ops.reciprocal(as_float(x))
    return as_type(found if x.dtype.is_float else ops.cast(ops.trunc(found), x.dtype), dtype)


def deg2rad(x: Any, dtype: Any = None) -> Any:
    """Degrees as radians."""
    return as_type(as_float(x) * (math.pi / 180.0), dtype)


def rad2deg(x: Any, dtype: Any = None) -> Any:
    """Radians as degrees."""
    return as_type(as_float(x) * (180.0 / math.pi), dtype)


def ceil(x: Any, dtype: Any = None) -> Any:
    """The smallest integer from x on, as a floating-point number."""
    return as_type(ops.ceil(as_float(x)), dtype)


def floor(x: Any, dtype: Any = None) -> Any:
    """The greatest integer up to x, as a floating-point number."""
    return as_type(ops.floor(as_float(x)), dtype)


def trunc(x: Any, dtype: Any = None) -> Any:
    """x without what stands behind the point, as a floating-point number."""
    return as_type(ops.trunc(as_float(x)), dtype)


def rint(x: Any, dtype: Any = None) -> Any:
    """The nearest integer, the even one of two, as a floating-point number."""
    return as_type(ops.Rint()(as_float(x)), dtype)


def sign(x: Any, dtype: Any = None) -> Any:
    """-1, 0 or 1, as a floating-point number."""
    return as_type(ops.sign(as_float(x)), dtype)


def negative(a: Any, dtype: Any = None) -> Any:
    """-a."""
    return as_type(ops.neg(a), dtype)


def positive(a: Any, dtype: Any = None) -> Any:
    """a."""
    return as_type(a, dtype)


def absolute(x: Any, dtype: Any = None) -> Any:
    """|x|."""
    return as_type(x if x.dtype == BOOL else ops.abs(x), dtype)


def cbrt(x: Any, dtype: Any = None) -> Any:
    """The third root, of numbers below 0 too."""
    return as_type(ops.sign(as_float(x)) * ops.pow(ops.abs(as_float(x)), 1.0 / 3.0), dtype)


abs = fabs = absolute
radians = deg2rad
fix = trunc
