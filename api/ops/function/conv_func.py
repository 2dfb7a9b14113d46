"""Functions over images: convolutions, pooling, normalisation, resizing."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError, ApiValueError


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


def max_pool2d(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, return_indices: bool = False,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    """The greatest value of every window; `stride` is `kernel_size` unless given."""
    if return_indices:
        raise ApiValueError("max_pool2d: return_indices=True is not supported; the values are returned alone")
    moves = kernel_size if stride is None else stride
    return ops.MaxPool(kernel_size, moves, "pad", "NCHW", padding, dilation, ceil_mode)(x)


def max_pool3d(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, return_indices: bool = False,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    """The greatest value of every window over depth, height and width."""
    if return_indices:
        raise ApiValueError("max_pool3d: return_indices=True is not supported; the values are returned alone")
    moves = kernel_size if stride is None else stride
    return ops.MaxPool3D(kernel_size, moves, "pad", "NCDHW", padding, dilation, ceil_mode)(x)


def avg_pool2d(
    input_x: Any, kernel_size: Any = 1, stride: Any = 1, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = 0,
) -> Any:  # fmt: skip
    """The mean of every window; `divisor_override` of 0 or None divides by the places that count."""
    op = ops.AvgPool(
        kernel_size, stride, "pad", "NCHW", padding, 1, ceil_mode, count_include_pad, divisor_override or None
    )
    return op(input_x)


def avg_pool1d(
    input_x: Any, kernel_size: int = 1, stride: int = 1, padding: int = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:  # fmt: skip
    """The mean of every window of [n, c, l]."""
    sides = (0, 0, padding, padding)
    op = ops.AvgPool((1, kernel_size), (1, stride), "pad", "NCHW", sides, 1, ceil_mode, count_include_pad)
    return ops.squeeze(op(ops.expand_dims(input_x, 2)), 2)


def avg_pool3d(
    input_x: Any, kernel_size: Any = 1, stride: Any = 1, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = 0,
) -> Any:  # fmt: skip
    """The mean of every window over depth, height and width."""
    op = ops.AvgPool3D(
        kernel_size, stride, "pad", "NCDHW", padding, 1, ceil_mode, count_include_pad, divisor_override or None
    )
    return op(input_x)


def adaptive_avg_pool1d(input: Any, output_size: int) -> Any:
    """Means of `output_size` windows that cover [n, c, l]."""
    return ops.squeeze(ops.AdaptiveAvgPool2D((1, output_size))(ops.expand_dims(input, 2)), 2)


def adaptive_avg_pool2d(input: Any, output_size: Any) -> Any:
    """Means of as many windows as `output_size` says, which cover images [n, c, h, w]."""
    return ops.AdaptiveAvgPool2D(output_size)(input)


def adaptive_avg_pool3d(input: Any, output_size: Any) -> Any:
    """The same over depth, height and width."""
    return ops.AdaptiveAvgPool3D(output_size)(input)


def batch_norm(
    input_x: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Every channel normalised: by the batch's statistics in training, when the running ones follow, else by those."""
    return ops.BatchNorm(training, eps, momentum)(input_x, weight, bias, running_mean, running_var)[0]


def group_norm(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Every image's channels in groups, each normalised to mean 0 and variance 1, times `weight`, plus `bias`."""
    n, channels = x.shape[0], x.shape[1]
    if channels % num_groups:
        raise ApiValueError(f"group_norm: {channels} channels are no multiple of num_groups {num_groups}")
    each = channels // num_groups * math.prod(x.shape[2:])
    rows = ops.reshape(x, (n, num_groups, each))
    ones = ops.ones((each,), x.dtype)
    rows, _, _ = ops.LayerNorm(2, 2, eps)(rows, ones, ops.zeros((each,), x.dtype))
    out = ops.reshape(rows, x.shape)
    channel = (channels,) + (1,) * (len(x.shape) - 2)
    if weight is not None:
        out = out * ops.reshape(weight, channel)
    if bias is not None:
        out = out + ops.reshape(bias, channel)
    return out


def interpolate(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None,
    recompute_scale_factor: Any = None,
) -> Any:  # fmt: skip
    """Images [n, c, h, w] of another size, by the nearest places or, with mode "bilinear", linearly."""
    if mode not in ("nearest", "bilinear"):
        raise ApiValueError(f"interpolate: mode must be 'nearest' or 'bilinear', not {mode!r}")
    if len(input.shape) != 4:
        raise ApiValueError(f"interpolate: the input must have 4 dimensions, but its shape is {input.shape}")
    if (size is None) == (scale_factor is None):
        raise ApiValueError("interpolate: give one of size and scale_factor")
    if size is None:
        factors = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor, scale_factor)
        sizes = tuple(int(n * f) for n, f in zip(input.shape[2:], factors))  # noqa: B905  # read by the front end
    else:
        sizes = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    if mode == "nearest":
        if align_corners:
            raise ApiTypeError("interpolate: align_corners has no meaning for mode 'nearest'")
        return ops.ResizeNearestNeighbor(sizes)(input)
    return ops.ResizeBilinear(sizes, bool(align_corners), not align_corners)(input)
