"""Applies mixed precision: Casts around operators, of a cell's inputs, parameters and constants, as its flags ask."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.common.parameter import Parameter
from mspc.api.common.tensor import Tensor
from mspc.compiler.frontend.state import Tracer
from mspc.ir.graph import Value
from mspc.ir.types import DType, TensorType, dtype_of


def as_float(tracer: Tracer, value: Any, dtype: DType) -> Any:
    """`value` with its floating-point tensors cast to `dtype`, in tuples and dicts too."""
    if isinstance(value, tuple | list):
        items = [as_float(tracer, item, dtype) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: as_float(tracer, item, dtype) for key, item in value.items()}
    if isinstance(value, Tensor | np.ndarray):
        if not dtype_of(value.dtype).is_float or dtype_of(value.dtype) == dtype:
            return value
        return tracer.cast(tracer.value(value), dtype)
    if not isinstance(value, Value) or not isinstance(value.type, TensorType) or not value.type.dtype.is_float:
        return value
    return tracer.cast(value, dtype)


def attribute_as_float(tracer: Tracer, found: Any, dtype: DType, name: str) -> Any:
    """A cell's parameter as its operators read it; a constant tensor is rounded once, at compile time."""
    if isinstance(found, Parameter):
        return tracer.cast(tracer.value(found), dtype) if found.dtype.is_float else found
    kind = dtype_of(found.dtype)
    if not kind.is_float or kind == dtype:
        return found
    key = (id(found), dtype)
    if key not in tracer.rounded:
        tracer.keep(found)
        array = found.array if isinstance(found, Tensor) else found
        tracer.rounded[key] = Tensor(np.asarray(array).astype(dtype.numpy))
        tracer.tensor_names[id(tracer.rounded[key])] = name
    return tracer.rounded[key]
