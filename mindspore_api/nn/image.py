"""Cells for images, and measures of their quality."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import ops
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import positive
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
