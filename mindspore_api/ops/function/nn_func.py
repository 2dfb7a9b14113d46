"""Functions made from operators for layers: activations, convolutions, normalization and images."""

from __future__ import annotations

import math
from typing import Any

from mspc.ir.types import FLOAT32, FLOAT64, HALVES, INT64, dtype_of
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.ops.checked import TensorLike
from mspc.mindspore_api.ops.function_arguments import (
    check_form,
    check_grid,
    check_number,
    check_rotary,
    element_type,
    least,
    no_such,
    norm_of,
    of_rank,
    per_dimension,
    positive,
    power,
    real_type,
    reduced_axes,
    share_of,
    wide,
)
from mspc.mindspore_api.ops.index_arguments import base_grid, corners, frame_places


def gelu(input: Any, approximate: str = "none") -> Any:
    """Return the input times the normal distribution function of it; by the tanh formula for approximate="tanh"."""
    check_form("gelu", approximate)
    if approximate == "tanh":
        return ops.GeLU()(input)
    _ = ops.cast(input, wide(input.dtype))
    return ops.cast(_ * (ops.Erf()(_ * 0.7071067811865476) + 1.0) * 0.5, input.dtype)


def celu(x: Any, alpha: float = 1.0) -> Any:
    """x if it is positive, alpha (exp(x / alpha) - 1) elsewhere."""
    check_number("celu", "alpha", alpha)
    low = ops.Select()(x > 0, ops.zeros_like(x), x)
    return ops.Select()(x > 0, x, ops.Expm1()(low * (1.0 / alpha)) * alpha)


def tanhshrink(input: Any) -> Any:
    """x - tanh(x)."""
    _ = ops.cast(input, wide(input.dtype))
    return ops.cast(_ - ops.Tanh()(_), input.dtype)


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """x, not below min_val and not above max_val; its derivative at both is 0."""
    check_number("hardtanh", "min_val", min_val)
    check_number("hardtanh", "max_val", max_val, min_val)
    _ = ops.Select()(input <= min_val, ops.full_like(input, min_val), input)
    return ops.Select()(input >= max_val, ops.full_like(input, max_val), _)


def softplus(input: Any, beta: float = 1, threshold: float = 20) -> Any:
    """log(1 + exp(beta x)) / beta; x itself if beta x is above the threshold."""
    check_number("softplus", "beta", beta)
    check_number("softplus", "threshold", threshold)
    scaled = input if beta == 1 else input * beta
    _ = ops.Softplus()(scaled)
    return ops.Select()(scaled > threshold, input, _ if beta == 1 else _ / beta)


def glu(x: Any, axis: int = -1) -> Any:
    """Return the first half along `axis` times the sigmoid of the second."""
    first, second = ops.Split(axis, 2)(x)
    return first * ops.Sigmoid()(second)


def conv2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Any:  # fmt: skip
    """Convolve images [n, c, h, w] with weights [out, c / groups, kh, kw], and add a bias for every output channel."""
    op = ops.Conv2D(weight.shape[0], weight.shape[2:], 1, pad_mode, padding, stride, dilation, groups)
    out = op(input, weight)
    return out if bias is None else ops.BiasAdd()(out, bias)


def conv1d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Any:  # fmt: skip
    """Convolve [n, c, l] with weights [out, c / groups, k]; arguments as conv2d's."""
    single = [value[0] if isinstance(value, (tuple, list)) else value for value in (stride, padding, dilation)]
    sides = (0, 0, single[1], single[1])
    flat = ops.expand_dims(input, 2), ops.expand_dims(weight, 2)
    out = conv2d(flat[0], flat[1], bias, (1, single[0]), pad_mode, sides, (1, single[2]), groups)
    return ops.squeeze(out, 2)


def conv3d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, pad_mode: str = "valid", padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Any:  # fmt: skip
    """Convolve [n, c, d, h, w] with weights [out, c / groups, kd, kh, kw]; arguments as conv2d's."""
    op = ops.Conv3D(weight.shape[0], weight.shape[2:], 1, pad_mode, padding, stride, dilation, groups)
    out = op(input, weight)
    return out if bias is None else ops.BiasAdd(data_format="NCDHW")(out, bias)


def conv_transpose2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    """Return the gradient of a convolution as a function: images [n, c, h, w] and weights [c, out / groups, kh, kw]
    make [n, out, h', w'], with `output_padding` additional rows and columns on one side."""
    of_rank("conv_transpose2d", "input", input.shape, 4)
    of_rank("conv_transpose2d", "weight", weight.shape, 4)
    return transposed_convolution(input, weight, bias, stride, padding, output_padding, groups, dilation)


def transposed_convolution(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: int, dilation: Any
) -> Any:
    dims, kernel = len(weight.shape) - 2, weight.shape[2:]
    name, op = ("conv_transpose2d", ops.Conv2DTranspose) if dims == 2 else ("conv_transpose3d", ops.Conv3DTranspose)
    steps, pads = per_dimension(name, "stride", stride, dims), per_dimension(name, "padding", padding, dims)
    more = per_dimension(name, "output_padding", output_padding, dims)
    spread = per_dimension(name, "dilation", dilation, dims)
    # Additional rows that the stride does not cover were cut off by the padding, and zeros follow them.
    whole = [more[d] < steps[d] for d in range(dims)]
    after = [pads[d] if whole[d] else max(0, pads[d] - more[d]) for d in range(dims)]
    size = [
        (input.shape[d + 2] - 1) * steps[d] - pads[d] - after[d] + spread[d] * (kernel[d] - 1) + more[d] * whole[d] + 1
        for d in range(dims)
    ]
    sides = tuple([(pads, after)[d % 2][d // 2] for d in range(2 * dims)])
    call = op(weight.shape[0], kernel, pad_mode="pad", pad=sides, stride=steps, dilation=spread, group=groups)
    out = call(input, weight, (input.shape[0], weight.shape[1] * groups, *size))
    if not all(whole):
        out = ops.Pad(((0, 0), (0, 0), *[(0, 0 if whole[d] else max(0, more[d] - pads[d])) for d in range(dims)]))(out)
    return out if bias is None else ops.BiasAdd(data_format="NCHW" if dims == 2 else "NCDHW")(out, bias)


def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Return every image's channels in groups, each normalised to mean 0 and variance 1, times `weight`, plus `bias`;
    of the element type of `input`."""
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


def var(input: Any, axis: Any = None, ddof: int | bool = 0, keepdims: bool = False) -> Any:
    """Return the variance along `axis`, None for all: squared distances from the mean, summed and divided by their
    number less `ddof`."""
    if not input.dtype.is_float:
        return ops.cast(var(ops.cast(input, FLOAT64), axis, ddof, keepdims), input.dtype)
    if input.dtype in HALVES:
        return ops.cast(var(ops.cast(input, FLOAT32), axis, ddof, keepdims), input.dtype)
    return _variance(input, reduced_axes("var", axis, len(input.shape)), ddof, bool(keepdims))


def _variance(input: Any, axes: Any, ddof: int, keepdims: bool) -> Any:
    _ = ops.Square()(ops.Sub()(input, ops.ReduceMean(True)(input, axes)))
    if not ddof:
        return ops.ReduceMean(keepdims)(_, axes)
    return ops.Mul()(ops.ReduceSum(keepdims)(_, axes), share_of(input.shape, axes, ddof))


def std(input: Any, axis: Any = None, ddof: int | bool = 0, keepdims: bool = False) -> Any:
    """Return the standard deviation along `axis`, None for all; see `var`."""
    if not input.dtype.is_float:
        return ops.cast(std(ops.cast(input, FLOAT64), axis, ddof, keepdims), input.dtype)
    if input.dtype in HALVES:
        return ops.cast(std(ops.cast(input, FLOAT32), axis, ddof, keepdims), input.dtype)
    return _root(var(input, axis, ddof, keepdims))


def norm(A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Return the norm of vectors along `dim`, or of matrices along two: by default the Euclidean or Frobenius norm.

    ord: None, "fro", "nuc", a number, inf or -inf. dim: None for all dimensions. dtype: computed in this element type.

    Raises ValueError if matrices or vectors have no such norm.
    """
    x = ops.cast(A, element_type(dtype)) if dtype is not None else A
    kind = real_type("norm", x.dtype)
    x = x if x.dtype == kind else ops.cast(x, kind)
    kind, axes = norm_of("norm", ord, dim, len(x.shape))
    if kind == "singular":
        return _of_singular_values(x, ord, axes, keepdim)
    if kind == "lines":
        lines = ops.ReduceSum(True)(ops.Abs()(x), axes[0] if abs(ord) == 1 else axes[1])
        best = ops.ReduceMax(True)(lines, axes) if ord > 0 else ops.ReduceMin(True)(lines, axes)
        return best if keepdim else ops.Squeeze(axes)(best)
    return _of_vectors(x, 2 if kind == "euclid" else ord, axes, keepdim)


def vector_norm(x: Any, ord: Any = 2, axis: Any = None, keepdims: bool = False, *, dtype: Any = None) -> Any:
    """Return the `ord`-th root of the sum of `ord`-th powers along `axis`, None for all; see `norm`. Raise ValueError
    if ord is no number."""
    x = ops.cast(x, element_type(dtype)) if dtype is not None else x
    power("vector_norm", ord)
    real_type("vector_norm", x.dtype)
    return _of_vectors(x, ord, reduced_axes("vector_norm", axis, len(x.shape)), keepdims)


def _of_vectors(x: Any, ord: Any, axes: Any, keepdim: bool) -> Any:
    if ord == float("inf"):
        return ops.ReduceMax(keepdim)(ops.Abs()(x), axes)
    if ord == -float("inf"):
        return ops.ReduceMin(keepdim)(ops.Abs()(x), axes)
    if ord == 0:
        return ops.ReduceSum(keepdim)(ops.cast(ops.NotEqual()(x, 0), x.dtype), axes)
    if x.dtype in HALVES:
        return ops.cast(_of_vectors(ops.cast(x, FLOAT32), ord, axes, keepdim), x.dtype)
    if ord == 1:
        return ops.ReduceSum(keepdim)(ops.Abs()(x), axes)
    if ord == 2:
        return _root(ops.ReduceSum(keepdim)(ops.Square()(x), axes))
    size = ops.Abs()(x)
    if ord < 0:  # 0 if any element is, with the gradient 0
        zero, is_zero = ops.Equal()(size, 0), ops.Equal()(ops.ReduceMin(keepdim)(size, axes), 0)
        total = ops.ReduceSum(keepdim)(ops.Pow()(ops.Select()(zero, 1, size), ord), axes)
        return ops.Select()(is_zero, 0, ops.Pow()(total, 1 / ord))
    powers = _power(size, ord) if 0 < ord < 1 else ops.Pow()(size, ord)
    return _power(ops.ReduceSum(keepdim)(powers, axes), 1 / ord)


def _root(total: Any) -> Any:
    """Return the square root, with the gradient 0 at 0."""
    zero = ops.Equal()(total, 0)
    return ops.Select()(zero, 0, ops.Sqrt()(ops.Select()(zero, 1, total)))


def _power(total: Any, exponent: Any) -> Any:
    """Return the power, with 0 as the value and as the gradient at 0."""
    zero = ops.Equal()(total, 0)
    return ops.Select()(zero, 0, ops.Pow()(ops.Select()(zero, 1, total), exponent))


def _of_singular_values(x: Any, ord: Any, axes: Any, keepdim: bool) -> Any:
    rest = tuple([d for d in range(len(x.shape)) if d not in axes])
    values, _, _ = ops.Svd(compute_uv=False)(ops.Transpose()(x, (*rest, *axes)))
    found = (
        ops.ReduceSum()(values, -1)
        if ord == "nuc"
        else ops.ReduceMax()(values, -1)
        if ord > 0
        else ops.ReduceMin()(values, -1)
    )
    if not keepdim:
        return found
    return ops.Reshape()(found, tuple([1 if d in axes else x.shape[d] for d in range(len(x.shape))]))


def interpolate(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None,
    recompute_scale_factor: Any = None,
) -> Any:  # fmt: skip
    """Return images of another size, [n, c, ...] with one to three further dimensions.

    scale_factor: sizes are multiplied by it and rounded down; if rounding changes them, recompute_scale_factor=True
    must confirm that positions follow from the sizes.

    mode: "nearest", "nearest-exact" (by the centres of pixels) and "area" (means) for all; "linear" for a line,
    "bilinear" and "bicubic" for height and width, "trilinear" for a volume, all with align_corners or by centres.

    Raises ValueError for another mode, unless exactly one of size and scale_factor is given, or for factors that give
    no whole sizes.
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
    """Return [..., c r^2, h, w] as [..., c, h r, w r]: a channel's index within its block is the less significant
    part."""
    r = upscale_factor
    positive("pixel_shuffle", "upscale_factor", r)
    shape = input.shape
    if len(shape) < 3 or shape[-3] % (r * r):
        raise ApiValueError(f"pixel_shuffle: the channels of shape {shape} cannot be shared out to blocks of {r} x {r}")
    lead, channels, (h, w) = shape[:-3], shape[-3] // (r * r), shape[-2:]
    parts = ops.reshape(input, (math.prod(lead), channels, r, r, h, w))
    return ops.reshape(ops.transpose(parts, (0, 1, 4, 2, 5, 3)), (*lead, channels, h * r, w * r))


def pixel_unshuffle(input: Any, downscale_factor: int) -> Any:
    """Return [..., c, h r, w r] as [..., c r^2, h, w], the reverse of pixel_shuffle."""
    r = downscale_factor
    positive("pixel_unshuffle", "downscale_factor", r)
    shape = input.shape
    if len(shape) < 3 or shape[-2] % r or shape[-1] % r:
        raise ApiValueError(f"pixel_unshuffle: an image of shape {shape} has no whole blocks of {r} x {r}")
    lead, channels, h, w = shape[:-3], shape[-3], shape[-2] // r, shape[-1] // r
    parts = ops.reshape(input, (math.prod(lead), channels, h, r, w, r))
    return ops.reshape(ops.transpose(parts, (0, 1, 3, 5, 2, 4)), (*lead, channels * r * r, h, w))


def channel_shuffle(x: Any, groups: int) -> Any:
    """Interleave channels: one of each group in turn."""
    positive("channel_shuffle", "groups", groups)
    shape = x.shape
    if len(shape) < 3 or shape[1] % groups:
        raise ApiValueError(f"channel_shuffle: the channels of shape {shape} cannot be shared out to {groups} groups")
    parts = ops.reshape(x, (shape[0], groups, shape[1] // groups, math.prod(shape[2:])))
    return ops.reshape(ops.transpose(parts, (0, 2, 1, 3)), shape)


def unfold(input: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """Return the elements in every window of images [n, c, h, w] as a column: [n, c times elements of a window,
    positions]."""
    of_rank("unfold", "input", input.shape, 4)
    columns = ops.Im2Col(kernel_size, stride, dilation, padding)(input)
    n, channels, places, positions = columns.shape
    return ops.reshape(columns, (n, channels * places, positions))


def fold(input: Any, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """Return images of height and width `output_size`; each pixel is the sum of the values for it in columns, as
    `unfold` makes them."""
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
    """Return images [n, c, h, w] or [n, c, d, h, w] sampled at the points of a grid [n, h', w', 2] or
    [n, d', h', w', 3], in which -1 and 1 are the ends of the images.

    mode: "bilinear" or "nearest". padding_mode: outside of the image are "zeros", its "border", or its "reflection".
    align_corners: whether the ends are the centres of pixels at the border, or their edges.

    Raises ValueError for another mode, or shapes that do not fit.
    """
    check_grid(input.shape, grid.shape, mode, padding_mode)
    sizes, dims, nearest = input.shape[2:], len(input.shape) - 2, mode == "nearest"
    flat = ops.reshape(grid, (grid.shape[0], 1, -1, dims))
    places = [_sampled_places(flat[..., dims - 1 - d], sizes[d], padding_mode, align_corners) for d in range(dims)]
    lows = [ops.Rint()(at) if nearest else ops.Floor()(at) for at in places]
    pixels = ops.reshape(input, (*input.shape[:2], -1))
    total = None
    for corner in corners(1 if nearest else 2, dims):
        number, weight, inside = 0, 1.0, None
        for d in range(dims):
            at = lows[d] + corner[d]
            valid = ops.LogicalAnd()(at >= 0, at < sizes[d])
            inside = valid if inside is None else ops.LogicalAnd()(inside, valid)
            number = number * sizes[d] + ops.cast(ops.Select()(valid, at, 0.0), INT64)
            share = places[d] - lows[d]
            weight = weight if nearest else weight * (share if corner[d] else 1.0 - share)
        read = ops.GatherD()(pixels, 2, ops.BroadcastTo((*input.shape[:2], number.shape[2]))(number))
        part = ops.Select()(inside, read * weight, 0.0)
        total = part if total is None else total + part
    return ops.reshape(total, (*input.shape[:2], *grid.shape[1:-1]))


def _sampled_places(numbers: Any, size: int, padding_mode: str, align_corners: Any) -> Any:
    """Return the places, in pixels, at which a dimension of this size is read."""
    ends = size - 1 if align_corners else size
    places = (numbers + 1.0) * (ends / 2) - (0.0 if align_corners else 0.5)
    if padding_mode == "zeros":
        return places
    if padding_mode == "reflection":
        low = 0.0 if align_corners else -0.5
        if ends == 0:
            return ops.zeros_like(places)
        away = ops.Abs()(places - low)
        rounds = ops.Floor()(away / ends)
        rest = away - rounds * ends
        places = ops.Select()(ops.Equal()(rounds - ops.Floor()(rounds * 0.5) * 2.0, 1.0), ends - rest, rest) + low
    return ops.clamp(places, 0.0, size - 1.0)


def affine_grid(theta: Any, size: Any, align_corners: bool = False) -> Any:
    """Return the grid at which `grid_sample` reads images for the transformation `theta`, matrices [n, 2, 3] or [n, 3,
    4].

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


def dense(input: Any, weight: Any, bias: Any = None) -> Any:
    """input @ weight.T + bias for rows of any number of dimensions, weight [out, in]."""
    sizes = input.shape
    rows = input if len(sizes) == 2 else ops.Reshape()(input, (-1, sizes[-1]))
    out = ops.MatMul(transpose_b=True)(rows, weight)
    if bias is not None:
        out = ops.BiasAdd()(out, bias)
    return out if len(sizes) == 2 else ops.Reshape()(out, (*sizes[:-1], weight.shape[0]))


def flash_attention_score(
    query: Any, key: Any, value: Any, head_num: int, real_shift: Any = None, drop_mask: Any = None,
    padding_mask: Any = None, attn_mask: Any = None, prefix: Any = None, actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None, keep_prob: float = 1.0, scalar_value: float = 1.0, pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647, inner_precise: int = 0, input_layout: str = "BSH", sparse_mode: int = 0,
) -> Any:  # fmt: skip
    """softmax(scalar_value * query @ key^T + real_shift) @ value for every head; see FlashAttentionScore."""
    score = ops.FlashAttentionScore(
        head_num, keep_prob, scalar_value, pre_tokens, next_tokens, inner_precise, input_layout, sparse_mode
    )
    _, _, _, out = score(
        query, key, value, real_shift, drop_mask, padding_mask, attn_mask, prefix, actual_seq_qlen, actual_seq_kvlen
    )
    return out


def layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Return the input normalised over its last dimensions, those of normalized_shape, times `weight`, plus `bias`."""
    axis = len(input.shape) - len(normalized_shape)
    weight = ops.ones(input.shape[axis:], input.dtype) if weight is None else weight
    bias = ops.zeros(input.shape[axis:], input.dtype) if bias is None else bias
    out, _, _ = ops.LayerNorm(axis, axis, eps)(input, weight, bias)
    return out


def dropout(input: Any, p: float = 0.5, training: bool = True, seed: Any = None) -> Any:
    """Return the input with elements set to 0 with probability p, and the others divided by 1 - p.

    Every call draws different numbers; calls with the same `seed` draw the same.
    """
    check_number("dropout", "p", p, 0.0, 1.0)
    if not training or p == 0.0:
        return input
    out, _ = ops.Dropout(1.0 - p, 0 if seed is None else seed)(input)
    return out


def add_rms_norm(x1: TensorLike, x2: TensorLike, gamma: TensorLike, epsilon: float = 1e-06) -> Any:
    """Return (the root mean square norm of x1 + x2, the reciprocal root, x1 + x2)."""
    total = ops.Add()(x1, x2)
    found, rstd = ops.RmsNorm(epsilon)(total, gamma)
    return found, rstd, total


def add_layer_norm(
    x1: TensorLike, x2: TensorLike, gamma: TensorLike, beta: TensorLike, epsilon: float = 1e-05,
    additional_output: bool = False,
) -> Any:  # fmt: skip
    """Return (the layer norm of x1 + x2, its means, its reciprocal deviations, x1 + x2, or zeros of one element in
    place of the sum unless there is an additional_output)."""
    total = ops.Add()(x1, x2)
    axis = len(total.shape) - len(gamma.shape)
    found, mean, variance = ops.LayerNorm(axis, axis, epsilon)(total, gamma, beta)
    rstd = ops.Rsqrt()(variance + epsilon)
    return found, mean, rstd, total if additional_output else ops.zeros((1,), total.dtype)


def mixed_precision_cast(dst_type: Any, x: object) -> Any:
    """Cast floating-point tensors to `dst_type`, alone or within tuples, lists and dicts; return all else unchanged."""
    if isinstance(x, Tensor):
        return ops.cast(x, dst_type) if dtype_of(x.dtype).is_float else x
    if isinstance(x, dict):
        return {name: mixed_precision_cast(dst_type, value) for name, value in x.items()}
    if isinstance(x, list):
        return [mixed_precision_cast(dst_type, value) for value in x]
    if isinstance(x, tuple):
        return tuple([mixed_precision_cast(dst_type, value) for value in x])
    return x


def rotary_position_embedding(x: TensorLike, cos: TensorLike, sin: TensorLike, mode: int = 0) -> Any:
    """Return x * cos + rotated(x) * sin; rotated(x) is the second half of the last dimension, negated, and then the
    first.

    x has 4 dimensions, and cos and sin broadcast to it; mode must be 0: pairs of neighbours, 1, are not built. Raise
    ValueError for other shapes or another mode.
    """
    check_rotary(x.shape, cos.shape, sin.shape, mode)
    first, second = ops.Split(3, 2)(x)
    return x * cos + ops.Concat(3)((ops.Neg()(second), first)) * sin


def stft(
    x: TensorLike, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Any = None, center: bool = True,
    pad_mode: str = "REFLECT", normalized: bool = False, onesided: Any = None, return_complex: Any = None,
) -> Any:  # fmt: skip
    """Return Fourier transforms of overlapping parts of signals [..., time]: [..., frequencies, parts], complex, or
    with a last dimension of real and imaginary part.

    n_fft: the length of a part. hop_length: the distance of parts, by default n_fft // 4. win_length: the length of the
    window, by default n_fft, centred in a part. window: a vector, by default ones. center: signals are extended by half
    a part on both sides, in one of `pad`'s modes. normalized: divide by the root of n_fft. onesided: only the
    frequencies from 0 on, by default True for real signals. return_complex: by default as the signal.

    Raises ValueError if the lengths do not fit.
    """
    least("stft", "n_fft", n_fft, 1)
    hop = n_fft // 4 if hop_length is None else hop_length
    length = n_fft if win_length is None else win_length
    least("stft", "hop_length", hop, 1)
    if not 0 < length <= n_fft:
        no_such("stft", "win_length", length, f"an integer from 1 to n_fft, which is {n_fft}")
    shape = ops.ones((length,), x.dtype) if window is None else ops.cast(window, x.dtype)
    of_rank("stft", "window", shape.shape, 1)
    before = (n_fft - length) // 2
    shape = ops.pad(shape, (before, n_fft - length - before))
    if center:
        x = _longer(x, n_fft // 2, pad_mode)
    parts = ops.Gather()(x, frame_places("stft", x.shape[-1], n_fft, hop), -1) * shape
    real = not x.dtype.is_complex
    half = real if onesided is None else onesided
    if half and not real:
        no_such("stft", "onesided", True, "False for complex signals")
    transform = ops.rfft if half else ops.fft
    found = ops.swapaxes(transform(parts, norm="ortho" if normalized else None), -1, -2)
    if (not real) if return_complex is None else return_complex:
        return found
    return ops.stack((ops.Real()(found), ops.Imag()(found)), -1)


def _longer(x: Any, size: int, mode: str) -> Any:
    if len(x.shape) > 1:
        return ops.pad(x, (size, size), mode.lower())
    return ops.Squeeze(0)(ops.pad(ops.ExpandDims()(x, 0), (size, size), mode.lower()))
