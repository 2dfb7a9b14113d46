"""Images of another size: every row and column of the result is a weighted sum of the image's, given by a matrix.

Height and width stay whole on a rank: what a place of the result needs lies anywhere in the image.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType
from mspc.ops.arguments import shape_of
from mspc.ops.bases import require_float
from mspc.ops.convolution.window import listed
from mspc.ops.op import ArrayBackend, Op, Placement, sample

Gradients = Sequence[Value | None]
Shape = tuple[int, ...]


class _Resampling(Op, abstract=True):
    """Class attributes:
    dims: dimensions of the image.
    """

    dims: ClassVar[int] = 2

    def lengths(self, image: Shape) -> Shape:
        """Sizes of the result of an image of these sizes. Raises MspcError for bad attributes."""
        raise NotImplementedError

    def weights(self, length: int, count: int) -> Any:
        """The matrix [count, length] of one dimension, Float64."""
        raise NotImplementedError

    def sides(self, image: Shape) -> tuple[str, str]:
        """The rule's sides of image and result."""
        if len(image) != self.dims + 2:
            raise MspcError(f"{self.name}: the image must have {self.dims + 2} dimensions, but its shape is {image}")
        if 0 in image[2:]:
            raise MspcError(f"{self.name}: the image of shape {image} is empty along height or width")
        counts = self.lengths(image[2:])
        places = " ".join(f"p{d}={n}!" for d, n in enumerate(image[2:]))
        return f"n c {places}", "n c " + " ".join(f"q{d}={n}!" for d, n in enumerate(counts))

    def apply(self, xp: Any, x: Any, image: Shape, back: bool) -> Any:
        """The matrices along all dimensions of an image of these sizes, or their transposes."""
        for d, (length, count) in enumerate(zip(image, self.lengths(image), strict=True)):
            matrix = xp.asarray(_matrix(self, length, count), x.dtype)
            moved = xp.moveaxis(x, d + 2, -1)
            x = xp.moveaxis(xp.matmul(moved, matrix if back else matrix.T), -1, d + 2)
        return xp.ascontiguousarray(x)


@functools.lru_cache(maxsize=256)
def _matrix(op: Any, length: int, count: int) -> Any:
    return op.weights(length, count)


class _Forward(_Resampling, abstract=True):
    linear_in: ClassVar[tuple[int, ...]] = (0,)

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        return super().infer(*types)

    def rule(self, x: TensorType) -> str:
        return " -> ".join(self.sides(x.shape))

    def bprop(self, b: Builder, x: Value, out: Value, dout: Value) -> Gradients:
        return (b.emit(_gradient_of(self)(**self.attributes(), input_size=x.shape), dout),)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.apply(be.xp, inputs[0], inputs[0].shape[2:], back=False)


class _Backward(_Resampling, abstract=True):
    """The gradient of an image of shape `input_size`."""

    input_size: tuple[int, ...] = ()
    linear_in: ClassVar[tuple[int, ...]] = (0,)

    def infer(self, *types: Any) -> Any:
        require_float(self.name, *types)
        return super().infer(*types)

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 2:
            return self, args
        size = shape_of(self.name, "input_size", args[1])
        return replace(self, input_size=size), args[:1]

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
        return (b.emit(_forward_of(self)(**given), second),)

    def localize(self, placement: Placement) -> Op:
        size = placement.out_layouts[0].local_shape(self.input_size)
        return replace(self, input_size=size)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.apply(be.xp, inputs[0], self.input_size[2:], back=True)


class _Adaptive(_Resampling, abstract=True):
    """output_size: sizes of the result, None for that of the image; one integer for all."""

    output_size: Any = 1

    def lengths(self, image: Shape) -> Shape:
        given: Any = self.output_size
        sizes = listed(given, self.dims)
        wrong = [n for n in sizes if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1)]
        if len(sizes) != self.dims or wrong:
            what = f"a positive integer, None, or {self.dims} of them"
            raise MspcError(f"{self.name}: output_size must be {what}, not {given!r}")
        return tuple(n if size is None else size for n, size in zip(image, sizes, strict=True))

    def weights(self, length: int, count: int) -> Any:
        found = np.zeros((count, length))
        for i in range(count):
            first, end = i * length // count, -(-(i + 1) * length // count)
            found[i, first:end] = 1 / (end - first)
        return found


class _Resize(_Resampling, abstract=True):
    """size: height and width of the result. align_corners: the first and last places of image and result are the same.
    half_pixel_centers: places are the centres of pixels; not both."""

    size: Any = (1, 1)
    align_corners: bool = False
    half_pixel_centers: bool = False

    def lengths(self, image: Shape) -> Shape:
        given: Any = self.size
        sizes = listed(given, 1)
        if len(sizes) != 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes):
            raise MspcError(f"{self.name}: size must be two positive integers, not {given!r}")
        if self.align_corners and self.half_pixel_centers:
            raise MspcError(f"{self.name}: align_corners and half_pixel_centers cannot both be True")
        return sizes[0], sizes[1]

    def places(self, length: int, count: int) -> Any:
        """Where in the image every place of the result lies, Float64 [count]."""
        at = np.arange(count, dtype=np.float64)
        if self.align_corners:
            return at * ((length - 1) / (count - 1)) if count > 1 else at * 0
        scale = length / count
        return (at + 0.5) * scale - 0.5 if self.half_pixel_centers else at * scale


class _Bilinear(_Resize, abstract=True):
    def weights(self, length: int, count: int) -> Any:
        at = np.maximum(self.places(length, count), 0)
        low = np.minimum(np.floor(at).astype(int), length - 1)
        high = np.minimum(low + 1, length - 1)
        share = at - low
        found = np.zeros((count, length))
        rows = np.arange(count)
        np.add.at(found, (rows, low), 1 - share)
        np.add.at(found, (rows, high), share)
        return found


class _Nearest(_Resize, abstract=True):
    def weights(self, length: int, count: int) -> Any:
        at = self.places(length, count)
        rounded = at + 0.5 if self.align_corners or self.half_pixel_centers else at
        chosen = np.clip(np.floor(rounded).astype(int), 0, length - 1)
        found = np.zeros((count, length))
        found[np.arange(count), chosen] = 1
        return found


class AdaptiveAvgPool2D(_Adaptive, _Forward):
    """Means of as many windows as the result has places, which cover the image."""

    samples: ClassVar[Any] = (sample((2, 4, 6, 8), output_size=(3, 2)), sample((2, 4, 5, 7), output_size=(None, 3)))


class AdaptiveAvgPool2DGrad(_Adaptive, _Backward):
    """The gradient of AdaptiveAvgPool2D's images."""

    input_size: tuple[int, ...] = ()
    samples: ClassVar[Any] = (sample((2, 4, 3, 2), output_size=(3, 2), input_size=(2, 4, 6, 8)),)


class AdaptiveAvgPool3D(_Adaptive, _Forward):
    """AdaptiveAvgPool2D over depth, height and width."""

    dims: ClassVar[int] = 3
    samples: ClassVar[Any] = (sample((2, 2, 4, 4, 6), output_size=(2, 1, 4)),)


class AdaptiveAvgPool3DGrad(_Adaptive, _Backward):
    """The gradient of AdaptiveAvgPool3D's images."""

    input_size: tuple[int, ...] = ()
    dims: ClassVar[int] = 3
    samples: ClassVar[Any] = (sample((2, 2, 2, 1, 4), output_size=(2, 1, 4), input_size=(2, 2, 4, 4, 6)),)


class ResizeBilinear(_Bilinear, _Forward):
    """Images of another size, by linear interpolation along height and width."""

    samples: ClassVar[Any] = (
        sample((2, 4, 4, 6), size=(8, 3)),
        sample((2, 4, 5, 4), size=(3, 8), align_corners=True),
        sample((2, 4, 4, 4), size=(8, 6), half_pixel_centers=True),
    )


class ResizeBilinearGrad(_Bilinear, _Backward):
    """The gradient of ResizeBilinear's images."""

    input_size: tuple[int, ...] = ()
    samples: ClassVar[Any] = (sample((2, 4, 8, 3), size=(8, 3), input_size=(2, 4, 4, 6)),)


class ResizeNearestNeighbor(_Nearest, _Forward):
    """Images of another size, every place the nearest one of the image."""

    samples: ClassVar[Any] = (
        sample((2, 4, 4, 6), size=(8, 3)),
        sample((2, 4, 5, 4), size=(3, 8), align_corners=True),
    )


class ResizeNearestNeighborGrad(_Nearest, _Backward):
    """The gradient of ResizeNearestNeighbor's images."""

    input_size: tuple[int, ...] = ()
    samples: ClassVar[Any] = (sample((2, 4, 8, 3), size=(8, 3), input_size=(2, 4, 4, 6)),)


_PAIRS: tuple[tuple[type[_Forward], type[_Backward]], ...] = (
    (AdaptiveAvgPool2D, AdaptiveAvgPool2DGrad),
    (AdaptiveAvgPool3D, AdaptiveAvgPool3DGrad),
    (ResizeBilinear, ResizeBilinearGrad),
    (ResizeNearestNeighbor, ResizeNearestNeighborGrad),
)


def _gradient_of(op: _Forward) -> Any:
    return next(backward for forward, backward in _PAIRS if forward is type(op))


def _forward_of(op: _Backward) -> Any:
    return next(forward for forward, backward in _PAIRS if backward is type(op))
