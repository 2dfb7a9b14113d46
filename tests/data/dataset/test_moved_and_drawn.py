"""Affine maps of images, their corners, and operations drawn from lists. The sums are those of MindSpore 2.10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc
import mspc.dataset as ds
from mspc.data.dataset.pipeline_random import PipelineDraws
from mspc.dataset import vision
from mspc.dataset.vision import Inter
from mspc.ir.diagnostics import MspcError

IMAGE = np.random.default_rng(0).integers(0, 255, (12, 16, 3)).astype(np.uint8)


@pytest.mark.parametrize(("arguments", "nearest", "linear"), [
    ((15, (0, 0), 1.0, (0, 0)), 68587, 67705),
    ((0, (0.2, -0.1), 1.0, (0, 0)), 57756, 54801),
    ((0, (0, 0), 0.8, (0, 0)), 49811, 49341),
    ((0, (0, 0), 1.0, (0, 10)), 73477, 72813),
    ((30, (0.1, 0.1), 1.1, (5, -8)), 65176, 64772),
    ((0, (0, 0), 1.0, 20), 70774, 70911),
])  # fmt: skip
def test_affine_maps_are_those_of_mindspore(arguments: tuple[Any, ...], nearest: int, linear: int) -> None:
    assert int(vision.Affine(*arguments, Inter.NEAREST, 7)(IMAGE).sum()) == nearest
    assert int(vision.Affine(*arguments, Inter.BILINEAR)(IMAGE).sum()) == pytest.approx(linear, rel=3e-3)


def test_a_random_map_of_one_choice_is_that_map() -> None:
    drawn = vision.RandomAffine((30, 30), (0.1, 0.1, 0.1, 0.1), (1.1, 1.1), (5, 5, -8, -8), Inter.NEAREST, 7)(IMAGE)
    np.testing.assert_array_equal(drawn, vision.Affine(30, (0.1, 0.1), 1.1, (5, -8), Inter.NEAREST, 7)(IMAGE))
    mspc.set_seed(3)
    data = ds.NumpySlicesDataset([IMAGE] * 4, "image", shuffle=False).map(vision.RandomAffine(40, (-0.2, 0.2)))
    rows = [row for (row,) in data.create_tuple_iterator(num_epochs=1, output_numpy=True)]
    assert len({row.tobytes() for row in rows}) == 4


def test_corners_and_middle() -> None:
    five, ten = vision.FiveCrop(5)(IMAGE), vision.TenCrop((5, 6), True)(IMAGE)
    assert (len(five), sum(int(part.sum()) for part in five)) == (5, 50127)
    assert (len(ten), sum(int(part.sum()) for part in ten)) == (10, 119095)
    np.testing.assert_array_equal(five[3], IMAGE[-5:, -5:])
    np.testing.assert_array_equal(vision.TenCrop(5)(IMAGE)[5], IMAGE[:5, ::-1][:, :5])
    steps = ds.transforms.Compose([vision.FiveCrop(5), lambda *parts: np.stack(parts)])
    assert steps(IMAGE).shape == (5, 5, 5, 3)


def test_drawn_operations_keep_the_image() -> None:
    operations = vision.RandAugment(3, 20), vision.TrivialAugmentWide(), vision.RandAugment(1, 30, 31, Inter.LINEAR)
    for operation in operations:
        found: list[list[np.ndarray]] = []
        for workers in (1, 2):
            mspc.set_seed(5)
            data = ds.NumpySlicesDataset([IMAGE] * 12, "image", shuffle=False)
            data = data.map(operation, num_parallel_workers=workers)
            found.append([row for (row,) in data.create_tuple_iterator(num_epochs=1, output_numpy=True)])
        once, again = found
        assert {(row.shape, row.dtype) for row in once} == {(IMAGE.shape, IMAGE.dtype)}
        assert len({row.tobytes() for row in once}) > 6
        np.testing.assert_array_equal(once, again)


def test_magnitudes_are_those_of_the_papers() -> None:
    draws = PipelineDraws(0, np.arange(1))
    sign = -1 if float(draws.uniform(1)[0]) < 0.5 else 1
    wide, even = vision.TrivialAugmentWide(), vision.RandAugment()
    assert not wide.changed(IMAGE, "TranslateX", 30, draws).any()  # 32 pixels of 16
    by = sign * round(150 / 331 * 12)
    expected = np.zeros_like(IMAGE)
    expected[max(by, 0) : 12 + min(by, 0)] = IMAGE[max(-by, 0) : 12 - max(by, 0)]
    np.testing.assert_array_equal(even.changed(IMAGE, "TranslateY", 30, draws), expected)
    np.testing.assert_array_equal(even.changed(IMAGE, "Posterize", 30, draws), IMAGE & 0xF0)
    np.testing.assert_array_equal(even.changed(IMAGE, "Solarize", 30, draws), 255 - IMAGE)
    np.testing.assert_array_equal(even.changed(IMAGE, "Rotate", 0, draws), IMAGE)
    bright = vision.AdjustBrightness(1 + sign * 0.9)(IMAGE)
    np.testing.assert_array_equal(even.changed(IMAGE, "Brightness", 30, draws), bright)


def test_policies() -> None:
    mirrored, turned = vision.HorizontalFlip(), vision.VerticalFlip()
    chosen = vision.RandomSelectSubpolicy([[(mirrored, 1.0), (turned, 0.0)]])(IMAGE)
    np.testing.assert_array_equal(chosen, IMAGE[:, ::-1])
    found = {vision.UniformAugment([mirrored], 1)(IMAGE).tobytes() for _ in range(20)}
    assert found == {IMAGE.tobytes(), IMAGE[:, ::-1].tobytes()}


@pytest.mark.parametrize(("call", "message"), [
    (lambda: vision.Affine(0, (2, 0), 1.0, 0), "Affine: translate (2, 0) must be from -1 to 1"),
    (lambda: vision.Affine(0, (0, 0), 0, 0), "Affine: scale 0 must be above 0"),
    (lambda: vision.Affine(0, (0, 0), 1, 0, Inter.CUBIC),
     "Affine: resample 3 is not supported; Inter.NEAREST and Inter.BILINEAR are"),
    (lambda: vision.RandomAffine(-1), "RandomAffine: degrees -1 must not be negative"),
    (lambda: vision.RandomAffine((2, 1)), "RandomAffine: degrees must be (least, most), not (2.0, 1.0)"),
    (lambda: vision.RandomAffine(1, 0.1), "RandomAffine: translate must be 2 or 4 numbers, not 0.1"),
    (lambda: vision.FiveCrop(50)(IMAGE), "FiveCrop: size (50, 50) does not fit into an image of (12, 16)"),
    (lambda: vision.RandAugment(magnitude=31), "RandAugment: magnitude 31 must be below num_magnitude_bins 31"),
    (lambda: vision.UniformAugment([]), "UniformAugment: a list of operations is needed, not []"),
    (lambda: vision.RandomSelectSubpolicy([[3]]),
     "RandomSelectSubpolicy: a policy must be a list of (operation, probability), not [3]"),
])  # fmt: skip
def test_what_does_not_fit(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(MspcError) as raised:
        call()
    assert raised.value.message == message
