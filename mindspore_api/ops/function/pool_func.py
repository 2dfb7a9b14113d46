"""Pooling of images."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import ops
from mspc.mindspore_api.ops.function_arguments import unpooled_sizes


def max_pool2d(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, return_indices: bool = False,
    ceil_mode: bool = False,
) -> Any:  # fmt: skip
    """Return the greatest value of every window, and with `return_indices` its index in the image, Int64; `stride` is
    `kernel_size` by default."""
    moves = kernel_size if stride is None else stride
    if return_indices:
        return ops.MaxPoolWithArgmaxV2(kernel_size, moves, padding, dilation, ceil_mode)(x)
    return ops.MaxPool(kernel_size, moves, "pad", "NCHW", padding, dilation, ceil_mode)(x)


def max_pool3d(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    """Pool as max_pool2d does, over depth, height and width; the last two arguments are exchanged, as in MindSpore."""
    moves = kernel_size if stride is None else stride
    if return_indices:
        return ops.MaxPool3DWithArgmax(kernel_size, moves, padding, dilation, ceil_mode)(x)
    return ops.MaxPool3D(kernel_size, moves, "pad", padding, ceil_mode, "NCDHW", dilation=dilation)(x)


def avg_pool2d(
    input_x: Any, kernel_size: Any = 1, stride: Any = 1, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = 0,
) -> Any:  # fmt: skip
    """Return the mean of every window; `divisor_override` of 0 or None divides by the number of included elements."""
    op = ops.AvgPool(
        kernel_size, stride, "pad", "NCHW", padding, 1, ceil_mode, count_include_pad, divisor_override or None
    )
    return op(input_x)


def avg_pool1d(
    input_x: Any, kernel_size: int = 1, stride: int = 1, padding: int = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:  # fmt: skip
    """Return the mean of every window of [n, c, l]."""
    sides = (0, 0, padding, padding)
    op = ops.AvgPool((1, kernel_size), (1, stride), "pad", "NCHW", sides, 1, ceil_mode, count_include_pad)
    return ops.squeeze(op(ops.expand_dims(input_x, 2)), 2)


def avg_pool3d(
    input_x: Any, kernel_size: Any = 1, stride: Any = 1, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = 0,
) -> Any:  # fmt: skip
    """Return the mean of every window over depth, height and width."""
    op = ops.AvgPool3D(kernel_size, stride, "pad", padding, ceil_mode, count_include_pad, divisor_override)
    return op(input_x)


def max_unpool2d(
    x: Any, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Any:
    """Return zeros with the values of x at the `indices` of images [n, c, h, w] or [c, h, w].

    output_size: height and width, or the whole shape, of the result; by default the smallest size from which a pooling
    with these windows gives the shape of x.
    """
    sizes = unpooled_sizes(x.shape, indices.shape, kernel_size, stride, padding, output_size)
    flat = (*x.shape[:-2], x.shape[-2] * x.shape[-1])
    image = ops.zeros((*x.shape[:-2], sizes[0] * sizes[1]), x.dtype)
    found = ops.ScatterElements(len(flat) - 1)(image, ops.reshape(indices, flat), ops.reshape(x, flat))
    return ops.reshape(found, (*x.shape[:-2], *sizes))


def adaptive_avg_pool2d(input: Any, output_size: Any) -> Any:
    """Return means of `output_size` windows that cover images [n, c, h, w] or [c, h, w]."""
    found = ops.AdaptiveAvgPool2D(output_size)(_batched(input, 4))
    return found if len(input.shape) > 3 else ops.Squeeze(0)(found)


def adaptive_max_pool1d(input: Any, output_size: int) -> Any:
    """Return the maxima of `output_size` windows that cover [n, c, l] or [c, l]."""
    out, _ = ops.AdaptiveMaxPool2D((1, output_size))(_batched(ops.expand_dims(input, -2), 4))
    return ops.reshape(out, (*input.shape[:-1], output_size))


def adaptive_max_pool2d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Return the maxima of `output_size` windows that cover images [n, c, h, w] or [c, h, w], and with `return_indices`
    their indices in the image, Int64."""
    return _adaptive_max(ops.AdaptiveMaxPool2D(output_size), input, 4, return_indices)


def adaptive_max_pool3d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """Pool as adaptive_max_pool2d does, over depth, height and width; indices are Int32."""
    return _adaptive_max(ops.AdaptiveMaxPool3D(output_size), input, 5, return_indices)


def _adaptive_max(op: Any, x: Any, rank: int, return_indices: bool) -> Any:
    out, places = op(_batched(x, rank))
    if len(x.shape) < rank:
        out, places = ops.squeeze(out, 0), ops.squeeze(places, 0)
    return (out, places) if return_indices else out


def _batched(x: Any, rank: int) -> Any:
    return ops.expand_dims(x, 0) if len(x.shape) == rank - 1 else x
