"""Images of the wrong size, type or mode: what operations say of them, alone and in `map`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import dataset as ds
from mspc.dataset import transforms, vision

IMAGE = np.zeros((8, 6, 3), np.uint8)
EMPTY = np.zeros((0, 6, 3), np.uint8)
TEXT = np.array(["a"])


@pytest.mark.parametrize(("make", "value", "message"), [
    (lambda: vision.Resize((4, 4)), EMPTY, "Resize: an image of shape (0, 6, 3) is empty"),
    (lambda: vision.RandomResizedCrop(4), EMPTY, "RandomResizedCrop: an image of shape (0, 6, 3) is empty"),
    (lambda: vision.Normalize([0.0] * 3, [1.0] * 3), EMPTY, "Normalize: an image of shape (0, 6, 3) is empty"),
    (lambda: vision.CenterCrop(4), EMPTY, "CenterCrop: an image of shape (0, 6, 3) is empty"),
    (lambda: vision.HWC2CHW(), EMPTY, "HWC2CHW: an image of shape (0, 6, 3) is empty"),
    (lambda: vision.ToTensor(), EMPTY, "ToTensor: an image of shape (0, 6, 3) is empty"),
    (lambda: vision.Resize((4, 4)), IMAGE[None], "Resize: an image has 2 or 3 dimensions, not shape (1, 8, 6, 3)"),
    (lambda: vision.RandomResizedCrop(4), IMAGE[0, 0],
     "RandomResizedCrop: an image has 2 or 3 dimensions, not shape (3,)"),
    (lambda: vision.ToTensor(), IMAGE[None], "ToTensor: an image has 2 or 3 dimensions, not shape (1, 8, 6, 3)"),
    (lambda: vision.RandomCrop(20), IMAGE, "RandomCrop: size (20, 20) exceeds the padded image (8, 6)"),
    (lambda: vision.Normalize([0.0] * 3, [1.0] * 3), IMAGE[..., :2], "Normalize: the image has 2 channels, mean 3"),
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
