"""Blocks that threads change: numbers, shapes and faults are those of one thread."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import dataset as ds
from mspc.dataset import transforms, vision
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.dataset.nodes import selection as choosing
from mspc.mindspore_api.dataset.pipeline_random import DataPass

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


def test_no_memory_for_rows_that_there_are_not() -> None:
    rows = ds.NumpySlicesDataset(IMAGES[:20], "x").map(TO_FLOAT, num_parallel_workers=3).batch(1 << 40)
    ((found,),) = list(rows.create_tuple_iterator(output_numpy=True, num_epochs=1))
    assert found.shape == (20, 3, 6, 5)


def test_rows_of_other_shapes_are_put_together() -> None:
    parts = [ds.NumpySlicesDataset(np.zeros((5, height, 4, 3), np.uint8), "x") for height in (4, 8)]
    rows = (parts[0] + parts[1]).map([vision.Resize(8), *TO_FLOAT[:1]], "x", num_parallel_workers=3)
    given = [row[0].shape for row in rows.create_tuple_iterator(output_numpy=True, num_epochs=1)]
    assert given == [(8, 8, 3)] * 5 + [(16, 8, 3)] * 5
    assert next(iter(rows.batch(5)))[0].shape == (5, 8, 8, 3)
    with pytest.raises(MspcError) as caught:
        list(rows.batch(10))
    assert caught.value.message == "batch: rows of column 'x' have different shapes: (8, 8, 3), (16, 8, 3)"


def test_the_rows_before_a_fault_are_given() -> None:
    labels = np.arange(40, dtype=np.uint8)
    rows = ds.NumpySlicesDataset(labels, "x", shuffle=False).map(
        [transforms.OneHot(23), transforms.TypeCast(ms.float32)], num_parallel_workers=3
    )
    found: list[int] = []
    with pytest.raises(MspcError) as caught:
        found.extend(int(row.argmax()) for (row,) in rows.create_tuple_iterator(output_numpy=True, num_epochs=1))
    assert found == list(range(23))
    assert caught.value.message == "map: OneHot fails at row 23: OneHot: label 23 is not from 0 to 22"
    whole: list[list[int]] = []
    with pytest.raises(MspcError, match="label 23"):
        whole.extend(row.argmax(1).tolist() for (row,) in rows.batch(10).create_tuple_iterator(output_numpy=True))
    assert whole == [list(range(10)), list(range(10, 20))]


@pytest.mark.parametrize("window", [1, 3, 64, 90, 200])
def test_a_window_draws_one_number_for_every_row(window: int) -> None:
    ms.set_seed(9)
    rows = ds.NumpySlicesDataset(np.arange(150), "x", shuffle=False).shuffle(window)
    node = rows._node  # type: ignore[reportPrivateUsage]
    assert isinstance(node, choosing.Shuffled)
    found = [int(x) for block in node.blocks(DataPass.begin(2)) for x in block.columns[0]]
    generator, held, expected = DataPass.begin(2).generator(node.key), [], []

    def take() -> None:
        place = int(generator.integers(len(held)))
        held[place], held[-1] = held[-1], held[place]
        expected.append(held.pop())

    for i in range(150):
        held.append(i)
        if len(held) > window:
            take()
    while held:
        take()
    assert found == expected
