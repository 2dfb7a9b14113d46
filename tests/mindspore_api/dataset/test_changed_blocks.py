"""Blocks that threads change: numbers, shapes and faults are those of one thread."""

import os
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import dataset as ds
from mspc.dataset import transforms, vision
from tests.errors import error_of

IMAGES = np.random.default_rng(0).integers(0, 256, (150, 6, 5, 3)).astype(np.uint8)
TO_FLOAT = [vision.Rescale(1 / 255, 0.0), vision.Normalize((0.4, 0.5, 0.6), (0.2, 0.2, 0.3)), vision.HWC2CHW()]
ENDS: list[list[Any]] = [
    [vision.Resize((9, 9)), *TO_FLOAT], [vision.RandomCrop(4, 1)], [vision.Resize(9), vision.RandomVerticalFlip()],
    [vision.RandomResizedCrop(3), vision.ToTensor()],
]  # fmt: skip


@pytest.fixture(autouse=True)
def _three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)


def batches(size: int, operations: Any, workers: int) -> list[np.ndarray]:
    ms.set_seed(5)
    rows = ds.NumpySlicesDataset({"image": IMAGES, "label": np.arange(150)}).shuffle(40)
    rows = rows.map(operations, "image", num_parallel_workers=workers)
    rows = rows.map(transforms.TypeCast(ms.float32), "label").batch(size)
    return [array for row in rows.create_tuple_iterator(output_numpy=True, num_epochs=1) for array in row]


@pytest.mark.parametrize("operations", ENDS)
@pytest.mark.parametrize("size", [1, 64, 100])
def test_threads_change_no_number(operations: list[Any], size: int) -> None:
    expected = batches(size, operations, 1)
    found = batches(size, operations, 3)
    assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))
    assert all(a.flags.c_contiguous for a in found)


def test_rows_of_other_shapes_are_put_together() -> None:
    parts = [ds.NumpySlicesDataset(np.zeros((5, height, 4, 3), np.uint8), "x") for height in (4, 8)]
    rows = (parts[0] + parts[1]).map([vision.Resize(8), *TO_FLOAT[:1]], "x", num_parallel_workers=3)
    given = [row[0].shape for row in rows.create_tuple_iterator(output_numpy=True, num_epochs=1)]
    assert given == [(8, 8, 3)] * 5 + [(16, 8, 3)] * 5
    assert next(iter(rows.batch(5)))[0].shape == (5, 8, 8, 3)
    error = error_of(list, rows.batch(10))
    assert error.message == "batch: rows of column 'x' have different shapes: (8, 8, 3), (16, 8, 3)"
