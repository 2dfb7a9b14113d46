"""Resizing of images: interpolation and adaptive pooling."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Value
from mspc.ir.layout import NamedLayout, spread
from mspc.ir.types import TensorType
from mspc.ops import gpu
from mspc.ops.bases import operator
from mspc.ops.control.structural import constrained
from mspc.ops.convolution.window import ImageOperator, Shape, last_order, listed, replicated_sides
from mspc.ops.cpu.products import multiplied
from mspc.ops.device import Array, Device, Launch
from mspc.ops.op import (
    REGISTRY,
    ArrayBackend,
    Gradients,
    Op,
    RankPlacement,
    RequestedSharding,
    Sample,
    sample,
)
from mspc.ops.operator_arguments import constant_of, shape_of


class Resampling(ImageOperator, abstract=True):
    """Images are resampled along their dimensions, channel by channel."""

    omitted = ("data_format",)

    def lengths(self, image: Shape) -> Shape:
        """Return the sizes of the result of an image of these sizes. Raise MspcError for bad attributes."""
        raise NotImplementedError

    def weights(self, length: int, count: int) -> Any:
        """Return the matrix [count, length] of one dimension, Float64."""
        raise NotImplementedError

    def sides(self, image: Shape) -> tuple[str, str]:
        """Return the rule's sides of image and result."""
        self.check_image("the image", image)
        if 0 in image[2:]:
            raise MspcError(f"{self.name}: the image of shape {image} is empty along height or width")
        return replicated_sides(image[2:], self.lengths(image[2:]))

    def apply(self, xp: Any, x: Any, image: Shape, back: bool) -> Any:
        """Return the matrices along all dimensions of an image of these sizes, or their transposes."""
        for d, (length, count) in enumerate(zip(image, self.lengths(image), strict=True)):
            matrix = xp.asarray(_matrix(self, length, count), x.dtype)
            x = xp.moveaxis(_weighted(xp, xp.moveaxis(x, d + 2, -1), matrix if back else matrix.T), -1, d + 2)
        return xp.ascontiguousarray(x)

    def launched(self, device: Device, x: Array, out: Array, image: Shape, back: bool) -> Launch | None:
        """Return `apply` as a launch on a GPU, for arrays with their channels second or last in memory."""
        matrices = [_matrix(self, n, count) for n, count in zip(image, self.lengths(image), strict=True)]
        turned = [matrix.T for matrix in matrices] if back else matrices
        if x.flags.c_contiguous and out.flags.c_contiguous:
            return gpu.moves.resample(device, "resample", turned, 1, x, out)
        order = last_order(self.dims + 2)
        return gpu.moves.resample(device, "resample", turned, x.shape[1], x.transpose(order), out.transpose(order))


def _weighted(xp: Any, x: Any, matrix: Any) -> Any:
    """Return x @ matrix without what has weight 0, which would spread NaN and infinity over the whole line."""
    if xp is not np:
        return xp.matmul(x, matrix)
    out = multiplied(x, matrix)
    if not np.isfinite(out).all():
        for i, column in enumerate(matrix.T):
            places = np.flatnonzero(column)
            out[..., i] = x[..., places] @ column[places]
    return out


@functools.lru_cache(maxsize=256)
def _matrix(op: Any, length: int, count: int) -> Any:
    return op.weights(length, count)


class Forward(Resampling, abstract=True):
    """Base of forward operators. The name of the gradient is the operator's with `Grad` appended."""

    linear_in = (0,)
    float_only = True

    def rule(self, x: TensorType) -> str:
        return " -> ".join(self.sides(x.shape))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        backward: Any = REGISTRY[f"{self.name}Grad"]
        return (b.emit(backward(**self.attributes(), input_size=x.shape), dout),)

    def kernel_on(self, be: ArrayBackend) -> Callable[..., Any]:
        return lambda x: self.apply(be.xp, x, x.shape[2:], back=False)

    def launch_on(self, device: Device, out: Array, *inputs: Array) -> Launch | None:
        return self.launched(device, inputs[0], out, inputs[0].shape[2:], back=False)


class Backward(Resampling, abstract=True):
    """The gradient of an image of shape `input_size`."""

    input_size: tuple[int, ...] = ()
    linear_in = (0,)
    sizes_of = ("input_size",)
    float_only = True
    settings = (("input_size", shape_of),)
    optional_settings = 1

    def rule(self, dout: TensorType) -> str:
        image, result = self.sides(self.input_size)
        expected = (*self.input_size[:2], *self.lengths(self.input_size[2:]))
        if dout.shape != expected:
            raise MspcError(
                f"{self.name}: the gradient has shape {dout.shape}, but images {self.input_size} make {expected}"
            )
        return f"{result} -> {image}"

    def bprop(self, b: Builder, dout: Value, out: Value, second: Value) -> Gradients:
        given = self.attributes()
        del given["input_size"]
        return (b.emit(REGISTRY[self.name.removesuffix("Grad")](**given), second),)

    def localize(self, placement: RankPlacement) -> Op:
        size = placement.out_layouts[0].local_shape(self.input_size)
        return replace(self, input_size=size)

    def kernel_on(self, be: ArrayBackend) -> Callable[..., Any]:
        return lambda x: self.apply(be.xp, x, self.input_size[2:], back=True)

    def launch_on(self, device: Device, out: Array, *inputs: Array) -> Launch | None:
        return self.launched(device, inputs[0], out, self.input_size[2:], back=True)


def adaptive_lengths(operator: str, output_size: Any, image: Shape) -> Shape:
    """Return the sizes of the result of images of these sizes. Raise MspcError for a bad `output_size`."""
    sizes = listed(output_size, len(image))
    wrong = [n for n in sizes if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1)]
    if len(sizes) != len(image) or wrong:
        what = f"a positive integer, None, or {len(image)} of them"
        raise MspcError(f"{operator}: output_size must be {what}, not {output_size!r}")
    return tuple(n if size is None else size for n, size in zip(image, sizes, strict=True))


class _Adaptive(Resampling, abstract=True):
    """Adaptive pooling. output_size: sizes of the result, None to keep that of the image; one integer for all
    dimensions."""

    output_size: Any = 1
    data_format: str = ""

    def lengths(self, image: Shape) -> Shape:
        return adaptive_lengths(self.name, self.output_size, image)

    def weights(self, length: int, count: int) -> Any:
        found = np.zeros((count, length))
        for i in range(count):
            first, end = i * length // count, -(-(i + 1) * length // count)
            found[i, first:end] = 1 / (end - first)
        return found


def resampling(
    name: str, text: str, base: type[Resampling], *others: type[Op], samples: tuple[Sample, ...], moves: bool = False,
    **declared: Any,
) -> tuple[type[Resampling], type[Resampling]]:  # fmt: skip
    """Make an operator, and its gradient with a sample made from the operator's first one."""
    made = operator(name, text, base, *others, Forward, samples=samples, moves=moves, **declared)
    first = samples[0]
    image = first.shapes[0]
    dout = (*image[:2], *made(**first.fields).lengths(image[2:]))
    back = (sample(dout, input_size=image, **first.fields),)
    text = f"The gradient of {name}'s images."
    return made, operator(f"{name}Grad", text, base, *others, Backward, samples=back, **declared)


AdaptiveAvgPool2D, AdaptiveAvgPool2DGrad = resampling(
    "AdaptiveAvgPool2D", "Means of as many windows as the result has places, which cover the image.", _Adaptive,
    samples=(sample((2, 4, 6, 8), output_size=(3, 2)), sample((2, 4, 5, 7), output_size=(None, 3))),
)  # fmt: skip
AdaptiveAvgPool3D, AdaptiveAvgPool3DGrad = resampling(
    "AdaptiveAvgPool3D", "AdaptiveAvgPool2D over depth, height and width.", _Adaptive, dims=3,
    samples=(sample((2, 2, 4, 4, 6), output_size=(2, 1, 4)),),
)  # fmt: skip


class _Resized(Resampling, abstract=True):
    """size: sizes of the result. align_corners: the first and last places of image and result are the same.
    half_pixel_centers: places are the centres of pixels; not both."""

    if TYPE_CHECKING:  # fields of the subclasses, in MindSpore's order
        size: Any = (1, 1)
        align_corners: bool = False
        half_pixel_centers: bool = False

    def lengths(self, image: Shape) -> Shape:
        given: Any = self.size
        sizes = listed(given, 1)
        if len(sizes) != self.dims or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes):
            count = {2: "two", 3: "three"}[self.dims]
            raise MspcError(f"{self.name}: size must be {count} positive integers, not {given!r}")
        if self.align_corners and self.half_pixel_centers:
            raise MspcError(f"{self.name}: align_corners and half_pixel_centers cannot both be True")
        return sizes

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        """Store an image that a strategy shards along height or width in that layout, and gather it along both: every
        rank computes all places of its images and channels. With align_corners only these two dimensions can be
        sharded, as in MindSpore."""
        entries = spread(asked.in_strategy or ())
        if len(entries) != 1 or isinstance(entries[0], NamedLayout) or self.align_corners or asked.out_strategy:
            return None
        slice_counts = entries[0]
        if len(slice_counts) != len(inputs[0].shape) or all(shards == 1 for shards in slice_counts[2:]):
            return None
        made = b.emit(self, constrained(b, inputs[0], slice_counts))
        made.in_strategy = ((*slice_counts[:2], *[1] * self.dims),)
        return [made]

    def places(self, length: int, count: int) -> Any:
        """Return the image position of every position of the result, Float64 [count]."""
        at = np.arange(count, dtype=np.float64)
        if self.align_corners:
            return at * ((length - 1) / (count - 1)) if count > 1 else at * 0
        scale = length / count
        return (at + 0.5) * scale - 0.5 if self.half_pixel_centers else at * scale


class _Resize(_Resized, abstract=True):
    size: Any = (1, 1)
    align_corners: bool = False
    half_pixel_centers: bool = False
    data_format: str = ""


class _Called(_Resized, abstract=True):
    """Called as `op(x, size)`."""

    align_corners: bool = False
    half_pixel_centers: bool = False
    size: Any = (1, 1)
    data_format: str = ""
    settings = (("size", constant_of),)
    optional_settings = 1


def linear_matrix(at: Any, length: int) -> Any:
    """Return [places, length]: the weights of the two neighbours of every place of a line."""
    at, rows = np.maximum(at, 0), np.arange(len(at))
    low = np.minimum(np.floor(at).astype(int), length - 1)
    share = at - low
    found = np.zeros((len(at), length))
    np.add.at(found, (rows, low), 1 - share)
    np.add.at(found, (rows, np.minimum(low + 1, length - 1)), share)
    return found


def cubic(distance: Any, steep: float) -> Any:
    """Return the weight of a pixel at a distance. Keys 1981. steep: the slope at distance 1."""
    x = np.abs(distance)
    near = ((steep + 2) * x - (steep + 3)) * x * x + 1
    return np.where(x <= 1, near, np.where(x < 2, (((x - 5) * x + 8) * x - 4) * steep, 0.0))


def cubic_matrix(at: Any, length: int, steep: float, is_inside: bool) -> Any:
    """Return [places, length]: the weights of the four neighbours of every place of a line. is_inside: those outside of
    it have no weight; else the border is repeated."""
    low, rows = np.floor(at).astype(int), np.arange(len(at))
    found = np.zeros((len(at), length))
    for neighbour in (low + step for step in range(-1, 3)):
        weight = cubic(at - neighbour, steep) * ((not is_inside) | ((neighbour >= 0) & (neighbour < length)))
        np.add.at(found, (rows, np.clip(neighbour, 0, length - 1)), weight)
    return found / found.sum(axis=1, keepdims=True)


class _Bilinear(_Resized, abstract=True):
    def weights(self, length: int, count: int) -> Any:
        return linear_matrix(self.places(length, count), length)


class _Nearest(_Resized, abstract=True):
    def weights(self, length: int, count: int) -> Any:
        at = self.places(length, count)
        rounded = at + 0.5 if self.align_corners or self.half_pixel_centers else at
        chosen = np.clip(np.floor(rounded).astype(int), 0, length - 1)
        found = np.zeros((count, length))
        found[np.arange(count), chosen] = 1
        return found


class _Bicubic(_Resized, abstract=True):
    """As in MindSpore: with half_pixel_centers the steepness is -0.5, and places outside of the image have no weight;
    else -0.75, and the border is repeated."""

    def weights(self, length: int, count: int) -> Any:
        half = self.half_pixel_centers
        return cubic_matrix(self.places(length, count), length, -0.5 if half else -0.75, is_inside=half)


ResizeBilinear, ResizeBilinearGrad = resampling(
    "ResizeBilinear", "Images of another size, by linear interpolation along height and width.",
    _Resize, _Bilinear,
    samples=(sample((2, 4, 4, 6), size=(8, 3)), sample((2, 4, 5, 4), size=(3, 8), align_corners=True),
             sample((2, 4, 4, 4), size=(8, 6), half_pixel_centers=True)),
)  # fmt: skip
ResizeNearestNeighbor, ResizeNearestNeighborGrad = resampling(
    "ResizeNearestNeighbor", "Images of another size, every place the nearest one of the image.",
    _Resize, _Nearest, moves=True,
    samples=(sample((2, 4, 4, 6), size=(8, 3)), sample((2, 4, 5, 4), size=(3, 8), align_corners=True)),
)  # fmt: skip
ResizeBilinearV2, ResizeBilinearV2Grad = resampling(
    "ResizeBilinearV2", "ResizeBilinear, called as `ResizeBilinearV2(...)(x, size)`.", _Called, _Bilinear,
    samples=(sample((2, 4, 4, 6), size=(8, 3)), sample((2, 4, 4, 6), size=(3, 8), half_pixel_centers=True)),
)  # fmt: skip
ResizeBicubic, ResizeBicubicGrad = resampling(
    "ResizeBicubic", "Images of another size, by cubic interpolation. Called as `ResizeBicubic(...)(x, size)`.",
    _Called, _Bicubic,
    samples=(sample((2, 4, 4, 6), size=(8, 3), half_pixel_centers=True),
             sample((2, 4, 5, 4), size=(3, 8), align_corners=True)),
)  # fmt: skip
ResizeTrilinear, ResizeTrilinearGrad = resampling(
    "ResizeTrilinear", "ResizeBilinear of [n, c, d, h, w].", _Resize, _Bilinear, dims=3,
    samples=(sample((2, 4, 2, 4, 3), size=(4, 2, 5), half_pixel_centers=True),),
)  # fmt: skip
ResizeNearest3D, ResizeNearest3DGrad = resampling(
    "ResizeNearest3D", "ResizeNearestNeighbor of [n, c, d, h, w].", _Resize, _Nearest, dims=3,
    samples=(sample((2, 4, 2, 4, 3), size=(4, 2, 5)),),
)  # fmt: skip
