"""Access to Pillow, the library that reads and resizes images. It is imported on first use."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError


def library() -> Any:
    """Return Pillow's `Image` module. Raise MspcError if it is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise MspcError("operations on images need Pillow", notes=["pip install 'mspc[data]'"]) from None
    return Image


def enhancements() -> Any:
    """Return Pillow's module of colour adjustments."""
    library()
    from PIL import ImageEnhance

    return ImageEnhance


def of_images() -> Any:
    """Return Pillow's module of operations on images."""
    library()
    from PIL import ImageOps

    return ImageOps


def image_of(array: np.ndarray) -> Any:
    """Return an array as a Pillow image. Raise TypeError if it is not UInt8, ValueError for another shape than an
    image's."""
    if array.dtype != np.uint8:
        raise ApiTypeError(f"an image of Pillow holds bytes (UInt8), not {array.dtype}")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] in (3, 4)):
        raise ApiValueError(f"an image of Pillow has 2 dimensions, or 1, 3 or 4 channels, not shape {array.shape}")
    return library().fromarray(np.ascontiguousarray(array))


def decoded(name: str, raw: np.ndarray) -> Any:
    """Return the RGB image encoded in the bytes of a file. Raise MspcError for bytes that are no complete image."""
    image = library()
    try:
        return image.open(io.BytesIO(raw.tobytes())).convert("RGB")
    except image.UnidentifiedImageError:
        raise MspcError(f"{name}: these {raw.size} bytes are no image of a known format", kind=ValueError) from None
    except (OSError, SyntaxError, ValueError, EOFError, image.DecompressionBombError) as error:
        raise MspcError(f"{name}: cannot decode the image: {error}", kind=ValueError) from None


def resampled(array: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
    """Resize an array [height, width] or [height, width, channels] of any numeric type to size (height, width). method:
    name of one of Pillow's resampling filters."""
    image = library()
    chosen = getattr(image.Resampling, method)
    height, width = size
    if array.dtype == np.uint8 and (array.ndim == 2 or array.shape[2] in (1, 3)):
        found = np.asarray(image_of(array).resize((width, height), chosen))
        return found.reshape(height, width, *array.shape[2:])
    planes = array.reshape(*array.shape[:2], -1)
    made = [
        np.asarray(image.fromarray(np.ascontiguousarray(planes[..., i], np.float32)).resize((width, height), chosen))
        for i in range(planes.shape[2])
    ]
    result = np.stack(made, -1).reshape(height, width, *array.shape[2:])
    if array.dtype.kind == "f":
        return result.astype(array.dtype)
    limits = np.iinfo(array.dtype) if array.dtype.kind in "iu" else None
    rounded = np.rint(result)
    return (rounded if limits is None else np.clip(rounded, limits.min, limits.max)).astype(array.dtype)
