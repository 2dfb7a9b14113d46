"""These functions work on images: convolutions and normalisation."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiValueError
from mspc.api.ops.function_arguments import of_rank, per_dimension


def conv2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Any:  # fmt: skip
    """Images [n, c, h, w] convolved with weights [out, c / groups, kh, kw], plus a bias for every output channel."""
    op = ops.Conv2D(weight.shape[0], weight.shape[2:], 1, pad_mode, padding, stride, dilation, groups)
    out = op(input, weight)
    return out if bias is None else ops.BiasAdd()(out, bias)


def conv1d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Any:  # fmt: skip
    """[n, c, l] convolved with weights [out, c / groups, k]; arguments as conv2d's."""
    single = [value[0] if isinstance(value, (tuple, list)) else value for value in (stride, padding, dilation)]
    sides = (0, 0, single[1], single[1])
    flat = ops.expand_dims(input, 2), ops.expand_dims(weight, 2)
    out = conv2d(flat[0], flat[1], bias, (1, single[0]), pad_mode, sides, (1, single[2]), groups)
    return ops.squeeze(out, 2)


def conv3d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Any:  # fmt: skip
    """[n, c, d, h, w] convolved with weights [out, c / groups, kd, kh, kw]; arguments as conv2d's."""
    op = ops.Conv3D(weight.shape[0], weight.shape[2:], 1, pad_mode, padding, stride, dilation, groups)
    out = op(input, weight)
    return out if bias is None else ops.BiasAdd(data_format="NCDHW")(out, bias)


def conv_transpose2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    """The gradient of a convolution as a function: images [n, c, h, w] and weights [c, out / groups, kh, kw] make
    [n, out, h', w'], with `output_padding` more rows and columns on one side."""
    of_rank("conv_transpose2d", "input", input.shape, 4)
    of_rank("conv_transpose2d", "weight", weight.shape, 4)
    steps = per_dimension("conv_transpose2d", "stride", stride, 2)
    pads = per_dimension("conv_transpose2d", "padding", padding, 2)
    more = per_dimension("conv_transpose2d", "output_padding", output_padding, 2)
    spread = per_dimension("conv_transpose2d", "dilation", dilation, 2)
    kernel = weight.shape[2:]
    size = [
        (input.shape[d + 2] - 1) * steps[d] - 2 * pads[d] + spread[d] * (kernel[d] - 1) + more[d] + 1 for d in range(2)
    ]
    sides = (pads[0], pads[0], pads[1], pads[1])
    op = ops.Conv2DTranspose(weight.shape[0], kernel, "pad", sides, stride=steps, dilation=spread, group=groups)
    out = op(input, weight, (input.shape[0], weight.shape[1] * groups, *size))
    return out if bias is None else ops.BiasAdd()(out, bias)


def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Every image's channels in groups, each normalised to mean 0 and variance 1, times `weight`, plus `bias`; of the
    element type of `input`."""
    n, channels = input.shape[0], input.shape[1]
    if channels % num_groups:
        raise ApiValueError(f"group_norm: {channels} channels are no multiple of num_groups {num_groups}")
    each = channels // num_groups * math.prod(input.shape[2:])
    rows = ops.reshape(input, (n, num_groups, each))
    ones = ops.ones((each,), input.dtype)
    rows, _, _ = ops.LayerNorm(2, 2, eps)(rows, ones, ops.zeros((each,), input.dtype))
    out = ops.reshape(rows, input.shape)
    channel = (channels,) + (1,) * (len(input.shape) - 2)
    if weight is not None:
        out = out * ops.reshape(weight, channel)
    if bias is not None:
        out = out + ops.reshape(bias, channel)
    return ops.cast(out, input.dtype)
