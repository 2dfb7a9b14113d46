"""This module says which element type results of numbers and tensors of several element types have."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.numpy_arguments import float_type, joint, number_kind


def operand(value: Any) -> Any:
    """A number as a tensor of 32 bits; a tensor as it is."""
    if isinstance(value, (bool, int, float)):
        return ops.scalar_to_tensor(value, number_kind(value))
    return value


def pair(x1: Any, x2: Any) -> Any:
    """Two operands in the element type of a result of both."""
    left, right = operand(x1), operand(x2)
    dtype = joint(left.dtype, right.dtype)
    return as_type(left, dtype), as_type(right, dtype)


def as_type(x: Any, dtype: Any) -> Any:
    """x in an element type; as it is where that is None or its own."""
    return x if dtype is None or x.dtype == dtype else ops.cast(x, dtype)


def as_float(x: Any) -> Any:
    """x in the element type in which functions of real numbers compute."""
    return as_type(x, float_type(x.dtype))
