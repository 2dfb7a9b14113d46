"""Operations on images, as `mindspore.dataset.vision`: arrays [height, width, channels] unless said otherwise."""

from mspc.api.dataset.vision.color import Grayscale, RandomColorAdjust, RandomGrayscale
from mspc.api.dataset.vision.convert import Decode, ToNumpy, ToPIL, ToType
from mspc.api.dataset.vision.crops import CenterCrop, Crop, Pad, RandomCrop, RandomResizedCrop
from mspc.api.dataset.vision.enums import Border, Inter, SliceMode
from mspc.api.dataset.vision.flips import HorizontalFlip, RandomHorizontalFlip, RandomVerticalFlip, VerticalFlip
from mspc.api.dataset.vision.patches import SlicePatches
from mspc.api.dataset.vision.pixels import HWC2CHW, Normalize, Rescale, ToTensor
from mspc.api.dataset.vision.resize import Resize

__all__ = [
    "HWC2CHW",
    "Border",
    "CenterCrop",
    "Crop",
    "Decode",
    "Grayscale",
    "HorizontalFlip",
    "Inter",
    "Normalize",
    "Pad",
    "RandomColorAdjust",
    "RandomCrop",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Rescale",
    "Resize",
    "SliceMode",
    "SlicePatches",
    "ToNumpy",
    "ToPIL",
    "ToTensor",
    "ToType",
    "VerticalFlip",
]
