"""Batches that threads make in pieces: where they lie, whose memory is used again, and that nothing of it is seen."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import dataset as ds
from mspc.dataset import transforms, vision
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.dataset.nodes import batching
from mspc.mindspore_api.dataset.nodes import block as pieces
from mspc.mindspore_api.dataset.nodes import selection as choosing
from mspc.mindspore_api.dataset.nodes.block import Block, BlockColumns, ReusedMemory
from mspc.mindspore_api.dataset.pipeline_random import DataPass
from tests.conftest import HANG

IMAGES = np.random.default_rng(0).integers(0, 256, (150, 6, 5, 3)).astype(np.uint8)
TO_FLOAT = [vision.Rescale(1 / 255, 0.0), vision.Normalize((0.4, 0.5, 0.6), (0.2, 0.2, 0.3)), vision.HWC2CHW()]
ENDS: list[list[Any]] = [
    [vision.Resize((9, 9)), *TO_FLOAT], [vision.RandomCrop(4, 1)], [vision.Resize(9), vision.RandomVerticalFlip()],
    [vision.RandomResizedCrop(3), vision.ToTensor()],
]  # fmt: skip


@pytest.fixture(autouse=True)
def _three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)


def batches(size: int, operations: Any, workers: int, keep: bool = True) -> list[np.ndarray]:
    ms.set_seed(5)
    rows = ds.NumpySlicesDataset({"image": IMAGES, "label": np.arange(150)}).shuffle(40)
    rows = rows.map(operations, "image", num_parallel_workers=workers)
    rows = rows.map(transforms.TypeCast(ms.float32), "label").batch(size)
    found: list[np.ndarray] = []
    for image, label in rows.create_tuple_iterator(output_numpy=True, num_epochs=1):
        found += [image, label] if keep else [image.copy(), label.copy()]
    return found


@pytest.mark.parametrize("operations", ENDS)
@pytest.mark.parametrize("size", [1, 64, 100])
def test_pieces_change_no_number(operations: list[Any], size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LEAST_BYTES", 1)
    expected = batches(size, operations, 1)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 500)
    for workers in (1, 3):
        for keep in (True, False):
            found = batches(size, operations, workers, keep)
            assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))
            assert all(a.flags.c_contiguous for a in found)


@pytest.mark.parametrize("operations", [ENDS[0], ENDS[1]])
def test_a_batch_is_not_put_together_once_more(operations: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 500)
    whole: list[int] = []

    def joined(blocks: list[Block]) -> Block:
        whole.append(len(blocks))
        return choosing_joined(blocks)

    choosing_joined = batching.joined
    monkeypatch.setattr(batching, "joined", joined)
    batches(100, operations, 3)
    assert whole == [1, 1]


def test_no_memory_for_rows_that_there_are_not() -> None:
    rows = ds.NumpySlicesDataset(IMAGES[:20], "x").map(TO_FLOAT, num_parallel_workers=3).batch(1 << 40)
    ((found,),) = list(rows.create_tuple_iterator(output_numpy=True, num_epochs=1))
    assert found.shape == (20, 3, 6, 5)


def test_rows_of_other_shapes_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1)
    parts = [ds.NumpySlicesDataset(np.zeros((5, height, 4, 3), np.uint8), "x") for height in (4, 8)]
    rows = (parts[0] + parts[1]).map([vision.Resize(8), *TO_FLOAT[:1]], "x", num_parallel_workers=3)
    given = [row[0].shape for row in rows.create_tuple_iterator(output_numpy=True, num_epochs=1)]
    assert given == [(8, 8, 3)] * 5 + [(16, 8, 3)] * 5
    assert next(iter(rows.batch(5)))[0].shape == (5, 8, 8, 3)
    with pytest.raises(MspcError) as caught:
        list(rows.batch(10))
    assert caught.value.message == "batch: rows of column 'x' have different shapes: (8, 8, 3), (16, 8, 3)"


def test_the_rows_before_a_fault_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 30)
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


def test_memory_is_used_again_when_nobody_holds_it() -> None:
    memory = ReusedMemory()
    first = memory.array((3, 1 << 20), np.dtype(np.float32))
    place = first.ctypes.data
    view = first[1:2][0]
    exported = memoryview(first[2:])
    del first
    gc.collect()
    other = memory.array((3, 1 << 20), np.dtype(np.float32))
    assert other.ctypes.data != place, "a view is held"
    del view
    third = memory.array((3, 1 << 20), np.dtype(np.float32))
    assert third.ctypes.data != place, "its bytes are held"
    del exported
    last = memory.array((3, 2 << 20), np.dtype(np.float16))
    assert last.ctypes.data == place
    assert len({array.ctypes.data for array in (other, third, last)}) == 3
    assert memory.array((3, 1 << 20), np.dtype(np.int8)).size == 3 << 20, "memory of another size"


def test_batches_that_are_held_are_not_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LEAST_BYTES", 1)
    places: set[int] = set()
    used: list[int] = []
    rows = ds.NumpySlicesDataset(np.repeat(np.arange(96, dtype=np.uint8), 8).reshape(96, 8), "x", shuffle=False)
    rows = rows.map(transforms.TypeCast(ms.float32), "x", num_parallel_workers=3).batch(64)
    held: list[Any] = []
    for epoch in range(3):
        for number, (batch,) in enumerate(rows.repeat(4).create_tuple_iterator(num_epochs=1)):
            if number % 3 == epoch:
                held.append((batch, batch.asnumpy().copy()))
            used.append(batch.asnumpy().ctypes.data)
            places.add(used[-1])
    assert all(np.array_equal(batch.asnumpy(), expected) for batch, expected in held)
    assert len(places) < len(used)


def test_threads_share_one_array() -> None:
    whole = BlockColumns(64, ReusedMemory())
    found: list[Any] = [None] * 8

    def ask(i: int) -> None:
        found[i] = whole.part(0, 8 * i, (8, 5), np.dtype(np.float32))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
        assert not thread.is_alive()
    for i, part in enumerate(found):
        part[...] = i
    assert np.array_equal(whole.column(0), np.repeat(np.arange(8), 40).reshape(64, 5))
    assert whole.part(0, 0, (8, 6), np.dtype(np.float32)) is None
    assert whole.part(0, 0, (8, 5), np.dtype(np.float64)) is None


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
