"""`mindspore.dataset.vision`: operations on images, arrays [height, width, channels] unless said otherwise."""

from __future__ import annotations

from mspc.api.members import Listed
from mspc.data.dataset.own_operations import PyTensorOperation  # noqa: F401  # for scripts

_members = Listed(
    __name__,
    {
        "affine": "Affine RandomAffine",
        "augment": "RandAugment RandomSelectSubpolicy TrivialAugmentWide UniformAugment",
        "color": "Grayscale RandomColorAdjust RandomGrayscale",
        "colour_spaces": "ConvertColor ConvertMode HsvToRgb LinearTransformation NormalizePad RandomResize RgbToHsv",
        "convert": "Decode RandomCropDecodeResize ToNumpy ToPIL ToType",
        "crops": "CenterCrop Crop Pad RandomCrop RandomResizedCrop",
        "enhance": (
            "AdjustBrightness AdjustContrast AdjustGamma AdjustHue AdjustSaturation AdjustSharpness AutoContrast "
            "Equalize Invert Posterize RandomAdjustSharpness RandomAutoContrast RandomColor RandomEqualize "
            "RandomInvert RandomLighting RandomPosterize RandomSharpness RandomSolarize Solarize"
        ),
        "enums": "Border Inter SliceMode",
        "flips": "HorizontalFlip RandomHorizontalFlip RandomVerticalFlip VerticalFlip",
        "patches": "SlicePatches",
        "pixels": "HWC2CHW Normalize Rescale ToTensor",
        "resize": "Resize",
        "several": "FiveCrop TenCrop",
        "turned": "CutOut Erase GaussianBlur PadToSize RandomErasing RandomRotation ResizedCrop Rotate",
    },
)
__getattr__ = _members.find
__dir__ = _members.names
