"""These operations turn bytes of files, images of Pillow and arrays into each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError
from mspc.data.dataset.nodes.block import Column
from mspc.data.dataset.operation import EachOperation, Operation, as_array, is_image
from mspc.data.dataset.pillow import decoded, image_of
from mspc.data.dataset.pipeline_random import PipelineDraws
from mspc.data.dataset.row_values import flag
from mspc.data.dataset.transforms import TypeCast
from mspc.data.dataset.vision.crops import RandomResizedCrop


class Decode(EachOperation):
    """The RGB image [height, width, 3] of the bytes of a file (JPEG, PNG, BMP, ...). to_pil: an image of Pillow."""

    def __init__(self, to_pil: bool = False) -> None:
        self.to_pil = flag("Decode", "to_pil", to_pil)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if value.ndim != 1 or value.dtype.kind not in "iu" or value.dtype.itemsize != 1:
            raise ApiTypeError(
                f"Decode: takes the bytes of a file, one dimension of UInt8, not shape {value.shape} of {value.dtype}"
            )
        return np.asarray(decoded("Decode", value))

    def one(self, value: Any, draws: PipelineDraws) -> Any:
        raw = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else as_array("Decode", value)
        found = self.single(raw, draws)
        return image_of(found) if self.to_pil else found

    def column(self, values: Column, draws: PipelineDraws) -> Column:
        if not self.to_pil:
            return super().column(values, draws)
        return [self.one(value, draws) for value in values]


class ToPIL(Operation):
    """An array of bytes as an image of Pillow."""

    def one(self, value: Any, draws: PipelineDraws) -> Any:
        return value if is_image(value) else image_of(as_array("ToPIL", value))

    def column(self, values: Column, draws: PipelineDraws) -> Column:
        return [self.one(value, draws) for value in values]


class ToNumpy(Operation):
    """An image of Pillow as an array [height, width, channels]."""

    def many(self, values: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return values


class ToType(TypeCast):
    """Another element type."""


class RandomCropDecodeResize(RandomResizedCrop):
    """A random part, in another size, of the RGB image of the bytes of a file. Arguments as of RandomResizedCrop."""

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return super().single(Decode().single(value, draws), draws)
