"""Arithmetic on images gives the numbers of NumPy on whole arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc.dataset import transforms, vision
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.dataset.pipeline_random import PipelineDraws

DRAWS = PipelineDraws(0, np.arange(5))
MEAN, STD = (0.4, 125.0, 1e-3), (0.2, 0.3, 71.0)
CHAINS: list[list[Any]] = [
    [vision.Rescale(1 / 255, 0.0), vision.Normalize(MEAN, STD), vision.HWC2CHW()],
    [vision.Rescale(-0.3, 0.0), vision.Normalize((0.5,), (0.25,))],
    [vision.HWC2CHW(), vision.Rescale(1 / 3, -7), vision.Normalize(MEAN, STD, is_hwc=False)],
    [vision.ToTensor(), vision.Normalize(MEAN, STD, is_hwc=False)],
    [vision.ToTensor(ms.float16)],
    [vision.Normalize(MEAN, STD), vision.HWC2CHW(), transforms.TypeCast(ms.float16)],
    [vision.Normalize(MEAN, STD), transforms.TypeCast(ms.float32), vision.Rescale(2.0, 1.0)],
    [transforms.TypeCast(ms.float32), vision.HWC2CHW()],
    [vision.HWC2CHW(), transforms.TypeCast(ms.int32)],
]


def plain(operation: Any, values: np.ndarray) -> np.ndarray:
    """The meaning of an operation, said in NumPy with whole arrays."""
    if isinstance(operation, transforms.TypeCast):
        return values.astype(operation.output_type)
    if isinstance(operation, vision.Rescale):
        return values.astype(np.float32) * np.float32(operation.rescale) + np.float32(operation.shift)
    if isinstance(operation, vision.Normalize):
        shape = (-1,) if operation.is_hwc else (-1, 1, 1)
        mean, std = operation.mean.reshape(shape), operation.std.reshape(shape)
        return (values.astype(np.float32) - mean) / std
    values = np.moveaxis(values, -1, -3)
    if isinstance(operation, vision.ToTensor):
        values = (values.astype(np.float32) / np.float32(255)).astype(operation.output_type)
    return values


def images(kind: Any, lies: str) -> np.ndarray:
    made = np.random.default_rng(0).integers(0, 256, (5, 6, 7, 3)).astype(kind)
    return made if lies == "lines" else np.ascontiguousarray(made.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)


@pytest.mark.parametrize("operations", CHAINS)
@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float64, np.float16])
@pytest.mark.parametrize("lies", ["lines", "planes"])
def test_the_same_bits(operations: list[Any], kind: Any, lies: str) -> None:
    values = found = expected = images(kind, lies)
    before = values.copy()
    for operation in operations:
        expected = plain(operation, expected)
        found = operation.many(found, DRAWS)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == np.ascontiguousarray(expected).tobytes()
    one = values[0]
    for operation in operations:
        one = operation(one)
    assert one.tobytes() == found[0].tobytes()
    assert np.array_equal(values, before), "what is given is not changed"


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
