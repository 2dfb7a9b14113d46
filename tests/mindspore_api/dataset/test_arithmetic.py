"""Arithmetic on images gives the numbers of NumPy on whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc.dataset import vision
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.dataset.pipeline_random import PipelineDraws

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
    with pytest.raises(MspcError) as caught:
        operation(np.zeros(shape, np.uint8))
    assert caught.value.message == message
