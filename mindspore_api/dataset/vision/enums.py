"""Choices for operations on images: interpolation, and the contents of borders."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Inter(IntEnum):
    """Interpolation between pixels, with the numbers of MindSpore."""

    NEAREST = 0
    BILINEAR = LINEAR = 2
    BICUBIC = CUBIC = 3
    AREA = 4


class Border(StrEnum):
    """Content of the border of a padded image: a value; the pixel at the edge; the image mirrored, without (REFLECT) or
    with (SYMMETRIC) the pixel at the edge."""

    CONSTANT = "constant"
    EDGE = "edge"
    REFLECT = "reflect"
    SYMMETRIC = "symmetric"
