"""These functions resize, rearrange and read images."""

from __future__ import annotations

import math
from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.ops.function_arguments import of_rank, per_dimension, positive
from mspc.api.ops.index_arguments import base_grid


def interpolate(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None,
    recompute_scale_factor: Any = None,
) -> Any:  # fmt: skip
    """Images of another size, [n, c, ...] with one to three dimensions behind.

    scale_factor: sizes are multiplied by it and rounded down; where that loses something, recompute_scale_factor=True
    says that places follow from the sizes.

    mode: "nearest", "nearest-exact" (by the centres of pixels) and "area" (means) for all; "linear" of a line,
    "bilinear" and "bicubic" of height and width, "trilinear" of a volume, all with align_corners or by centres.

    Raises:
        ValueError: another mode, not one of size and scale_factor, or factors that give no whole sizes.
    """
    dims = len(input.shape) - 2
    ranks = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}
    if mode not in ranks and mode not in ("nearest", "nearest-exact", "area"):
        known = "'nearest', 'linear', 'bilinear', 'trilinear', 'bicubic', 'area' or 'nearest-exact'"
        raise ApiValueError(f"interpolate: mode must be {known}, not {mode!r}")
    if not 1 <= dims <= 3 or ranks.get(mode, dims) != dims:
        wanted = ranks[mode] + 2 if mode in ranks else "3 to 5"
        raise ApiValueError(
            f"interpolate: the input must have {wanted} dimensions for mode {mode!r}, but its shape is {input.shape}"
        )
    if (size is None) == (scale_factor is None):
        raise ApiValueError("interpolate: give one of size and scale_factor")
    if align_corners and mode not in ranks:
        raise ApiTypeError(f"interpolate: align_corners has no meaning for mode {mode!r}")
    if size is None:
        factors = tuple(scale_factor) if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * dims
        if len(factors) != dims:
            raise ApiValueError(
                f"interpolate: scale_factor {factors} must be {dims} numbers for an input of shape {input.shape}"
            )
        size = tuple(int(n * f) for n, f in zip(input.shape[2:], factors, strict=True))
        exact = [abs(n * f - round(n * f)) < 1e-6 for n, f in zip(input.shape[2:], factors, strict=True)]
        if not (all(exact) or recompute_scale_factor or align_corners or mode == "area"):
            raise ApiValueError(
                f"interpolate: scale_factor {scale_factor} of {tuple(input.shape[2:])} gives no whole sizes: "
                "give size, or recompute_scale_factor=True"
            )
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size,) * dims
    if len(sizes) != dims:
        raise ApiValueError(f"interpolate: size {sizes} must be {dims} numbers for an input of shape {input.shape}")
    if dims == 1:
        out = _resized(ops.expand_dims(input, 2), (1, *sizes), mode, bool(align_corners))
        return ops.squeeze(out, 2)
    return _resized(input, sizes, mode, bool(align_corners))


def _resized(x: Any, sizes: Any, mode: str, align: bool) -> Any:
    volume = len(sizes) == 3
    if mode == "area":
        return ops.AdaptiveAvgPool3D(sizes)(x) if volume else ops.AdaptiveAvgPool2D(sizes)(x)
    if mode == "bicubic":
        return ops.ResizeBicubic(align, not align)(x, sizes)
    if mode in ("nearest", "nearest-exact"):
        exact = mode == "nearest-exact"
        if volume:
            return ops.ResizeNearest3D(sizes, False, exact)(x)
        return ops.ResizeNearestNeighbor(sizes, False, exact)(x)
    if volume:
        return ops.ResizeTrilinear(sizes, align, not align)(x)
    return ops.ResizeBilinear(sizes, align, not align)(x)


def pixel_shuffle(input: Any, upscale_factor: int) -> Any:
    """[..., c r^2, h, w] as [..., c, h r, w r]: a channel's place within its block is the less significant part."""
    r = upscale_factor
    positive("pixel_shuffle", "upscale_factor", r)
    shape = input.shape
    if len(shape) < 3 or shape[-3] % (r * r):
        raise ApiValueError(f"pixel_shuffle: the channels of shape {shape} cannot be shared out to blocks of {r} x {r}")
    lead, channels, (h, w) = shape[:-3], shape[-3] // (r * r), shape[-2:]
    parts = ops.reshape(input, (math.prod(lead), channels, r, r, h, w))
    return ops.reshape(ops.transpose(parts, (0, 1, 4, 2, 5, 3)), (*lead, channels, h * r, w * r))


def pixel_unshuffle(input: Any, downscale_factor: int) -> Any:
    """[..., c, h r, w r] as [..., c r^2, h, w], the reverse of pixel_shuffle."""
    r = downscale_factor
    positive("pixel_unshuffle", "downscale_factor", r)
    shape = input.shape
    if len(shape) < 3 or shape[-2] % r or shape[-1] % r:
        raise ApiValueError(f"pixel_unshuffle: an image of shape {shape} has no whole blocks of {r} x {r}")
    lead, channels, h, w = shape[:-3], shape[-3], shape[-2] // r, shape[-1] // r
    parts = ops.reshape(input, (math.prod(lead), channels, h, r, w, r))
    return ops.reshape(ops.transpose(parts, (0, 1, 3, 5, 2, 4)), (*lead, channels * r * r, h, w))


def channel_shuffle(x: Any, groups: int) -> Any:
    """Channels in the order in which one of each group stands beside one of the next."""
    positive("channel_shuffle", "groups", groups)
    shape = x.shape
    if len(shape) < 3 or shape[1] % groups:
        raise ApiValueError(f"channel_shuffle: the channels of shape {shape} cannot be shared out to {groups} groups")
    parts = ops.reshape(x, (shape[0], groups, shape[1] // groups, math.prod(shape[2:])))
    return ops.reshape(ops.transpose(parts, (0, 2, 1, 3)), shape)


def unfold(input: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """What every window of images [n, c, h, w] looks at as a column: [n, c times places of a window, positions]."""
    of_rank("unfold", "input", input.shape, 4)
    columns = ops.Im2Col(kernel_size, stride, dilation, padding)(input)
    n, channels, places, positions = columns.shape
    return ops.reshape(columns, (n, channels * places, positions))


def fold(input: Any, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """Images of height and width `output_size` whose places are the sums of what columns, as `unfold` makes them, have
    for them."""
    of_rank("fold", "input", input.shape, 3)
    places = math.prod(per_dimension("fold", "kernel_size", kernel_size, 2))
    n, rows, positions = input.shape
    if rows % places:
        raise ApiValueError(f"fold: {rows} rows are no multiple of the {places} places of a window")
    columns = ops.reshape(input, (n, rows // places, places, positions))
    return ops.Col2Im(kernel_size, dilation, padding, stride, output_size)(columns)


def grid_sample(
    input: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: Any = None
) -> Any:
    """Images [n, c, h, w] or [n, c, d, h, w] read at the places of a grid; see GridSampler2D."""
    given = (mode, padding_mode, bool(align_corners))
    return (ops.GridSampler3D(*given) if len(input.shape) == 5 else ops.GridSampler2D(*given))(input, grid)


def affine_grid(theta: Any, size: Any, align_corners: bool = False) -> Any:
    """The grid at which `grid_sample` reads images as `theta`, matrices [n, 2, 3] or [n, 3, 4], turns them.

    size: the shape of the images read, [n, c, h, w] or [n, c, d, h, w].
    """
    places = ops.cast(base_grid("affine_grid", theta.shape, size, align_corners), theta.dtype)
    lengths = tuple(size)[2:]
    found = ops.matmul(places, ops.transpose(theta, (0, 2, 1)))
    return ops.reshape(found, (theta.shape[0], *lengths, len(lengths)))


def without_channels(x: Any, p: float, training: bool, dims: int) -> Any:
    if not dims + 1 <= len(x.shape) <= dims + 2:
        raise ApiValueError(
            f"dropout{dims}d: the input of shape {x.shape} must have {dims + 1} or {dims + 2} dimensions"
        )
    if not training or p == 0.0:
        return x
    return x * ops.dropout(ops.ones((*x.shape[:-dims], *(1,) * dims), x.dtype), p)
