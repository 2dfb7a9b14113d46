"""Images divided into patches: sizes and values as MindSpore 2.10 gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc import dataset as ds
from mspc.dataset import vision
from mspc.dataset.vision import SliceMode

IMAGE = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)


@pytest.mark.parametrize(
    ("mode", "counts", "size", "last"),
    [
        (SliceMode.PAD, (2, 2), (3, 4), 9), (SliceMode.PAD, (3, 2), (2, 4), 9), (SliceMode.PAD, (4, 4), (2, 2), 9),
        (SliceMode.DROP, (2, 2), (2, 3), 78), (SliceMode.DROP, (3, 2), (1, 3), 57),
        (SliceMode.DROP, (1, 4), (5, 1), 93),
    ],
)  # fmt: skip
def test_an_image_is_cut_evenly(mode: SliceMode, counts: tuple[int, int], size: tuple[int, int], last: int) -> None:
    patches = vision.SlicePatches(*counts, mode, 9)(IMAGE)
    assert [patch.shape for patch in patches] == [(*size, 3)] * (counts[0] * counts[1])
    assert patches[-1][-1, -1, 0] == last
    rows = [np.concatenate(patches[i : i + counts[1]], 1) for i in range(0, len(patches), counts[1])]
    together = np.concatenate(rows)
    height, width = (min(a, b) for a, b in zip(together.shape[:2], IMAGE.shape[:2], strict=True))
    np.testing.assert_array_equal(together[:height, :width], IMAGE[:height, :width])


def test_one_patch_is_the_image_and_greys_have_no_channels() -> None:
    np.testing.assert_array_equal(vision.SlicePatches()(IMAGE), IMAGE)
    grey = np.arange(35, dtype=np.float32).reshape(5, 7)
    np.testing.assert_array_equal(
        vision.SlicePatches(2, 2)(grey)[3], np.float32([[25, 26, 27, 0], [32, 33, 34, 0], [0, 0, 0, 0]])
    )


def test_a_map_has_a_column_for_each_patch() -> None:
    rows = ds.NumpySlicesDataset([IMAGE, IMAGE + 1], ["image"], shuffle=False)
    names = ["a", "b", "c", "d"]
    halves = rows.map([vision.HorizontalFlip(), vision.SlicePatches(2, 2)], ["image"], names).batch(2)
    ((a, *_, d),) = halves.create_tuple_iterator(output_numpy=True)
    np.testing.assert_array_equal(a[1], (IMAGE + 1)[:3, :2:-1])
    assert d.shape == (2, 3, 4, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vision.SlicePatches(0), "SlicePatches: num_height 0 must be at least 1"),
        (lambda: vision.SlicePatches(1, "2"), "SlicePatches: num_width must be an integer, not '2'"),
        (lambda: vision.SlicePatches(1, 2, "PAD"), "SlicePatches: slice_mode must be a SliceMode, not 'PAD'"),
        (lambda: vision.SlicePatches(fill_value=300), "SlicePatches: fill_value 300 must be at most 255"),
        (lambda: vision.SlicePatches(9, 1, SliceMode.DROP)(IMAGE),
         "SlicePatches: nothing is left of 5 pixels in 9 patches"),
        (lambda: vision.SlicePatches(2)(IMAGE[0, 0]), "SlicePatches: an image has 2 or 3 dimensions, not shape (3,)"),
    ],
)  # fmt: skip
def test_what_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        make()
    assert str(getattr(caught.value, "message", "")) == message
