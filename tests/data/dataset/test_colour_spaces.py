"""Channels in another order, colours in another space, pixels under a matrix; numbers are MindSpore's 2.10 where they
stand as such."""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.dataset import vision
from mspc.dataset.vision import ConvertMode

IMAGE = np.array([[[216, 162, 130], [68, 78, 10]], [[19, 4, 44], [166, 245, 12]]], np.uint8)
COLOURS = (IMAGE / 255).astype(np.float32)


def of(mode: str, image: np.ndarray = IMAGE) -> np.ndarray:
    return vision.ConvertColor(getattr(ConvertMode, mode))(image)


def test_channels_in_another_order() -> None:
    np.testing.assert_array_equal(of("COLOR_RGB2BGR"), IMAGE[..., ::-1])
    assert of("COLOR_RGB2RGBA")[0, 0].tolist() == [216, 162, 130, 255]
    assert of("COLOR_RGB2BGRA")[0, 0].tolist() == [130, 162, 216, 255]
    wide = of("COLOR_RGB2BGRA")
    np.testing.assert_array_equal(of("COLOR_BGRA2RGB", wide), IMAGE)
    np.testing.assert_array_equal(of("COLOR_BGRA2GRAY", wide), of("COLOR_RGB2GRAY"))
    assert of("COLOR_RGB2GRAY")[0].tolist() == [174, 67]
    np.testing.assert_array_equal(of("COLOR_GRAY2RGB", IMAGE[..., 0]), np.repeat(IMAGE[..., :1], 3, 2))
    assert of("COLOR_GRAY2RGBA", IMAGE[..., 0]).shape == (2, 2, 4)


def test_hue_saturation_and_value() -> None:
    found = vision.RgbToHsv(is_hwc=True)(COLOURS)
    wanted = [[colorsys.rgb_to_hsv(*map(float, pixel)) for pixel in row] for row in COLOURS]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(vision.HsvToRgb(is_hwc=True)(found), COLOURS, rtol=1e-5, atol=1e-6)
    first = vision.RgbToHsv()(COLOURS.transpose(2, 0, 1))
    np.testing.assert_array_equal(first.transpose(1, 2, 0), found)
    kinds = [vision.RgbToHsv(True)(COLOURS.astype(kind)).dtype for kind in (np.float64, np.float32, np.uint8)]
    assert kinds == [np.float64, np.float32, np.float32]
    assert vision.RgbToHsv(True)(np.zeros((1, 1, 3), np.float32)).tolist() == [[[0, 0, 0]]]


def test_numbers_of_pixels() -> None:
    found = vision.NormalizePad([100, 110, 120], [10, 20, 30])(IMAGE)
    np.testing.assert_allclose(found[0, 0], [11.6, 2.6, 1 / 3, 0], rtol=1e-5)
    halves = vision.NormalizePad([100, 110, 120], [10, 20, 30], "float16", False)(IMAGE.transpose(2, 0, 1))
    assert [halves.shape, halves.dtype] == [(4, 2, 2), np.float16]
    turned = vision.LinearTransformation(np.eye(12) * 2, np.ones(12))(IMAGE.astype(np.float32))
    np.testing.assert_array_equal(turned, (IMAGE.astype(np.float32) - 1) * 2)
    assert vision.RandomResize((4, 6))(IMAGE).shape == (4, 6, 3)


MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: vision.ConvertColor(4), "ConvertColor: convert_mode must be a ConvertMode, not 4"),
    (lambda: of("COLOR_BGRA2BGR"),
     "ConvertColor: COLOR_BGRA2BGR takes 4 channels, and the image has shape (2, 2, 3)"),
    (lambda: vision.RgbToHsv()(IMAGE), "RgbToHsv: the image has no 3 channels in its shape (2, 2, 3)"),
    (lambda: vision.NormalizePad([1], [1], "int8"), "NormalizePad: dtype must be 'float32' or 'float16', not 'int8'"),
    (lambda: vision.LinearTransformation(np.eye(2), np.ones(3)),
     "LinearTransformation: a matrix of shape (2, 2) and a mean of shape (3,) must be (n, n) and (n,)"),
    (lambda: vision.LinearTransformation(np.eye(2), np.ones(2))(IMAGE),
     "LinearTransformation: an image of 12 numbers for a mean of 2"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_named(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises((ApiTypeError, ApiValueError)) as caught:
        wrong()
    assert caught.value.message == message
