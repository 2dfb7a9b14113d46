"""PSNR and SSIM measure how alike two batches of images are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mspc.api import ops
from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiValueError
from mspc.api.nn.cell import Cell
from mspc.api.nn.cell_arguments import number, positive
from mspc.ir.types import FLOAT32


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

    def construct(self, img1: Any, img2: Any) -> Any:
        _images("PSNR", img1, img2)
        error = ops.mean(ops.square(img1 - img2), (-3, -2, -1))
        return ops.log(self.max_val**2 / error) * (10.0 / math.log(10.0))


class SSIM(Cell):
    """Structural similarity of every pair of images, [n]: luminance times contrast and structure, in windows that are
    weighted by a Gaussian. Wang et al. 2004.

    Args:
        max_val: the greatest value of a pixel. filter_size: of the windows; no larger than the images. filter_sigma:
            the Gaussian's deviation. k1, k2: constants beside the means and beside the variances.
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

    def construct(self, img1: Any, img2: Any) -> Any:
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
        """The weighted mean of every window of every channel."""
        n, channels, height, width = images.shape
        planes = ops.reshape(images, (n * channels, 1, height, width))
        means = ops.conv2d(planes, self.window)
        return ops.reshape(means, (n, channels, *means.shape[2:]))
