"""Images made larger have the numbers that Pillow gives them one by one."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from mspc.data.dataset.pipeline_random import PipelineDraws
from mspc.data.dataset.resizing import can_enlarge, enlarged, taps
from mspc.dataset import vision
from mspc.dataset.vision import Inter

KINDS = ("BOX", "BILINEAR", "BICUBIC")


def by_pillow(image: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
    flat = image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
    made = Image.fromarray(flat).resize((size[1], size[0]), getattr(Image.Resampling, method))
    return np.asarray(made).reshape(*size, *image.shape[2:])


@pytest.mark.parametrize("method", KINDS)
@pytest.mark.parametrize("channels", [(), (1,), (3,)])
@pytest.mark.parametrize("extreme", [False, True])
def test_every_pixel_is_that_of_pillow(method: str, channels: tuple[int, ...], extreme: bool) -> None:
    random = np.random.default_rng(len(channels))
    for _ in range(12):
        height, width = (int(side) for side in random.integers(1, 40, 2))
        size = (height + int(random.integers(0, 90)), width + int(random.integers(0, 90)))
        images = random.integers(0, 256, (3, height, width, *channels)).astype(np.uint8)
        if extreme:
            images = np.where(images > 127, np.uint8(255), np.uint8(0))
        assert can_enlarge(images.shape, images.dtype, size, method)
        made = enlarged(images, taps(height, size[0], method), taps(width, size[1], method))
        for image, found in zip(images, made, strict=True):
            assert np.array_equal(found, by_pillow(image, size, method)), (height, width, size)


@pytest.mark.parametrize("method", KINDS)
def test_whole_multiples(method: str) -> None:
    random = np.random.default_rng(5)
    for times in range(2, 9):
        images = random.integers(0, 256, (3, *random.integers(1, 40, 2), 3)).astype(np.uint8)
        size = (images.shape[1] * times, images.shape[2] * (9 - times))
        down, across = (taps(*sides, method) for sides in zip(images.shape[1:3], size, strict=True))
        assert method == "BICUBIC" or down.runs is not None, (times, images.shape)
        made = enlarged(images, down, across)
        for image, found in zip(images, made, strict=True):
            assert np.array_equal(found, by_pillow(image, size, method)), (images.shape, size)


@pytest.mark.parametrize("interpolation", list(Inter))
@pytest.mark.parametrize("size", [(30, 41), (12, 10), (12, 30), (8, 30), 20, 5])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_block_is_resized_as_its_images(interpolation: Inter, size: int | tuple[int, int], dtype: type) -> None:
    images = np.random.default_rng(1).integers(0, 256, (4, 12, 10, 3)).astype(dtype)
    resize = vision.Resize(size, interpolation)
    made = resize.column(images, PipelineDraws(0, np.arange(4)))
    assert isinstance(made, np.ndarray)
    for image, found in zip(images, made, strict=True):
        alone = resize(image)
        assert alone.flags.c_contiguous
        assert np.array_equal(found, alone)
        if dtype == np.uint8:
            assert np.array_equal(alone, by_pillow(image, (alone.shape[0], alone.shape[1]), interpolation.filter))


def test_what_is_left_to_pillow() -> None:
    assert not can_enlarge((1, 8, 8), np.dtype(np.uint8), (7, 9), "BILINEAR")
    assert not can_enlarge((1, 8, 8), np.dtype(np.float32), (9, 9), "BILINEAR")
    assert not can_enlarge((1, 8, 8, 4), np.dtype(np.uint8), (9, 9), "BILINEAR")
    assert not can_enlarge((1, 8, 8), np.dtype(np.uint8), (9, 9), "LANCZOS")
    assert not can_enlarge((1, 0, 8), np.dtype(np.uint8), (9, 9), "BILINEAR")


def test_operations_behind_a_larger_image_see_the_same_pixels() -> None:
    images = np.random.default_rng(2).integers(0, 256, (5, 6, 7, 3)).astype(np.uint8)
    draws = PipelineDraws(3, np.arange(5))
    planes = vision.Resize((12, 13)).column(images, draws)
    assert isinstance(planes, np.ndarray)
    for operation in (
        vision.RandomCrop((9, 8), 1), vision.RandomHorizontalFlip(), vision.RandomVerticalFlip(), vision.CenterCrop(9),
        vision.Normalize((1, 2, 3), (4, 5, 6)), vision.HWC2CHW(), vision.ToTensor(), vision.Pad(2),
    ):  # fmt: skip
        lines = operation.column(np.ascontiguousarray(planes), draws)
        assert np.array_equal(operation.column(planes, draws), lines)
