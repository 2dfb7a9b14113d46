"""Colours changed point by point, turns, blurs and parts taken out: against Pillow's own, against NumPy, and what is no
argument of theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc.dataset as ds
from mspc.dataset import vision
from mspc.ir.diagnostics import MspcError

PIL = pytest.importorskip("PIL.Image")
from PIL import ImageOps  # noqa: E402  # where Pillow is

IMAGE = np.random.default_rng(4).integers(0, 256, (20, 24, 3)).astype(np.uint8)


def test_operations_on_points() -> None:
    image = PIL.fromarray(IMAGE)
    for made, expected in (
        (vision.Invert(), 255 - IMAGE),
        (vision.Posterize(3), IMAGE & 0b11100000),
        (vision.Solarize((50, 150)), np.where((IMAGE >= 50) & (IMAGE <= 150), 255 - IMAGE, IMAGE)),
        (vision.AutoContrast(10.0), np.asarray(ImageOps.autocontrast(image, 10.0))),
        (vision.Equalize(), np.asarray(ImageOps.equalize(image))),
        (vision.AdjustBrightness(0.0), np.zeros_like(IMAGE)),
        (vision.AdjustBrightness(1.0), IMAGE),
        (vision.AdjustGamma(1.0), IMAGE),
        (vision.AdjustSaturation(0.0), np.repeat(np.asarray(image.convert("L"))[..., None], 3, -1)),
        (vision.AdjustContrast(0.0), np.full_like(IMAGE, int(np.asarray(image.convert("L")).mean() + 0.5))),
    ):
        np.testing.assert_array_equal(made(IMAGE), expected, type(made).__name__)
    assert np.abs(vision.AdjustHue(0.0)(IMAGE).astype(int) - IMAGE).max() < 10
    assert vision.AdjustSharpness(2.0)(image).size == image.size
    assert vision.Invert()(IMAGE[..., :1]).shape == (20, 24, 1)


def test_turns_blurs_and_parts() -> None:
    np.testing.assert_array_equal(vision.Rotate(90.0, expand=True)(IMAGE), np.rot90(IMAGE))
    np.testing.assert_array_equal(vision.Rotate(30.0)(IMAGE), np.asarray(PIL.fromarray(IMAGE).rotate(30)))
    flat = np.full((9, 9, 3), 7, np.uint8)
    np.testing.assert_array_equal(vision.GaussianBlur(5, 1.5)(flat), flat)
    point = np.zeros((5, 5), np.float64)
    point[2, 2] = 1
    weights = np.exp(-np.array([1.0, 0, 1]) / 2) / np.exp(-np.array([1.0, 0, 1]) / 2).sum()
    np.testing.assert_allclose(vision.GaussianBlur(3, 1.0)(point)[1:4, 1:4], np.outer(weights, weights))
    erased = vision.Erase(1, 2, 3, 4, 9)(IMAGE)
    assert (erased[1:4, 2:6] == 9).all()
    assert (erased != IMAGE).sum() <= 36
    assert vision.ResizedCrop(1, 2, 8, 8, (4, 5))(IMAGE).shape == (4, 5, 3)
    padded = vision.PadToSize((22, 30), fill_value=3)(IMAGE)
    np.testing.assert_array_equal(padded[1:21, 3:27], IMAGE)
    assert (padded[0] == 3).all()


RANDOM: list[Callable[[], Any]] = [
    lambda: vision.RandomColor((0.2, 1.8)), lambda: vision.RandomSharpness((0.2, 1.8)),
    lambda: vision.RandomSolarize((10, 200)), lambda: vision.RandomPosterize((1, 4)),
    lambda: vision.RandomLighting(0.5),
    lambda: vision.CutOut(5, 2), lambda: vision.RandomRotation(40), lambda: vision.RandomInvert(0.5),
    lambda: vision.RandomAutoContrast(20.0, None, 0.5), lambda: vision.RandomEqualize(0.5),
    lambda: vision.RandomAdjustSharpness(3.0, 0.5),
]  # fmt: skip


@pytest.mark.parametrize("make", RANDOM)
def test_random_ones_draw_again_for_every_row_and_epoch(make: Callable[[], Any]) -> None:
    rows = ds.NumpySlicesDataset(np.repeat(IMAGE[None], 6, 0), ["image"], shuffle=False).map(make(), "image")
    first, second = ([row[0].asnumpy() for row in rows.create_tuple_iterator()] for _ in range(2))
    assert all(row.shape == IMAGE.shape and row.dtype == np.uint8 for row in first)
    assert len({row.tobytes() for row in [*first, *second]}) > 1


def test_random_erasing() -> None:
    image = np.ones((3, 16, 16), np.float32)
    erased = vision.RandomErasing(1.0, (0.2, 0.3), (1.0, 1.0), (5, 6, 7))(image)
    share = (erased[0] == 5).mean()
    assert 0.1 < share < 0.4
    assert ((erased[0] == 5) == (erased[2] == 7)).all()
    np.testing.assert_array_equal(vision.RandomErasing(0.0)(image), image)
    assert vision.RandomErasing(1.0, value="random")(image).std() > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vision.AdjustBrightness(-1), "AdjustBrightness: brightness_factor -1 must not be negative"),
        (lambda: vision.AdjustHue(0.7), "AdjustHue: hue_factor 0.7 must be from -0.5 to 0.5"),
        (lambda: vision.AutoContrast(60), "AutoContrast: cutoff 60 must be from 0 to 50, without 50"),
        (lambda: vision.Posterize(9), "Posterize: bits 9 must be at most 8"),
        (lambda: vision.GaussianBlur(4), "GaussianBlur: kernel_size 4 must be an odd number, or two"),
        (lambda: vision.RandomRotation((3, 1)), "RandomRotation: degrees (3, 1) must be (least, most)"),
        (lambda: vision.Invert()(np.zeros((2, 2, 3))), "Invert: takes bytes (UInt8), not float64"),
        (
            lambda: vision.ResizedCrop(9, 9, 20, 20, 3)(IMAGE),
            "ResizedCrop: the part does not lie in an image of shape (20, 24, 3)",
        ),
        (lambda: vision.PadToSize(4)(IMAGE), "PadToSize: an image of shape (20, 24, 3) does not fit the size (4, 4)"),
        (
            lambda: vision.RandomErasing(value="red"),
            "RandomErasing: value 'red' must be a number, one for each channel, or 'random'",
        ),
    ],
)  # fmt: skip
def test_bad_arguments(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(MspcError) as caught:
        call()
    assert caught.value.message == message
