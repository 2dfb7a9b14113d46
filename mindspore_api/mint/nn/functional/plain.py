"""Functions of `mint.nn.functional` with more than one expression."""

from __future__ import annotations

import math
from typing import Any

from mspc.mindspore_api import ops
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.ops.function_arguments import ints


def one_hot(tensor: Any, num_classes: int = -1) -> Any:
    """Return rows of an identity matrix, chosen by integers, in their type. The number of classes must be given."""
    if num_classes < 1:
        raise ApiValueError("one_hot(): num_classes must be given: a shape that depends on values is not known here")
    return ops.one_hot(tensor, num_classes, ops.cast(1, tensor.dtype), ops.cast(0, tensor.dtype), -1)


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """input @ weight.T + bias, weight [out, in]."""
    shape = input.shape
    out = ops.dense(ops.Reshape()(input, (math.prod(shape[:-1]), shape[-1])), weight, bias)
    return ops.Reshape()(out, (*shape[:-1], weight.shape[0]))


def embedding(
    input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
) -> Any:  # fmt: skip
    """Return rows of `weight`. The row padding_idx gets no gradient. Raise ValueError if max_norm or scale_grad_by_freq
    is set: rows and gradients are not scaled. norm_type belongs to max_norm."""
    if max_norm is not None or scale_grad_by_freq:
        raise ApiValueError("embedding(): rows and gradients are not scaled: max_norm must be None, and "
                            "scale_grad_by_freq False")  # fmt: skip
    rows = ops.Gather()(weight, input, 0)
    if padding_idx is None:
        return rows
    place = padding_idx + weight.shape[0] if padding_idx < 0 else padding_idx
    return ops.Select()(ops.ExpandDims()(ops.Equal()(input, place), -1), ops.stop_gradient(rows), rows)


def layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Return `input` normalised over its last dimensions, times weight, by default 1, plus bias, by default 0."""
    sizes = ints("mint.nn.functional.layer_norm", "normalized_shape", normalized_shape)
    weight = ops.ones(sizes, input.dtype) if weight is None else weight
    bias = ops.zeros(sizes, input.dtype) if bias is None else bias
    return ops.layer_norm(input, sizes, weight, bias, eps)


def sides(padding: Any, dims: int, stride: Any) -> Any:
    """Return (pad_mode, padding on both sides of every dimension)."""
    if isinstance(padding, str):
        if padding not in ("valid", "same"):
            raise ApiValueError(f"conv{dims}d: padding must be a number, 'valid' or 'same', not {padding!r}")
        if padding == "same" and stride not in (1, (1,) * dims, [1] * dims):
            raise ApiValueError(f"conv{dims}d: padding='same' takes a stride of 1 alone, not {stride}")
        return padding, 0
    given = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,) * dims
    if len(given) != dims:
        raise ApiValueError(f"conv{dims}d: padding must be one number or {dims} of them, not {padding!r}")
    return "pad", given if dims == 1 else tuple([n for n in given for _ in range(2)])


def avg_pool1d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:  # fmt: skip
    """Return the mean of every window of [n, c, l]."""
    size, step, pad = [
        value[0] if isinstance(value, (tuple, list)) else value
        for value in (kernel_size, kernel_size if stride is None else stride, padding)
    ]
    return ops.avg_pool1d(input, size, step, pad, ceil_mode, count_include_pad)


def adaptive_max_pool1d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Return the maxima of `output_size` windows that cover [n, c, l], and with `return_indices` their indices."""
    size = output_size[0] if isinstance(output_size, (tuple, list)) else output_size
    if not return_indices:
        return ops.adaptive_max_pool1d(input, size)
    out, places = ops.adaptive_max_pool2d(ops.expand_dims(input, -2), (1, size), True)
    return ops.squeeze(out, -2), ops.squeeze(places, -2)


def batch_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Return every channel normalised: in training by the batch's statistics, which also update the running ones, else
    by the running statistics."""
    channels = (input.shape[1],)
    scale = ops.ones(channels, input.dtype) if weight is None else weight
    shift = ops.zeros(channels, input.dtype) if bias is None else bias
    if (running_mean is None or running_var is None) and not training:
        raise ApiTypeError("batch_norm: running_mean and running_var are needed if training is False")
    mean = ops.zeros(channels, input.dtype) if running_mean is None else running_mean
    variance = ops.ones(channels, input.dtype) if running_var is None else running_var
    return ops.batch_norm(input, mean, variance, scale, shift, training, momentum, eps)
