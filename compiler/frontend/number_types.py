"""Numbers of Python beside tensors: which element types they take."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ir.types import BOOL, FLOAT32, INT64, DType, dtype_of


def is_numeric(value: Any) -> bool:
    """Whether a value is a number, or lists of numbers."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(is_numeric, value))
    return isinstance(value, bool | int | float | np.generic)


def number_dtype(value: Any, like: DType | None) -> DType:
    """Element type of a Python number beside tensors of type `like`: theirs, but a float makes integers
    Float32 and an int makes Bool Int64; alone a float is Float32, an int Int64."""
    if isinstance(value, np.generic) and like is None:
        return dtype_of(value.dtype)
    is_float = isinstance(value, float | np.floating)
    is_bool = isinstance(value, bool | np.bool_)
    if like is None:
        return FLOAT32 if is_float else BOOL if is_bool else INT64
    if is_float:
        return like if like.has_gradient else FLOAT32
    if not is_bool and like == BOOL:
        return INT64
    return like
