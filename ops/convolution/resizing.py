"""These operators resize images: by the nearest places, or by weighted sums of those around."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.named_layout import NamedLayout, spread
from mspc.ops.control.constraint import constrained
from mspc.ops.convolution.base import Shape
from mspc.ops.convolution.resampling import Backward, Forward, Resampling
from mspc.ops.convolution.window import listed
from mspc.ops.op import Op, RequestedSharding, sample
from mspc.ops.operator_arguments import plain


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
        """An image that a strategy shards along height or width is stored so, and gathered along both: every rank
        computes all places of its images and channels. With align_corners only these two dimensions can be sharded, as
        in MindSpore."""
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
        """Where in the image every place of the result lies, Float64 [count]."""
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

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if len(args) != 2:
            return self, args
        return replace(self, size=plain(args[1])), args[:1]


class _Bilinear(_Resized, abstract=True):
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


class _Nearest(_Resized, abstract=True):
    def weights(self, length: int, count: int) -> Any:
        at = self.places(length, count)
        rounded = at + 0.5 if self.align_corners or self.half_pixel_centers else at
        chosen = np.clip(np.floor(rounded).astype(int), 0, length - 1)
        found = np.zeros((count, length))
        found[np.arange(count), chosen] = 1
        return found


class _Bicubic(_Resized, abstract=True):
    """Keys 1981. As MindSpore has it: with half_pixel_centers the steepness is -0.5, and what lies outside of the image
    has no weight; else -0.75, and the border is repeated."""

    def weights(self, length: int, count: int) -> Any:
        at = self.places(length, count)
        low = np.floor(at).astype(int)
        steep = -0.5 if self.half_pixel_centers else -0.75
        found = np.zeros((count, length))
        for step in range(-1, 3):
            away = np.abs(at - (low + step))
            near = (steep + 2) * away**3 - (steep + 3) * away**2 + 1
            far = steep * (away**3 - 5 * away**2 + 8 * away - 4)
            weight = cast("Any", np.where(away <= 1, near, far))
            if self.half_pixel_centers:
                weight *= (low + step >= 0) & (low + step < length)
            np.add.at(found, (np.arange(count), np.clip(low + step, 0, length - 1)), weight)
        return found / found.sum(axis=1, keepdims=True)


class ResizeBilinear(_Resize, _Bilinear, Forward):
    """Images of another size, by linear interpolation along height and width."""

    samples = (
        sample((2, 4, 4, 6), size=(8, 3)),
        sample((2, 4, 5, 4), size=(3, 8), align_corners=True),
        sample((2, 4, 4, 4), size=(8, 6), half_pixel_centers=True),
    )


class ResizeBilinearGrad(_Resize, _Bilinear, Backward):
    """The gradient of ResizeBilinear's images."""

    input_size: tuple[int, ...] = ()
    samples = (sample((2, 4, 8, 3), size=(8, 3), input_size=(2, 4, 4, 6)),)


class ResizeNearestNeighbor(_Resize, _Nearest, Forward):
    """Images of another size, every place the nearest one of the image."""

    moves = True
    samples = (
        sample((2, 4, 4, 6), size=(8, 3)),
        sample((2, 4, 5, 4), size=(3, 8), align_corners=True),
    )


class ResizeNearestNeighborGrad(_Resize, _Nearest, Backward):
    """The gradient of ResizeNearestNeighbor's images."""

    input_size: tuple[int, ...] = ()
    samples = (sample((2, 4, 8, 3), size=(8, 3), input_size=(2, 4, 4, 6)),)


class ResizeBilinearV2(_Called, _Bilinear, Forward):
    """ResizeBilinear, called as `ResizeBilinearV2(...)(x, size)`."""

    samples = (
        sample((2, 4, 4, 6), size=(8, 3)),
        sample((2, 4, 4, 6), size=(3, 8), half_pixel_centers=True),
    )


class ResizeBilinearV2Grad(_Called, _Bilinear, Backward):
    """The gradient of ResizeBilinearV2's images."""

    input_size: tuple[int, ...] = ()
    samples = (sample((2, 4, 8, 3), size=(8, 3), input_size=(2, 4, 4, 6)),)


class ResizeBicubic(_Called, _Bicubic, Forward):
    """Images of another size, by cubic interpolation. Called as `ResizeBicubic(...)(x, size)`."""

    samples = (
        sample((2, 4, 4, 6), size=(8, 3), half_pixel_centers=True),
        sample((2, 4, 5, 4), size=(3, 8), align_corners=True),
    )


class ResizeBicubicGrad(_Called, _Bicubic, Backward):
    """The gradient of ResizeBicubic's images."""

    input_size: tuple[int, ...] = ()
    samples = (sample((2, 4, 8, 3), size=(8, 3), input_size=(2, 4, 4, 6)),)


class ResizeTrilinear(_Resize, _Bilinear, Forward):
    """ResizeBilinear of [n, c, d, h, w]."""

    dims = 3
    samples = (sample((2, 4, 2, 4, 3), size=(4, 2, 5), half_pixel_centers=True),)


class ResizeTrilinearGrad(_Resize, _Bilinear, Backward):
    """The gradient of ResizeTrilinear's images."""

    input_size: tuple[int, ...] = ()
    dims = 3
    samples = (sample((2, 4, 4, 2, 5), size=(4, 2, 5), input_size=(2, 4, 2, 4, 3)),)


class ResizeNearest3D(_Resize, _Nearest, Forward):
    """ResizeNearestNeighbor of [n, c, d, h, w]."""

    dims = 3
    samples = (sample((2, 4, 2, 4, 3), size=(4, 2, 5)),)


class ResizeNearest3DGrad(_Resize, _Nearest, Backward):
    """The gradient of ResizeNearest3D's images."""

    input_size: tuple[int, ...] = ()
    dims = 3
    samples = (sample((2, 4, 4, 2, 5), size=(4, 2, 5), input_size=(2, 4, 2, 4, 3)),)
