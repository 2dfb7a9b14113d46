"""Operations on images: OpenCV's numbers as MindSpore 2.10 computes them, NumPy's arithmetic, and refused images."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import dataset as ds
from mspc.dataset import transforms, vision
from mspc.dataset.vision import Inter
from mspc.mindspore_api.dataset.pipeline_random import PipelineDraws
from tests.errors import error_of

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


DRAWS = PipelineDraws(0, np.arange(5))
MEAN, STD = (0.4, 125.0, 1e-3), (0.2, 0.3, 71.0)
def images(kind: Any, lies: str) -> np.ndarray:
    made = np.random.default_rng(0).integers(0, 256, (5, 6, 7, 3)).astype(kind)
    return made if lies == "lines" else np.ascontiguousarray(made.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)


def test_images_without_channels() -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    found = values
    for operation in (vision.Rescale(0.5, 1.0), vision.Normalize((3.0,), (2.0,)), vision.HWC2CHW()):
        found = operation.many(found, DRAWS)
    assert found.shape == (2, 1, 3, 4)
    assert np.array_equal(found[:, 0], (values * np.float32(0.5) - np.float32(2)) / np.float32(2))


@pytest.mark.parametrize(
    ("operation", "shape", "message"),
    [
        (vision.Normalize((1, 2), (1, 2)), (4, 5, 3), "Normalize: the image has 3 channels, mean 2"),
        (vision.Normalize((1,), (1,)), (4,), "Normalize: an image has 2 or 3 dimensions, not shape (4,)"),
        (vision.HWC2CHW(), (4,), "HWC2CHW: an image has 2 or 3 dimensions, not shape (4,)"),
        (vision.ToTensor(), (4,), "ToTensor: an image has 2 or 3 dimensions, not shape (4,)"),
        (vision.ToTensor(), (2, 4, 5, 3), "ToTensor: an image has 2 or 3 dimensions, not shape (2, 4, 5, 3)"),
    ],
)
def test_shapes_that_do_not_fit_are_told_as_before(operation: Any, shape: tuple[int, ...], message: str) -> None:
    assert error_of(operation, np.zeros(shape, np.uint8)).message == message


BAD_IMAGE = np.zeros((8, 6, 3), np.uint8)
EMPTY = np.zeros((0, 6, 3), np.uint8)
TEXT = np.array(["a"])


@pytest.mark.parametrize(("make", "value", "message"), [
    (lambda: vision.Resize((4, 4)), EMPTY, "Resize: an image of shape (0, 6, 3) is empty"),
    (lambda: vision.RandomResizedCrop(4), EMPTY, "RandomResizedCrop: an image of shape (0, 6, 3) is empty"),
    (lambda: vision.Normalize([0.0] * 3, [1.0] * 3), EMPTY, "Normalize: an image of shape (0, 6, 3) is empty"),
    (lambda: vision.CenterCrop(4), EMPTY, "CenterCrop: an image of shape (0, 6, 3) is empty"),
    (lambda: vision.HWC2CHW(), EMPTY, "HWC2CHW: an image of shape (0, 6, 3) is empty"),
    (lambda: vision.ToTensor(), EMPTY, "ToTensor: an image of shape (0, 6, 3) is empty"),
    (lambda: vision.Resize((4, 4)), BAD_IMAGE[None], "Resize: an image has 2 or 3 dimensions, not shape (1, 8, 6, 3)"),
    (lambda: vision.RandomResizedCrop(4), BAD_IMAGE[0, 0],
     "RandomResizedCrop: an image has 2 or 3 dimensions, not shape (3,)"),
    (lambda: vision.ToTensor(), BAD_IMAGE[None], "ToTensor: an image has 2 or 3 dimensions, not shape (1, 8, 6, 3)"),
    (lambda: vision.RandomCrop(20), BAD_IMAGE, "RandomCrop: size (20, 20) exceeds the padded image (8, 6)"),
    (lambda: vision.Normalize([0.0] * 3, [1.0] * 3), BAD_IMAGE[..., :2], "Normalize: the image has 2 channels, mean 3"),
    (lambda: vision.Rescale(1.0, 0.0), TEXT, "Rescale: takes numbers, not texts such as 'a'"),
    (lambda: transforms.TypeCast(mspc.float32), TEXT,
     "TypeCast: cannot make float32 of <U1: could not convert string to float"),
    (lambda: transforms.OneHot(3), np.array(4), "OneHot: label 4 is not from 0 to 2"),
    (lambda: vision.Resize((4, 4)), None, "Resize: takes an array or an image, not NoneType"),
])  # fmt: skip
def test_what_is_no_image(make: Callable[[], Any], value: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        make()(value)
    assert str(getattr(caught.value, "message", "")).startswith(message)


def test_the_row_of_an_image_of_another_size_is_named() -> None:
    images = [np.zeros((8, 6, 3), np.uint8)] * 3 + [np.zeros((4, 6, 3), np.uint8)]
    rows = ds.GeneratorDataset(lambda: iter([(image,) for image in images]), ["image"], shuffle=False)
    crops = rows.map(vision.RandomCrop((6, 6)), "image")
    with pytest.raises(ValueError, match="RandomCrop: size") as caught:
        list(crops)
    assert str(getattr(caught.value, "message", "")) == (
        "map: RandomCrop fails at row 3: RandomCrop: size (6, 6) exceeds the padded image (4, 6)"
    )
    assert "rows.map(vision.RandomCrop" in str(caught.value)
    with pytest.raises(ValueError, match="batch") as caught:
        list(rows.batch(4))
    assert str(getattr(caught.value, "message", "")) == (
        "batch: rows of column 'image' have different shapes: (4, 6, 3), (8, 6, 3)"
    )
