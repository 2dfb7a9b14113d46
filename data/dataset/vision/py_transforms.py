"""Operations on images under the names of MindSpore 1, in their forms for images of Pillow: `Decode` gives one, and
`Normalize` works on [channels, height, width], which `ToTensor` makes of it."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.data.dataset.transforms import RandomApply, RandomChoice, RandomOrder
from mspc.data.dataset.vision import (
    HWC2CHW,
    AutoContrast,
    Border,
    CenterCrop,
    Equalize,
    FiveCrop,
    Grayscale,
    Inter,
    Invert,
    Pad,
    RandomAffine,
    RandomColor,
    RandomColorAdjust,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomSharpness,
    RandomVerticalFlip,
    Resize,
    TenCrop,
    ToPIL,
    ToTensor,
    ToType,
    UniformAugment,
    convert,
    pixels,
)

__all__ = [
    "HWC2CHW",
    "AutoContrast",
    "Border",
    "CenterCrop",
    "Decode",
    "Equalize",
    "FiveCrop",
    "Grayscale",
    "Inter",
    "Invert",
    "Normalize",
    "Pad",
    "RandomAffine",
    "RandomApply",
    "RandomChoice",
    "RandomColor",
    "RandomColorAdjust",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomOrder",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSharpness",
    "RandomVerticalFlip",
    "Resize",
    "TenCrop",
    "ToPIL",
    "ToTensor",
    "ToType",
    "UniformAugment",
]


class Decode(convert.Decode):
    """The image of Pillow of the bytes of a file."""

    def __init__(self) -> None:
        super().__init__(to_pil=True)


class Normalize(pixels.Normalize):
    """(image - mean) / std, one number per channel; channels are first."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__(mean, std, is_hwc=False)
