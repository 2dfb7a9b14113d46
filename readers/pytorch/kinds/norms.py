"""Kinds of normalisations."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.mint.nn import functional
from mspc.readers.pytorch.kinds.kind import row


def softmax(self: Any, dim: Any, dtype: Any = None) -> Any:
    """exp(x) over its sum along a dimension."""
    return ops.Softmax(dim)(self if dtype is None else ops.cast(self, dtype))


def log_softmax(self: Any, dim: Any, dtype: Any = None) -> Any:
    """The logarithm of the softmax."""
    return ops.LogSoftmax(dim)(self if dtype is None else ops.cast(self, dtype))


def layer_norm(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any) -> Any:
    """Normalised over the last dimensions."""
    return functional.layer_norm(input, tuple(normalized_shape), weight, bias, eps)


def layer_norm_with_statistics(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any) -> Any:
    """(the normalised tensor, mean, 1 / standard deviation)."""
    sizes = tuple(normalized_shape)
    axis = len(input.shape) - len(sizes)
    scale = ops.ones(sizes, input.dtype) if weight is None else weight
    shift = ops.zeros(sizes, input.dtype) if bias is None else bias
    out, mean, variance = ops.LayerNorm(axis, axis, eps)(input, scale, shift)
    return out, mean, ops.Rsqrt()(variance + eps)


def rms_norm(input: Any, normalized_shape: Any, weight: Any, eps: Any) -> Any:
    """x over the root of the mean of its squares along the last dimensions, times a weight."""
    sizes = tuple(normalized_shape)
    scale = ops.ones(sizes, input.dtype) if weight is None else weight
    small = 1.1920928955078125e-07 if eps is None else eps
    if len(sizes) == 1:
        out, _ = ops.RmsNorm(small)(input, scale)
        return out
    dims = tuple(range(len(input.shape) - len(sizes), len(input.shape)))
    return input * ops.Rsqrt()(ops.ReduceMean(True)(ops.Square()(input), dims) + small) * scale


def batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: Any, momentum: Any, eps: Any
) -> Any:
    """(every channel normalised, the new running mean, the new running variance); by the batch's statistics in
    training, else by the running ones, which then stay."""
    channels = (input.shape[1],)
    scale = ops.ones(channels, input.dtype) if weight is None else weight
    shift = ops.zeros(channels, input.dtype) if bias is None else bias
    mean = ops.zeros(channels, input.dtype) if running_mean is None else running_mean
    variance = ops.ones(channels, input.dtype) if running_var is None else running_var
    return ops.batch_norm(input, mean, variance, scale, shift, training, momentum, eps), None, None


def instance_norm(input: Any, weight: Any, bias: Any, use_input_stats: Any, eps: Any) -> Any:
    """Every channel of every image normalised by itself."""
    return functional.group_norm(input, input.shape[1], weight, bias, eps)


NORMS = (
    row("softmax.int", "self, dim, dtype=None", softmax),
    row("_softmax.default", "self, dim, -half_to_float", softmax),
    row("_safe_softmax.default", "self, dim, dtype=None", softmax),
    row("log_softmax.int", "self, dim, dtype=None", log_softmax),
    row("_log_softmax.default", "self, dim, -half_to_float", log_softmax),
    row("layer_norm.default", "input, normalized_shape, weight=None, bias=None, eps=1e-05, -cudnn_enable=True",
        layer_norm),
    row("native_layer_norm.default", "input, normalized_shape, weight, bias, eps", layer_norm_with_statistics),
    row("rms_norm.default", "input, normalized_shape, weight=None, eps=None", rms_norm),
    row("group_norm.default", "input, num_groups, weight=None, bias=None, eps=1e-05, -cudnn_enabled=True",
        functional.group_norm),
    row("batch_norm.default",
        "input, weight, bias, running_mean, running_var, training, momentum, eps, -cudnn_enabled=True", batch_norm,
        writes="running_mean running_var"),
    row("instance_norm.default",
        "input, weight, bias, -running_mean, -running_var, use_input_stats, -momentum, eps, -cudnn_enabled",
        instance_norm),
)  # fmt: skip
"""Kinds of normalisations."""
