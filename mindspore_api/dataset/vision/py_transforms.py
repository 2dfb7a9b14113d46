"""Operations on images with the names of MindSpore 1, in their forms for Pillow images: `Decode` returns a Pillow
image, and `Normalize` works on [channels, height, width], the result of `ToTensor`."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.mindspore_api.dataset.transforms import RandomApply, RandomChoice
from mspc.mindspore_api.dataset.vision import (
    HWC2CHW,
    Border,
    CenterCrop,
    Grayscale,
    Inter,
    Pad,
    RandomColorAdjust,
    RandomCrop,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToPIL,
    ToTensor,
    operations,
)

__all__ = [
    "HWC2CHW",
    "Border",
    "CenterCrop",
    "Decode",
    "Grayscale",
    "Inter",
    "Normalize",
    "Pad",
    "RandomApply",
    "RandomChoice",
    "RandomColorAdjust",
    "RandomCrop",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "ToPIL",
    "ToTensor",
]


class Decode(operations.Decode):
    """The image of Pillow of the bytes of a file."""

    def __init__(self) -> None:
        super().__init__(to_pil=True)


class Normalize(operations.Normalize):
    """(image - mean) / std, one number per channel; channels are first."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__(mean, std, is_hwc=False)
