"""Resizing of arrays with the arithmetic of OpenCV, as in MindSpore. A new pixel is computed from the nearest pixel,
from 2 x 2 or from 4 x 4, however many pixels it covers.

Bytes are computed with integer weights of 11 bits, as in OpenCV, so that results are bit-identical.
"""

from __future__ import annotations

import numpy as np

from mspc.mindspore_api.dataset.vision.enums import Inter

ONE = 2048
"""The weight 1 of bytes."""
SHARPNESS = np.float32(-0.75)
"""The free parameter of the cubic kernel."""
Taps = tuple[list[np.ndarray], np.ndarray]
"""Indices of the old pixels for each new pixel, and Float32 weights [taps, pixels]."""


def resized(images: np.ndarray, size: tuple[int, int], inter: Inter) -> np.ndarray:
    """Return images [rows, height, width] or [rows, height, width, channels] of any numeric type in another size."""
    there = images.shape[1:3]
    if there == tuple(size):
        return images.copy()
    if inter is Inter.NEAREST:
        down, across = (np.minimum(np.arange(m) * (n / m), n - 1).astype(int) for n, m in zip(there, size, strict=True))
        return images[:, down][:, :, across]
    if inter in (Inter.LINEAR, Inter.AREA) and there == (2 * size[0], 2 * size[1]):
        return _halved(images)
    flat = images.reshape(*images.shape[:3], -1)
    if inter is Inter.AREA and there[0] >= size[0] and there[1] >= size[1]:
        # The means over the area that each new pixel covers.
        down, across = (_covered(n, m) for n, m in zip(there, size, strict=True))
        made = _as_type(np.einsum("ih,rhwc,jw->rijc", down, flat, across, optimize=True), flat.dtype)
    else:
        made = _separably(flat, _TAPS[inter](there[0], size[0]), _TAPS[inter](there[1], size[1]))
    return made.reshape(len(images), *size, *images.shape[3:])


def _separably(images: np.ndarray, down: Taps, across: Taps) -> np.ndarray:
    """Return weighted sums along lines, then along columns, of [rows, height, width, channels]."""
    is_bytes = images.dtype == np.uint8
    across_by, down_by = across[1][:, :, None], down[1][:, :, None, None]
    if is_bytes:
        across_by, down_by = (np.rint(by * ONE).astype(np.int32) for by in (across_by, down_by))
        images = images.astype(np.int32)
    lines = sum(images[:, :, at] * by for at, by in zip(across[0], across_by, strict=True))
    if is_bytes and len(down[0]) == 2:  # the order of shifts decides the last bit
        parts = ((lines[:, at] >> 4) * by >> 16 for at, by in zip(down[0], down_by, strict=True))
        return np.clip((sum(parts) + 2) >> 2, 0, 255).astype(np.uint8)
    if is_bytes:
        total = sum(lines[:, at].astype(np.int64) * by for at, by in zip(down[0], down_by, strict=True))
        return np.clip((total + ONE * ONE // 2) // (ONE * ONE), 0, 255).astype(np.uint8)
    made = sum(lines[:, at] * by for at, by in zip(down[0], down_by, strict=True))
    return _as_type(made, images.dtype)


def _as_type(made: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype.kind not in "iu":
        return made.astype(dtype)
    limits = np.iinfo(dtype)
    return np.clip(np.rint(made), limits.min, limits.max).astype(dtype)


def _covered(there: int, wanted: int) -> np.ndarray:
    """Return [wanted, there]: the fraction of each new pixel that each old pixel covers."""
    scale = there / wanted
    begin = np.arange(wanted)[:, None] * scale
    pixels = np.arange(there)[None]
    return np.clip(np.minimum(begin + scale, pixels + 1) - np.maximum(begin, pixels), 0, None) / scale


def _halved(images: np.ndarray) -> np.ndarray:
    """Return means of 2 x 2 pixels."""
    rows, height, width, *channels = images.shape
    parts = images.reshape(rows, height // 2, 2, width // 2, 2, *channels)
    wide = parts.astype(np.int64) if images.dtype.kind in "iu" else parts
    total = wide[:, :, 0, :, 0] + wide[:, :, 0, :, 1] + wide[:, :, 1, :, 0] + wide[:, :, 1, :, 1]
    return ((total + 2) >> 2 if images.dtype.kind in "iu" else total * 0.25).astype(images.dtype)


def _places(there: int, wanted: int) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each new pixel, the old pixel at or before its centre, and its distance from that one."""
    centre = ((np.arange(wanted) + 0.5) * (there / wanted) - 0.5).astype(np.float32)
    at = np.floor(centre).astype(int)
    return at, (centre - at).astype(np.float32)


def _linear(there: int, wanted: int) -> Taps:
    at, behind = _places(there, wanted)
    return _clipped(at, range(2), there), np.stack([1 - behind, behind])


def _cubic(there: int, wanted: int) -> Taps:
    at, x = _places(there, wanted)
    a, y = SHARPNESS, 1 - x
    first = ((a * (x + 1) - 5 * a) * (x + 1) + 8 * a) * (x + 1) - 4 * a
    second = ((a + 2) * x - (a + 3)) * x * x + 1
    third = ((a + 2) * y - (a + 3)) * y * y + 1
    return _clipped(at, range(-1, 3), there), np.stack([first, second, third, 1 - first - second - third])


def _area(there: int, wanted: int) -> Taps:
    """Enlarge an image: a new pixel that covers two pixels is their weighted mean."""
    at = (np.arange(wanted) * (there / wanted)).astype(int)
    part = (np.arange(1, wanted + 1) - (at + 1) * (wanted / there)).astype(np.float32)
    behind = np.where(part <= 0, np.float32(0), part - np.floor(part))
    return _clipped(at, range(2), there), np.stack([1 - behind, behind])


def _clipped(at: np.ndarray, steps: range, there: int) -> list[np.ndarray]:
    return [np.clip(at + step, 0, there - 1) for step in steps]


_TAPS = {Inter.LINEAR: _linear, Inter.CUBIC: _cubic, Inter.AREA: _area}
