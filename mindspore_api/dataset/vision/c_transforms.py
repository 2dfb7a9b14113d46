"""Operations on images with the names of MindSpore 1: arrays in, arrays out."""

from __future__ import annotations

from mspc.mindspore_api.dataset.row_values import flag
from mspc.mindspore_api.dataset.vision import (
    HWC2CHW,
    Border,
    CenterCrop,
    Inter,
    Normalize,
    Pad,
    RandomCrop,
    RandomCropDecodeResize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Rescale,
    Resize,
    operations,
)
from mspc.mindspore_api.errors import ApiValueError

__all__ = [
    "HWC2CHW", "Border", "CenterCrop", "Decode", "Inter", "Normalize", "Pad", "RandomCrop",
    "RandomCropDecodeResize", "RandomHorizontalFlip", "RandomResizedCrop", "RandomVerticalFlip", "Rescale",
    "Resize",
]  # fmt: skip


class Decode(operations.Decode):
    """Decodes the bytes of a file to an RGB image. Raise ValueError for rgb=False."""

    def __init__(self, rgb: bool = True) -> None:
        super().__init__()
        if not flag("Decode", "rgb", rgb):
            raise ApiValueError("Decode: rgb=False is not supported")
