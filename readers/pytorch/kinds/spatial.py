"""Kinds of ATen over images: convolutions, pooling and resampling."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from mspc.ir.types import FLOAT64
from mspc.mindspore_api import mint, ops
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.mint.nn import functional
from mspc.mindspore_api.ops.function.nn_func import transposed_convolution
from mspc.ops.convolution.resizing import cubic, cubic_matrix, linear_matrix
from mspc.readers.pytorch.kinds.complex_numbers import of_parts
from mspc.readers.pytorch.kinds.kind import Kind, row
from mspc.readers.pytorch.kinds.shapes import exchanged

# PyTorch resizes a line of pixels by a matrix of weights, one for each dimension of an image.


SHARP, SOFT = -0.75, -0.5
"""The coefficient of cubic weights, without and with a filter against aliases: aten/src/ATen/native/UpSample.h."""


def _step(size: int, new: int, factor: float | None) -> float:
    """Return how many old pixels a new one covers. factor: by which the line grows, if given."""
    return size / new if factor is None else 1 / factor


def _places(size: int, new: int, corners: bool, factor: float | None) -> np.ndarray:
    """Return [new]: the place of every new pixel in the old line. corners: the outermost pixels stay at their places.
    factor: by which the line grows, if given."""
    places = np.arange(new)
    step = (size - 1) / max(1, new - 1) if corners else _step(size, new, factor)
    return places * step if corners else (places + 0.5) * step - 0.5


@cache
def cubic_weights(size: int, new: int, corners: bool, factor: float | None, dtype: Any) -> np.ndarray:
    """Return [new, size]: the weights of the `size` old pixels in every new one, four neighbours of each; arguments as
    of `_places`."""
    return cubic_matrix(_places(size, new, corners, factor), size, SHARP, is_inside=False).astype(dtype)


@cache
def filtered_weights(kind: str, size: int, new: int, corners: bool, factor: float | None, dtype: Any) -> np.ndarray:
    """Return [new, size]: the same with a filter as wide as one new pixel; kind: "bilinear" or "bicubic"."""
    found = np.zeros((new, size))
    step = (size - 1) / max(1, new - 1) if corners else _step(size, new, factor)
    kernel: Callable[[float], float] = partial(cubic, steep=SOFT) if kind == "bicubic" else _triangle
    reach = (2.0 if kind == "bicubic" else 1.0) * max(step, 1.0)
    for place in range(new):
        centre = step * (place + 0.5)
        first, last = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), size)
        for pixel in range(first, last):
            found[place, pixel] = kernel((pixel - centre + 0.5) / max(step, 1.0))
    return (found / found.sum(axis=1, keepdims=True)).astype(dtype)


@cache
def linear_weights(size: int, new: int, corners: bool, factor: float | None, dtype: Any) -> np.ndarray:
    """Return [new, size]: the weights of the two neighbours of every new pixel; arguments as of `_places`."""
    return linear_matrix(np.minimum(_places(size, new, corners, factor), size - 1), size).astype(dtype)


@cache
def nearest_places(size: int, new: int, factor: float | None, is_exact: bool) -> np.ndarray:
    """Return [new]: the old pixel for every new one, by a product in Float32, as PyTorch rounds it; is_exact: the one
    that contains the middle of the new one."""
    if new == size:
        return np.arange(size)
    step = np.float32(_step(size, new, factor))
    middles = np.arange(new, dtype=np.float32) + np.float32(0.5 if is_exact else 0.0)
    return np.minimum(np.floor(middles * step).astype(np.int64), size - 1)


def _triangle(distance: float) -> float:
    return max(0.0, 1.0 - abs(distance))


def in_batches(dims: Any, function: Any) -> Any:
    """Return a function of a batch of images of so many dimensions, or of one without a batch."""

    def of(input: Any, *args: Any) -> Any:
        if not (input.dtype.is_float or input.dtype.is_complex):  # results are in the exported type again
            input = ops.cast(input, FLOAT64)
            args = [ops.cast(x, FLOAT64) if hasattr(x, "dtype") else x for x in args]
        if len(input.shape) != dims + 1:
            return function(input, *args)
        found = function(ops.ExpandDims()(input, 0), *args)
        if isinstance(found, (tuple, list)):
            return tuple([ops.Squeeze(0)(each) for each in found])
        return ops.Squeeze(0)(found)

    return of


def convolution(
    dims: Any, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any
) -> Any:
    """Return a convolution over one, two or three dimensions of a batch."""
    function = functional.conv1d if dims == 1 else functional.conv2d if dims == 2 else functional.conv3d
    steps, sides, apart = [_several(value, dims) for value in (stride, padding, dilation)]
    return of_either(lambda y, kernel, more: function(y, kernel, more, steps, sides, apart, groups),
                     input, weight, bias)


def of_either(function: Any, input: Any, weight: Any, bias: Any) -> Any:
    """Return a function that is linear in images and in weights, complex ones too, with a bias."""
    if not input.dtype.is_complex:
        return function(input, weight, bias)
    out = of_parts(lambda y, kernel: function(y, kernel, None), (input, weight))
    return out if bias is None else out + ops.Reshape()(bias, (-1,) + (1,) * (len(weight.shape) - 2))


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, (tuple, list)) else value


def _several(value: Any, dims: Any) -> Any:
    if isinstance(value, str):
        return value
    sizes = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return sizes * dims if len(sizes) == 1 else sizes


def transposed(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any, groups: Any, dilation: Any
) -> Any:
    """Return the gradient of a convolution over one, two or three dimensions as a function."""
    dims = len(weight.shape) - 2
    steps, sides, more, apart = [_several(value, dims) for value in (stride, padding, output_padding, dilation)]
    if dims == 1:
        flat = transposed(ops.ExpandDims()(input, -2), ops.ExpandDims()(weight, -2), bias, (1, *steps), (0, *sides),
                          (0, *more), groups, (1, *apart))
        return ops.Squeeze(-2)(flat)
    return of_either(lambda y, kernel, rest: transposed_convolution(y, kernel, rest, steps, sides, more, groups, apart),
                     input, weight, bias)


def put_back(self: Any, indices: Any, output_size: Any) -> Any:
    """Return the elements at their places in images or volumes of a size, among zeros."""
    front = self.shape[: len(self.shape) - len(output_size)]
    zeros = ops.Fill()(self.dtype, (*front, math.prod(output_size)), 0)
    places, values = [ops.Reshape()(x, (*front, -1)) for x in (indices, self)]
    added = mint.scatter_add(zeros, -1, places, values)  # of equal places all have the gradient, as in PyTorch
    found = ops.stop_gradient(mint.scatter(zeros, -1, places, values) - added) + added
    return ops.Reshape()(found, (*front, *output_size))


def any_convolution(
    input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, is_transposed: Any,
    output_padding: Any, groups: Any
) -> Any:
    """Return a convolution, or the gradient of one, as the core of ATen has it."""
    if is_transposed:
        return transposed(input, weight, bias, stride, padding, output_padding, groups, dilation)
    return convolution(len(weight.shape) - 2, input, weight, bias, stride, padding, dilation, groups)


def greatest_of_batch(
    input: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any, with_places: Any = False
) -> Any:
    """Return the greatest element of every window, and its place in the image if that is asked for."""
    return functional.max_pool2d(input, kernel_size, stride or None, padding, dilation, ceil_mode, with_places)


greatest = in_batches(2, greatest_of_batch)


def greatest_along(
    self: Any, size: Any, stride: Any, padding: Any, dilation: Any, ceil: Any, with_places: Any = False
) -> Any:
    """Return the greatest element of every window of a line, and its place if that is asked for."""
    found = greatest_of_batch(
        ops.ExpandDims()(self, -2), (1, _one(size)), (1, _one(stride)) if stride else None, (0, _one(padding)),
        (1, _one(dilation)), ceil, with_places)
    if with_places:
        return ops.Squeeze(-2)(found[0]), ops.Squeeze(-2)(found[1])
    return ops.Squeeze(-2)(found)


def averaged(
    input: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: Any, count_include_pad: Any, divisor: Any
) -> Any:
    """Return the mean of every window."""
    return functional.avg_pool2d(
        input, _several(kernel_size, 2), _several(stride, 2) if stride else None, _several(padding, 2), ceil_mode,
        count_include_pad, divisor)


def averaged_in_space(self: Any, size: Any, stride: Any, padding: Any, ceil: Any, counts: Any, divisor: Any) -> Any:
    """Return the mean of every window of a volume."""
    return functional.avg_pool3d(self, size, stride or None, padding, ceil, counts, divisor)


def averaged_adaptively(self: Any, output_size: Any, dims: int) -> Any:
    """Return the means of so many windows that cover the last `dims` dimensions."""
    sizes = _several(output_size, dims)
    if set(sizes) == {1}:
        return ops.ReduceMean(True)(self, tuple(range(-dims, 0)))
    if sizes == self.shape[-dims:]:
        return self
    return getattr(functional, f"adaptive_avg_pool{dims}d")(self, sizes if dims > 1 else sizes[0])


def sizes_of(input: Any, size: Any, factors: Any) -> Any:
    """Return the sizes of images that are resized, and a factor for each, None if it says no more than the size."""
    old = input.shape[2:]
    by = (None,) * len(old) if factors is None else tuple(factors)
    new = tuple(size) if size is not None else tuple([int(n * f) for n, f in zip(old, by, strict=True)])
    return new, tuple([None if f is None or n * f == m else f for n, f, m in zip(old, by, new, strict=True)])


def along_lines(input: Any, matrices: Any) -> Any:
    """Return every line of each dimension after the second as a product with a matrix of weights."""
    for dim, weights in enumerate(matrices, start=2):
        turned = ops.matmul(ops.swapaxes(input, dim, -1), ops.Transpose()(Tensor(weights), (1, 0)))
        input = ops.swapaxes(turned, dim, -1)
    return input


def resized(mode: Any, input: Any, size: Any, corners: Any, factors: Any) -> Any:
    """Images in another size, linearly between their pixels; by factors that make no whole sizes as these say."""
    new, by = sizes_of(input, size, factors)
    if mode != "trilinear" if corners else by == (None,) * len(by):
        return ops.interpolate(input, new, None, mode, corners)
    kind, lines = input.dtype.numpy, zip(input.shape[2:], new, by, strict=True)
    return along_lines(input, [linear_weights(n, m, corners, f, kind) for n, m, f in lines])


def of_nearest(is_exact: Any, input: Any, size: Any, factors: Any) -> Any:
    """Images in another size, each pixel the nearest one."""
    new, by = sizes_of(input, size, factors)
    lines = [nearest_places(n, m, f, is_exact) for n, m, f in zip(input.shape[2:], new, by, strict=True)]
    evenly = [np.arange(len(places)) * n // len(places) for places, n in zip(lines, input.shape[2:], strict=True)]
    if all(map(np.array_equal, lines, evenly)):
        return ops.interpolate(input, new, None, "nearest")
    for dim, places in enumerate(lines, start=2):
        input = ops.Gather()(input, Tensor(places), dim)
    return input


def resized_by(weights: Any, input: Any, size: Any, corners: Any, factors: Any) -> Any:
    """Images in another size: rows and columns as products with matrices of weights."""
    by = (None, None) if factors is None else tuple(factors)
    old = input.shape[-2:]
    new = [int(n * f) for n, f in zip(old, by, strict=True)] if size is None else size
    lines = zip(old, new, by, strict=True)
    rows, columns = [Tensor(weights(n, m, corners, f, input.dtype.numpy)) for n, m, f in lines]
    return ops.matmul(ops.matmul(rows, input), ops.Transpose()(columns, (1, 0)))


def sampled(input: Any, grid: Any, mode: Any, padding: Any, corners: Any) -> Any:
    """Return images sampled at the points of a grid. mode, padding: numbers of the modes."""
    return functional.grid_sample(
        input, grid, ("bilinear", "nearest", "bicubic")[mode], ("zeros", "border", "reflection")[padding], corners)


def part_means(first: Any, extent: Any, parts: Any, points: Any, length: Any) -> Any:
    """Return [boxes, parts, length]: the weights of the pixels of a line in the mean of `points` points of every part
    of a box, which begins at `first` and is `extent` long; points far outside count as 0."""
    steps = (ops.cast(ops.arange(parts * points), extent.dtype) + 0.5) / (parts * points)
    places = ops.ExpandDims()(ops.ExpandDims()(first, 1) + ops.ExpandDims()(extent, 1) * steps, 2)
    inside = ops.LogicalAnd()(ops.GreaterEqual()(places, -1), ops.LessEqual()(places, length))
    apart = ops.Abs()(ops.clamp(places, 0, length - 1) - ops.cast(ops.arange(length), extent.dtype))
    weights = ops.ReLU()(1 - apart) * ops.cast(inside, extent.dtype)
    return ops.ReduceMean()(ops.Reshape()(weights, (-1, parts, points, length)), 2)


def means_in_boxes(input: Any, rois: Any, scale: Any, height: Any, width: Any, points: Any, aligned: Any) -> Any:
    """Return the means of the parts of boxes [n, 5] of an image's number and two corners: products with the weights of
    rows, of all images, and of columns."""
    if points <= 0:
        raise ApiValueError(f"roi_align: how many points a part has depends on its box for sampling_ratio {points}",
                            notes=["give a number, as 2"])  # fmt: skip
    images, channels, rows, columns = input.shape
    boxes = ops.stop_gradient(rois)
    corners = boxes[:, 1:] * scale - (0.5 if aligned else 0.0)
    extents = corners[:, 2:] - corners[:, :2]
    extents = extents if aligned else ops.clamp(extents, 1.0)
    own = ops.Equal()(boxes[:, :1], ops.cast(ops.arange(images), boxes.dtype))
    down = part_means(corners[:, 1], extents[:, 1], height, points, rows)
    down = ops.ExpandDims()(down, 2) * ops.cast(ops.Reshape()(own, (-1, 1, images, 1)), down.dtype)
    across = part_means(corners[:, 0], extents[:, 0], width, points, columns)
    lines = ops.Reshape()(ops.Transpose()(input, (0, 2, 1, 3)), (images * rows, channels * columns))
    found = ops.matmul(ops.Reshape()(down, (-1, images * rows)), lines)
    found = ops.matmul(ops.Reshape()(found, (-1, height * channels, columns)), exchanged(across, 1, 2))
    return ops.Transpose()(ops.Reshape()(found, (-1, height, channels, width)), (0, 2, 1, 3))


def deformed(
    input: Any, weight: Any, offset: Any, mask: Any, bias: Any, step_h: Any, step_w: Any, pad_h: Any, pad_w: Any,
    apart_h: Any, apart_w: Any, groups: Any, fields: Any, masked: Any,
) -> Any:  # fmt: skip
    """Return a convolution that reads pixels between those of its windows, at offsets for each of `fields` parts of the
    channels."""
    n, channels, rows, columns = input.shape
    height, width = offset.shape[2:]
    taps = weight.shape[2] * weight.shape[3]
    moved = ops.Reshape()(offset, (n * fields, taps, 2, height, width))
    tap_h, tap_w = np.divmod(np.arange(taps).reshape(-1, 1, 1), weight.shape[3])
    below = tap_h * apart_h + np.arange(height).reshape(1, -1, 1) * step_h - pad_h
    right = tap_w * apart_w + np.arange(width).reshape(1, 1, -1) * step_w - pad_w
    y, x = [(moved[:, :, axis] + Tensor(places.astype(input.dtype.numpy))) * (2 / length) + (1 / length - 1)
            for axis, places, length in ((0, below, rows), (1, right, columns))]  # fmt: skip
    grid = ops.Reshape()(ops.stack([x, y], -1), (n * fields, taps * height, width, 2))
    parts = ops.Reshape()(input, (n * fields, channels // fields, rows, columns))
    found = functional.grid_sample(parts, grid, "bilinear", "zeros", False)
    found = ops.Reshape()(found, (n, fields, channels // fields, taps, height * width))
    if masked:
        found = found * ops.Reshape()(mask, (n, fields, 1, taps, height * width))
    found = ops.Reshape()(found, (n, groups, channels // groups * taps, height * width))
    out = ops.matmul(ops.Reshape()(weight, (groups, weight.shape[0] // groups, -1)), found)
    return ops.Reshape()(out, (n, -1, height, width)) + ops.Reshape()(bias, (-1, 1, 1))


SCALES = {1: "scales=None", 2: "scales_h=None, scales_w=None", 3: "scales_d=None, scales_h=None, scales_w=None"}
"""Arguments of kinds that resize lines, images and volumes."""
RESIZED = (
    *((f"{name}{dims}d", dims, "", partial(of_nearest, exact)) for dims in SCALES
      for name, exact in (("upsample_nearest", False), ("_upsample_nearest_exact", True))),
    *((f"upsample_{mode}{dims}d", dims, ", align_corners", partial(resized, mode))
      for dims, mode in enumerate(("linear", "bilinear", "trilinear"), 1)),
    *((name, 2, ", align_corners", partial(resized_by, weights)) for name, weights in (
        ("upsample_bicubic2d", cubic_weights), ("_upsample_bilinear2d_aa", partial(filtered_weights, "bilinear")),
        ("_upsample_bicubic2d_aa", partial(filtered_weights, "bicubic")))),
)  # fmt: skip
"""Kinds that resize: their names, dimensions, the argument for corners if they have it, and functions."""


def resizing(name: str, dims: int, corners: str, function: Any) -> list[Kind]:
    """Return the rows of a kind that resizes: with factors as one argument, and with one for each dimension."""
    plain = 1 + bool(corners)
    return row(f"{name}.vec", f"input, output_size{corners}, scale_factors", function) + row(
        f"{name}.default", f"self, output_size{corners}, {SCALES[dims]}",
        lambda self, *rest: function(self, *rest[:plain], rest[plain:]))  # fmt: skip


_ALONE = re.compile(r"aten\._?(?:conv_transpose|adaptive_max_pool|adaptive_avg_pool|avg_pool)([123])d\.")
"""Kinds that also take an image without a batch."""


def _taken_alone(rows: list[Kind]) -> list[Kind]:
    """Return rows whose kinds take images without a batch, if PyTorch's do."""
    found = [(kind, _ALONE.match(kind.name)) for kind in rows]
    return [
        kind if match is None else replace(kind, target=in_batches(int(match[1]), kind.target)) for kind, match in found
    ]


IMAGES = tuple(map(_taken_alone, (
    *(row(f"conv{dims}d.{form}", f"input, weight, bias=None, stride=1, padding={padding}, dilation=1, groups=1",
          in_batches(dims, partial(convolution, dims)))
      for dims in (1, 2, 3) for form, padding in (("default", "0"), ("padding", "'valid'"))),
    *(row(f"conv_transpose{dims}d.{'default' if dims == 1 else 'input'}",
          "input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1", transposed)
      for dims in (1, 2, 3)),
    row("adaptive_max_pool1d.default", "self, output_size",
        lambda self, output_size: functional.adaptive_max_pool1d(self, output_size, True)),
    row("max_unpool2d.default", "self, indices, output_size", put_back),
    row("max_unpool3d.default", "self, indices, output_size, -stride, -padding", put_back),
    row("affine_grid_generator.default", "theta, size, align_corners", ops.affine_grid),
    row("convolution.default",
        "input, weight, bias, stride, padding, dilation, transposed, output_padding, groups", any_convolution),
    row("max_pool2d.default", "self, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False", greatest),
    row("max_pool2d_with_indices.default", "self, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False",
        lambda *given: greatest(*given, True)),
    *(row(f"max_pool{dims}d{name}.default", "self, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False",
          in_batches(dims, lambda *given, function=function, places=places: function(*given, places)))
      for dims, function in ((1, greatest_along), (3, lambda self, size, stride, *others: ops.max_pool3d(
          self, size, stride or None, *others)))
      for name, places in (("", False), ("_with_indices", True))),
    row("adaptive_max_pool3d.default", "self, output_size", in_batches(3, lambda self, output_size:
        ops.adaptive_max_pool3d(self, tuple(output_size), True))),
    row("fractional_max_pool2d.default fractional_max_pool3d.default", "self, kernel_size, output_size, random_samples",
        lambda self, kernel_size, output_size, random_samples: ops.LibraryFunction("fractional", (
            tuple(kernel_size), tuple(output_size)))(self, random_samples)),
    row("avg_pool1d.default", "self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True",
        lambda self, size, stride, padding, ceil, counts: functional.avg_pool1d(
            self, _one(size), _one(stride) if stride else None, _one(padding), ceil, counts)),
    row("avg_pool3d.default", "self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, "
        "divisor_override=None", averaged_in_space),
    row("adaptive_avg_pool3d.default _adaptive_avg_pool3d.default", "self, output_size",
        partial(averaged_adaptively, dims=3)),
    row("avg_pool2d.default", "self, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, "
        "divisor_override=None", averaged),
    row("adaptive_avg_pool2d.default _adaptive_avg_pool2d.default", "self, output_size",
        partial(averaged_adaptively, dims=2)),
    row("adaptive_avg_pool1d.default", "self, output_size", partial(averaged_adaptively, dims=1)),
    row("adaptive_max_pool2d.default", "self, output_size",
        lambda self, output_size: functional.adaptive_max_pool2d(self, tuple(output_size), True)),
    *(resizing(*each) for each in RESIZED),
    row("col2im.default", "self, output_size, kernel_size, dilation, padding, stride", functional.fold),
    row("grid_sampler.default grid_sampler_2d.default grid_sampler_3d.default",
        "input, grid, interpolation_mode, padding_mode, align_corners",
        sampled),
    row("torchvision.roi_align.default",
        "input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned", means_in_boxes),
    row("torchvision.deform_conv2d.default", "input, weight, offset, mask, bias, stride_h, stride_w, pad_h, pad_w, "
        "dilation_h, dilation_w, groups, offset_groups, use_mask", deformed),
    row("im2col.default", "self, kernel_size, dilation, padding, stride", in_batches(2, functional.unfold)),
)))  # fmt: skip
"""Kinds of images."""
