"""These functions are made of others: logarithms to other bases, sums of what is a number, small products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.function_arguments import neighbours, no_tensor, of_rank, times
from mspc.ir.types import FLOAT32, FLOAT64


def as_floating(x: Any) -> Any:
    return x if x.dtype.is_float or x.dtype.is_complex else ops.cast(x, FLOAT32)


def log_of_sum(x: Any, y: Any, one: float, power: Any, logarithm: Any) -> Any:
    x, y = as_floating(x), as_floating(y)
    equal = ops.Equal()(x, y)
    apart = ops.Select()(equal, ops.zeros_like(x + y), ops.Sub()(x, y))  # infinite ones have no difference
    larger = ops.Maximum()(x, y)
    return ops.Select()(equal, (x + y) * 0.5 + one, larger + logarithm(power(-ops.Abs()(apart)) + 1))


def logaddexp(input: TensorLike, other: TensorLike) -> Any:
    """The logarithm of the sum of both exponentials, without overflow."""
    return log_of_sum(input, other, math.log(2), ops.Exp(), lambda x: ops.Log1p()(x - 1))


def float_power(input: Any, exponent: Any) -> Any:
    """A power in Float64, of a tensor and a tensor or a number."""
    if isinstance(input, int | float):
        return ops.Pow()(input, ops.cast(exponent, FLOAT64))
    if not isinstance(exponent, int | float):
        exponent = ops.cast(exponent, FLOAT64)
    return ops.Pow()(ops.cast(input, FLOAT64), exponent)


def sinc(input: TensorLike) -> Any:
    """sin(pi x) / (pi x), 1 at 0."""
    x = as_floating(input)
    zero = ops.Equal()(x, 0)
    angle = ops.Select()(zero, ops.ones_like(x), x) * math.pi
    return ops.Select()(zero, ops.ones_like(x), ops.Sin()(angle) / angle)


def nansum(input: TensorLike, axis: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Any:
    """The sum along `axis`, None for all, of what is a number."""
    x = ops.Select()(ops.IsNan()(input), ops.zeros_like(input), input) if input.dtype.is_float else input
    return ops.sum(x, axis, keepdims, dtype=dtype)


def nanmean(input: TensorLike, axis: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Any:
    """The mean along `axis`, None for all, of what is a number; NaN where nothing is."""
    x = as_floating(input) if dtype is None else ops.cast(input, dtype)
    numbers = ops.cast(ops.Equal()(x, x), x.dtype)
    return nansum(x, axis, keepdims) / ops.sum(numbers, axis, keepdims)


def dot(input: Any = None, other: Any = None, *, x1: Any = None, x2: Any = None) -> Any:
    """Products summed along the last dimension of the input and the last but one of the other, its only one if it is a
    vector; a number multiplies. x1, x2: the older names of both."""
    input, other = (input if x1 is None else x1), (other if x2 is None else x2)
    if input is None or other is None:
        raise ApiTypeError("ops.dot(): takes two tensors, input and other")
    if not input.shape or not other.shape:
        return ops.Mul()(input, other)
    return ops.tensor_dot(input, other, ((len(input.shape) - 1,), (max(0, len(other.shape) - 2),)))


def inner(input: TensorLike, other: TensorLike) -> Any:
    """Products summed along the last dimension of both; a number multiplies."""
    if not input.shape or not other.shape:
        return ops.Mul()(input, other)
    return ops.tensor_dot(input, other, ((len(input.shape) - 1,), (len(other.shape) - 1,)))


def trace(input: TensorLike) -> Any:
    """The sum of a matrix's diagonal."""
    of_rank("ops.trace", "input", input.shape, 2)
    is_on_it = ops.Equal()(ops.eye(*input.shape, FLOAT32), 1)
    return ops.ReduceSum()(ops.where(is_on_it, input, ops.zeros_like(input)))  # no product: 0 times NaN is NaN


def diff(x: TensorLike, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Differences of neighbours along `axis`, n times, after what is put before and behind."""
    if prepend is not None:
        x = ops.concat((prepend, x), axis)
    if append is not None:
        x = ops.concat((x, append), axis)
    for _ in range(times("ops.diff", n, x.shape, axis)):
        first, second, size = neighbours(x.shape, axis)
        x = ops.Slice()(x, second, size) - ops.Slice()(x, first, size)
    return x


def hstack(tensors: Sequence[Any]) -> Any:
    """Tensors side by side: along dimension 1, vectors along their only one."""
    for x in tensors:
        if not hasattr(x, "shape"):
            no_tensor("ops.hstack", x)
    return ops.concat(tensors, 1 if tensors and len(tensors[0].shape) > 1 else 0)


def vstack(inputs: Sequence[Any]) -> Any:
    """Tensors one below another: along dimension 0, vectors as rows."""
    for x in inputs:
        if not hasattr(x, "shape"):
            no_tensor("ops.vstack", x)
    return ops.concat([ops.ExpandDims()(x, 0) if len(x.shape) == 1 else x for x in inputs], 0)


def column_stack(tensors: Sequence[Any]) -> Any:
    """Tensors along dimension 1, vectors as columns."""
    for x in tensors:
        if not hasattr(x, "shape"):
            no_tensor("ops.column_stack", x)
    return ops.concat([ops.ExpandDims()(x, 1) if len(x.shape) == 1 else x for x in tensors], 1)
