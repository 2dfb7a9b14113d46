"""Operations on images against torchvision's on the same images of Pillow."""

import io
from typing import Any

import numpy as np
import pytest

try:
    import torch
    import torchvision.transforms.functional as F
    from PIL import Image
except (ImportError, RuntimeError) as error:
    pytest.skip(f"needs torchvision and Pillow: pip install -e '.[oracle]' ({error})", allow_module_level=True)

from mspc.dataset import vision
from mspc.dataset.vision import Border, Inter
from mspc.mindspore_api.dataset.pipeline_random import PipelineDraws

SIZES = [(37, 24), (24, 37), (32, 32), (9, 50)]
FILTERS = {
    Inter.NEAREST: F.InterpolationMode.NEAREST, Inter.LINEAR: F.InterpolationMode.BILINEAR,
    Inter.CUBIC: F.InterpolationMode.BICUBIC, Inter.AREA: F.InterpolationMode.BOX,
}  # fmt: skip


def image(size: tuple[int, int], channels: int = 3) -> np.ndarray:
    return np.random.default_rng(sum(size)).integers(0, 256, (*size, channels)).astype(np.uint8)


def theirs(value: Any) -> np.ndarray:
    return value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("target", [(16, 20), (64, 48), 16, 40])
@pytest.mark.parametrize("size", SIZES)
def test_resize(size: tuple[int, int], target: Any, interpolation: Inter) -> None:
    array = image(size)
    expected = F.resize(Image.fromarray(array), target, FILTERS[interpolation])
    assert np.array_equal(vision.Resize(target, interpolation)(array), theirs(expected))


@pytest.mark.parametrize("size", SIZES)
def test_parts_and_borders(size: tuple[int, int]) -> None:
    array = image(size)
    pillow = Image.fromarray(array)
    for wanted in ((8, 6), (9, 4)):
        top, left = (size[0] - wanted[0]) // 2, (size[1] - wanted[1]) // 2
        assert np.array_equal(vision.CenterCrop(wanted)(array), theirs(F.crop(pillow, top, left, *wanted)))
    assert np.array_equal(vision.CenterCrop((60, 70))(array)[0, 0], [0, 0, 0])
    for border in Border:
        for padding in (3, [2, 5], [1, 2, 3, 4]):
            assert np.array_equal(
                vision.Pad(padding, padding_mode=border)(array), theirs(F.pad(pillow, padding, 0, border.value))
            )
    assert np.array_equal(vision.Pad(2, (1, 2, 3))(array), theirs(F.pad(pillow, 2, (1, 2, 3))))
    assert np.array_equal(vision.RandomHorizontalFlip(1.0)(array), theirs(F.hflip(pillow)))


@pytest.mark.parametrize("channels", [1, 3])
def test_numbers(channels: int) -> None:
    array = image((6, 5), channels)
    mean, std = [0.4, 0.5, 0.6][:channels], [0.2, 0.3, 0.25][:channels]
    tensor = F.to_tensor(array)
    first = vision.ToTensor()(array)
    assert np.array_equal(first, theirs(tensor))
    normal = theirs(F.normalize(tensor, mean, std))
    np.testing.assert_allclose(vision.Normalize(mean, std, is_hwc=False)(first), normal, 1e-6, 1e-6)
    last = vision.Normalize(mean, std)(vision.Rescale(1 / 255, 0.0)(array))
    np.testing.assert_allclose(vision.HWC2CHW()(last), normal, 1e-5, 1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_random_parts_are_parts(size: tuple[int, int]) -> None:
    """A drawn part is found again among all parts that there are."""
    array = image(size)
    padded = F.pad(Image.fromarray(array), 4)
    found = vision.RandomCrop((8, 7), 4)
    for row in range(20):
        draws = PipelineDraws(3, np.array([row]))
        top, left = (int(draws.integer(i, edge)[0]) for i, edge in enumerate((size[0] + 8 - 8, size[1] + 8 - 7)))
        assert np.array_equal(found.one(array, draws), theirs(F.crop(padded, top, left, 8, 7)))
    resized = vision.RandomResizedCrop((8, 7))
    for row in range(20):
        draws = PipelineDraws(5, np.array([row]))
        part = resized._part(*size, draws)
        assert np.array_equal(resized.one(array, draws), theirs(F.resized_crop(Image.fromarray(array), *part, (8, 7))))
        assert 0 <= part[0] <= size[0] - part[2]
        assert 0 <= part[1] <= size[1] - part[3]
        assert 0.05 < part[2] * part[3] / (size[0] * size[1]) <= 1


@pytest.mark.parametrize("kind", ["PNG", "BMP", "JPEG"])
def test_decode(kind: str) -> None:
    data = io.BytesIO()
    Image.fromarray(image((9, 7))).save(data, kind)
    raw = np.frombuffer(data.getvalue(), np.uint8)
    expected = np.asarray(Image.open(io.BytesIO(data.getvalue())))
    assert np.array_equal(vision.Decode()(raw), expected)
