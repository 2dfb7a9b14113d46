"""Choices for operations on images: interpolation, and the contents of borders."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Inter(IntEnum):
    """Interpolation between pixels. Pillow's filters average over all pixels that a new one covers."""

    NEAREST = 0
    ANTIALIAS = 1
    BILINEAR = LINEAR = 2
    BICUBIC = CUBIC = 3
    AREA = 4
    PILCUBIC = 5

    @property
    def filter(self) -> str:
        """The name of Pillow's filter."""
        return _FILTERS[int(self)]


_FILTERS = ("NEAREST", "LANCZOS", "BILINEAR", "BICUBIC", "BOX", "BICUBIC")


class Border(StrEnum):
    """Content of the border of a padded image: a value; the pixel at the edge; the image mirrored, without (REFLECT) or
    with (SYMMETRIC) the pixel at the edge."""

    CONSTANT = "constant"
    EDGE = "edge"
    REFLECT = "reflect"
    SYMMETRIC = "symmetric"
