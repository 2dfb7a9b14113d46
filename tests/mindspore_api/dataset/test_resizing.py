"""Arrays are resized with OpenCV's numbers, which were computed by MindSpore 2.10."""

from __future__ import annotations

import numpy as np
import pytest

from mspc.dataset import vision
from mspc.dataset.vision import Inter
from mspc.mindspore_api.dataset.pipeline_random import PipelineDraws

IMAGE = (np.arange(20).reshape(5, 4) ** 2 * 7 % 256).astype(np.uint8)
SMALLER = {
    "NEAREST": [[0, 28], [112, 252], [240, 92]], "LINEAR": [[50, 87], [124, 134], [143, 169]],
    "CUBIC": [[45, 90], [111, 146], [150, 165]], "AREA": [[60, 95], [143, 127], [149, 159]],
}  # fmt: skip
WIDER = {
    "NEAREST": [[0, 0, 7, 28, 28, 63], [112, 112, 175, 252, 252, 87], [192, 192, 55, 188, 188, 79],
                [240, 240, 159, 92, 92, 39]],
    "LINEAR": [[14, 21, 32, 51, 61, 66], [142, 136, 146, 211, 156, 84], [222, 171, 121, 126, 91, 54],
               [30, 126, 219, 207, 202, 200]],
    "CUBIC": [[10, 16, 31, 47, 61, 67], [150, 136, 162, 255, 186, 75], [255, 180, 94, 112, 71, 26],
              [8, 127, 239, 212, 203, 203]],
    "AREA": [[22, 31, 41, 73, 70, 68], [144, 135, 127, 226, 155, 84], [221, 169, 117, 130, 93, 55],
             [48, 132, 217, 194, 190, 186]],
}  # fmt: skip


@pytest.mark.parametrize("wanted", [SMALLER, WIDER])
@pytest.mark.parametrize("channels", [(), (1,), (3,)])
def test_arrays_have_the_numbers_of_opencv(wanted: dict[str, list[list[int]]], channels: tuple[int, ...]) -> None:
    image = np.broadcast_to(IMAGE.reshape(5, 4, *[1] * len(channels)), (5, 4, *channels))
    for kind, numbers in wanted.items():
        found = vision.Resize(np.shape(numbers), getattr(Inter, kind))(image)
        assert found.flags.c_contiguous
        for plane in np.moveaxis(found.reshape(*found.shape[:2], -1), -1, 0):
            assert plane.tolist() == numbers, kind
    checks = (np.indices((8, 8)).sum(0) % 2 * 255).astype(np.uint8)
    assert vision.Resize((3, 3))(checks).tolist() == [[71, 127, 184], [127, 128, 127], [184, 127, 71]]
    assert vision.Resize((4, 4))(checks).tolist() == [[128] * 4] * 4


def test_floats() -> None:
    for kind, numbers in WIDER.items():
        found = vision.Resize((4, 6), getattr(Inter, kind))(IMAGE.astype(np.float32))
        assert found.dtype == np.float32
        np.testing.assert_allclose(np.clip(found, 0, 255), numbers, atol=1.0)


@pytest.mark.parametrize("inter", list(Inter))
@pytest.mark.parametrize("size", [(30, 41), (12, 10), (6, 5), (8, 30), 20, 5])
def test_a_block_is_resized_as_its_images(inter: Inter, size: int | tuple[int, int]) -> None:
    images = np.random.default_rng(1).integers(0, 256, (4, 12, 10, 3)).astype(np.uint8)
    resize = vision.Resize(size, inter)
    made = resize.column(images, PipelineDraws(0, np.arange(4)))
    assert isinstance(made, np.ndarray)
    for image, found in zip(images, made, strict=True):
        assert np.array_equal(found, resize(image))


def test_images_of_pillow_are_resized_by_pillow() -> None:
    pillow = pytest.importorskip("PIL.Image")
    checks = (np.indices((8, 8)).sum(0) % 2 * 255).astype(np.uint8)
    image = pillow.fromarray(checks)
    expected = [[127, 128, 128], [128, 128, 128], [128, 128, 127]]  # MindSpore 2.10
    assert vision.Resize((3, 3))(image).tolist() == expected
    whole = vision.RandomResizedCrop((3, 3), scale=(1, 1), ratio=(1, 1))
    assert whole(image).tolist() == expected
    assert vision.Resize((3, 3))(checks).tolist() != expected
