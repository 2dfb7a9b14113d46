"""These functions of language models are one or two operators: sums with a norm, rotations, gates, rows of tables."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.common.tensor import Tensor
from mspc.api.ops.checked import TensorLike
from mspc.ir.types import dtype_of


def add_rms_norm(x1: TensorLike, x2: TensorLike, gamma: TensorLike, epsilon: float = 1e-06) -> Any:
    """(the root mean square norm of x1 + x2, the reciprocal root, x1 + x2)."""
    total = ops.Add()(x1, x2)
    found, rstd = ops.RmsNorm(epsilon)(total, gamma)
    return found, rstd, total


def add_layer_norm(
    x1: TensorLike, x2: TensorLike, gamma: TensorLike, beta: TensorLike, epsilon: float = 1e-05,
    additional_output: bool = False,
) -> Any:  # fmt: skip
    """(the layer norm of x1 + x2, its means, its reciprocal deviations, x1 + x2, or zeros of one element in place of
    the sum unless there is an additional_output)."""
    total = ops.Add()(x1, x2)
    axis = len(total.shape) - len(gamma.shape)
    found, mean, variance = ops.LayerNorm(axis, axis, epsilon)(total, gamma, beta)
    rstd = ops.Rsqrt()(variance + epsilon)
    return found, mean, rstd, total if additional_output else ops.zeros((1,), total.dtype)


def mixed_precision_cast(dst_type: Any, x: object) -> Any:
    """Floating-point tensors as `dst_type`, alone or within tuples, lists and dicts; all else as it is."""
    if isinstance(x, Tensor):
        return ops.cast(x, dst_type) if dtype_of(x.dtype).is_float else x
    if isinstance(x, dict):
        return {name: mixed_precision_cast(dst_type, value) for name, value in x.items()}
    if isinstance(x, list):
        return [mixed_precision_cast(dst_type, value) for value in x]
    if isinstance(x, tuple):
        return tuple([mixed_precision_cast(dst_type, value) for value in x])
    return x
