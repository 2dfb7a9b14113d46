"""These operations on images have the names of MindSpore 1: arrays in, arrays out."""

from __future__ import annotations

from mspc.api.errors import ApiValueError
from mspc.data.dataset.row_values import flag
from mspc.data.dataset.vision import (
    HWC2CHW,
    AutoContrast,
    Border,
    CenterCrop,
    Crop,
    CutOut,
    Equalize,
    HorizontalFlip,
    Inter,
    Invert,
    Normalize,
    Pad,
    RandomAffine,
    RandomColor,
    RandomColorAdjust,
    RandomCrop,
    RandomCropDecodeResize,
    RandomHorizontalFlip,
    RandomPosterize,
    RandomResizedCrop,
    RandomRotation,
    RandomSelectSubpolicy,
    RandomSharpness,
    RandomSolarize,
    RandomVerticalFlip,
    Rescale,
    Resize,
    SliceMode,
    SlicePatches,
    UniformAugment,
    VerticalFlip,
    convert,
)

__all__ = [
    "HWC2CHW",
    "AutoContrast",
    "Border",
    "CenterCrop",
    "Crop",
    "CutOut",
    "Decode",
    "Equalize",
    "HorizontalFlip",
    "Inter",
    "Invert",
    "Normalize",
    "Pad",
    "RandomAffine",
    "RandomColor",
    "RandomColorAdjust",
    "RandomCrop",
    "RandomCropDecodeResize",
    "RandomHorizontalFlip",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSelectSubpolicy",
    "RandomSharpness",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Rescale",
    "Resize",
    "SliceMode",
    "SlicePatches",
    "UniformAugment",
    "VerticalFlip",
]


class Decode(convert.Decode):
    """The RGB image of the bytes of a file. Raises ValueError for rgb=False."""

    def __init__(self, rgb: bool = True) -> None:
        super().__init__()
        if not flag("Decode", "rgb", rgb):
            raise ApiValueError("Decode: rgb=False is not supported")
