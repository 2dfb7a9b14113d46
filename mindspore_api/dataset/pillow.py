"""Access to Pillow, the library that reads images. It is imported on first use."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError


def library() -> Any:
    """Return Pillow's `Image` module. Raise MspcError if it is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise MspcError("operations on images need Pillow", notes=["pip install 'mspc[data]'"]) from None
    return Image


def decoded(name: str, raw: np.ndarray) -> Any:
    """Return the RGB image encoded in the bytes of a file. Raise MspcError for bytes that are no complete image."""
    image = library()
    try:
        return image.open(io.BytesIO(raw.tobytes())).convert("RGB")
    except image.UnidentifiedImageError:
        raise MspcError(f"{name}: these {raw.size} bytes are no image of a known format", kind=ValueError) from None
    except (OSError, SyntaxError, ValueError, EOFError, image.DecompressionBombError) as error:
        raise MspcError(f"{name}: cannot decode the image: {error}", kind=ValueError) from None
