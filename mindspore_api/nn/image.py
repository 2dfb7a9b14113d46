"""Cells for images, and measures of their quality."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mspc.ir.types import FLOAT32
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import number, positive
from mspc.mindspore_api.nn.function_cells import FunctionCell


class PixelShuffle(FunctionCell):
    """Images of upscale_factor times the height and width, from as many more channels."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__(ops.pixel_shuffle, positive("PixelShuffle", "upscale_factor", upscale_factor))


class PixelUnshuffle(FunctionCell):
    """The reverse of PixelShuffle: blocks of pixels become channels."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__(ops.pixel_unshuffle, positive("PixelUnshuffle", "downscale_factor", downscale_factor))


class Upsample(FunctionCell):
    """Images of another size; arguments as those of `ops.interpolate`.

    Args:
        size, scale_factor: the size of the result, or its ratio to the image's; exactly one of them.
        mode: "nearest", "linear", "bilinear", "trilinear", "bicubic", "area" or "nearest-exact".
    """

    def __init__(
        self, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(ops.interpolate, size, scale_factor, mode, align_corners, recompute_scale_factor)


class ResizeBilinear(Cell):
    """Images [n, c, h, w] of another size by linear interpolation, as in MindSpore 1.

    Args:
        half_pixel_centers: positions are the centres of pixels.
    """

    def __init__(self, half_pixel_centers: bool = False) -> None:
        super().__init__()
        self.half_pixel_centers = half_pixel_centers

    def construct(self, x: Any, size: Any = None, scale_factor: Any = None, align_corners: bool = False) -> Tensor:
        if (size is None) == (scale_factor is None):
            raise ApiValueError("ResizeBilinear: give one of size and scale_factor")
        if size is None:
            size = (x.shape[2] * scale_factor, x.shape[3] * scale_factor)
        return ops.ResizeBilinear(size, align_corners, self.half_pixel_centers)(x)


class Unflatten(Cell):
    """Dimension `axis` split into several, of the sizes `unflattened_size`."""

    def __init__(self, axis: int, unflattened_size: Any) -> None:
        super().__init__()
        self.axis, self.unflattened_size = axis, tuple(unflattened_size)

    def construct(self, input_x: Any) -> Tensor:
        shape = input_x.shape
        axis = self.axis % len(shape)
        return ops.reshape(input_x, (*shape[:axis], *self.unflattened_size, *shape[axis + 1 :]))


def _images(name: str, img1: Any, img2: Any) -> None:
    if len(img1.shape) != 4 or img1.shape != img2.shape:
        raise ApiValueError(f"{name}: takes two batches [n, c, h, w] of one shape, not {img1.shape} and {img2.shape}")


def _greatest(name: str, max_val: Any) -> float:
    found = float(number(name, "max_val", max_val))
    if found <= 0:
        raise ApiValueError(f"{name}: max_val must be above 0, not {max_val!r}")
    return found


class PSNR(Cell):
    """10 log10(max_val^2 / mean squared difference) of every pair of images, [n].

    Args:
        max_val: the greatest value of a pixel.
    """

    def __init__(self, max_val: float = 1.0) -> None:
        super().__init__()
        self.max_val = _greatest("PSNR", max_val)

    def construct(self, img1: Any, img2: Any) -> Tensor:
        _images("PSNR", img1, img2)
        error = ops.mean(ops.square(img1 - img2), (-3, -2, -1))
        return ops.log(self.max_val**2 / error) * (10.0 / math.log(10.0))


class SSIM(Cell):
    """Structural similarity of every pair of images, [n]: luminance times contrast and structure, in windows with
    Gaussian weights. Wang et al. 2004.

    Args:
        max_val: the greatest value of a pixel. filter_size: of the windows; no larger than the images. filter_sigma:
            the Gaussian's deviation. k1, k2: constants added to the means and to the variances.
    """

    def __init__(
        self, max_val: float = 1.0, filter_size: int = 11, filter_sigma: float = 1.5, k1: float = 0.01, k2: float = 0.03
    ) -> None:
        super().__init__()
        most = _greatest("SSIM", max_val)
        self.filter_size = positive("SSIM", "filter_size", filter_size)
        self.c1, self.c2 = ((float(number("SSIM", n, k)) * most) ** 2 for n, k in (("k1", k1), ("k2", k2)))
        sigma = float(number("SSIM", "filter_sigma", filter_sigma))
        if sigma <= 0:
            raise ApiValueError(f"SSIM: filter_sigma must be above 0, not {filter_sigma!r}")
        places = np.arange(filter_size) - (filter_size - 1) / 2
        line = np.exp(-(places**2) / (2 * sigma**2))
        window = np.outer(line, line) / line.sum() ** 2
        self.window = Tensor(window[None, None].astype(np.float32))

    def construct(self, img1: Any, img2: Any) -> Tensor:
        _images("SSIM", img1, img2)
        if min(img1.shape[2:]) < self.filter_size:
            raise ApiValueError(f"SSIM: windows of {self.filter_size} exceed the images {img1.shape[2:]}")
        img1, img2 = ops.cast(img1, FLOAT32), ops.cast(img2, FLOAT32)
        first, second = self._smooth(img1), self._smooth(img2)
        product, squares = first * second * 2.0, ops.square(first) + ops.square(second)
        luminance = (product + self.c1) / (squares + self.c1)
        covariance = self._smooth(img1 * img2) * 2.0 - product
        variance = self._smooth(ops.square(img1) + ops.square(img2)) - squares
        return ops.mean(luminance * (covariance + self.c2) / (variance + self.c2), (-3, -2, -1))

    def _smooth(self, images: Any) -> Any:
        """Return the weighted mean of every window of every channel."""
        n, channels, height, width = images.shape
        planes = ops.reshape(images, (n * channels, 1, height, width))
        means = ops.conv2d(planes, self.window)
        return ops.reshape(means, (n, channels, *means.shape[2:]))
