"""Processes that make blocks in shared memory: the numbers of threads, the same faults, and an end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import dataset as ds
from mspc.dataset import transforms, vision
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.dataset.nodes import block as pieces
from mspc.mindspore_api.dataset.nodes import processes as crew
from mspc.mindspore_api.dataset.nodes.mapping import Mapped
from tests.mindspore_api.dataset.test_workers import OWN, epochs, same

COUNT = 400
"""Rows of a data set. The first ones are made by threads, and so is the rest of a block that they began."""


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Processes from the second piece on; for every piece whether one of them made it."""
    made: list[int] = []

    def watched(*arguments: Any) -> Any:
        for piece, columns in crew.by_crew(*arguments):
            made.append(columns is not None)
            yield piece, columns

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setattr(crew, "FROM_BYTES", 0)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 4096)
    monkeypatch.setattr(Mapped.__module__ + ".by_crew", watched)
    return made


def rows(operations: Any, images: np.ndarray, workers: int = 2) -> Any:
    ms.set_seed(5)
    dataset = ds.NumpySlicesDataset({"image": images, "label": np.arange(len(images))}, shuffle=False)
    return dataset.map(operations, "image", num_parallel_workers=workers)


def images(count: int = COUNT) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, 12, 10, 3)).astype(np.uint8)


def test_processes_change_no_number(processes: list[int]) -> None:
    one = epochs(1, OWN)
    assert not processes
    assert same(one, epochs(3, OWN))
    assert len(processes) > 20
    assert all(processes[-8:])
    assert not multiprocessing.active_children()


def test_blocks_that_are_kept_stay_as_they_are(processes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the shared memory full of them, this process makes what comes."""
    monkeypatch.setattr(crew, "AHEAD_BYTES", 0)
    operations = [vision.RandomHorizontalFlip(), vision.Rescale(1 / 255, 0.0)]
    expected = [row[0] for row in rows(operations, images(2000), 1).batch(50).create_tuple_iterator(output_numpy=True)]
    found = [row[0] for row in rows(operations, images(2000)).batch(50).create_tuple_iterator(output_numpy=True)]
    assert same([expected], [found])
    assert 0 in processes
    assert 1 in processes


def test_memory_is_used_again(processes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "AHEAD_BYTES", 1 << 20)
    operations = [vision.Rescale(1 / 255, 0.0)]
    total = sum(float(row[0].sum()) for row in rows(operations, images(4000)).batch(50).create_tuple_iterator())
    assert total == pytest.approx(images(4000).sum() / 255, rel=1e-5)
    assert all(processes[-100:])


def test_rows_of_another_shape_are_made_here(processes: list[int]) -> None:
    """Two shapes in one column."""
    small, large = images(100), np.zeros((100, 20, 20, 3), np.uint8)
    dataset = rows([vision.VerticalFlip()], small) + rows([vision.VerticalFlip()], large)
    mapped = dataset.map(vision.HWC2CHW(), "image", num_parallel_workers=2)
    shapes = [row[0].shape for row in mapped.create_tuple_iterator(output_numpy=True, num_epochs=1)]
    assert shapes == [(3, 12, 10)] * 100 + [(3, 20, 20)] * 100
    assert not all(processes)


def test_a_fault_names_its_row(processes: list[int]) -> None:
    values = np.zeros((COUNT, 2), np.int64)
    dataset = ds.NumpySlicesDataset(values, "label", shuffle=False)
    good = dataset.map(transforms.OneHot(5), "label", num_parallel_workers=2)
    assert len(list(good)) == COUNT
    values[300, 1] = 7
    bad = ds.NumpySlicesDataset(values, "label", shuffle=False).map(
        transforms.OneHot(5), "label", num_parallel_workers=2
    )
    found: list[Any] = []
    with pytest.raises(MspcError, match="row 300"):
        found.extend(bad.create_tuple_iterator())
    assert len(found) == 300
    assert not multiprocessing.active_children()


def test_a_process_that_is_killed_ends_the_pass() -> None:
    iterator = iter(rows([vision.Rescale(1 / 255, 0.0)], images(20000)).create_tuple_iterator())
    next(iterator)
    until = time.monotonic() + 30
    while not multiprocessing.active_children():
        assert time.monotonic() < until
        time.sleep(0.01)
    killed = multiprocessing.active_children()[0]
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    with pytest.raises(MspcError, match="a worker process was ended by SIGKILL while it worked on row"):
        list(iterator)


def test_functions_of_the_user_stay_here(processes: list[int]) -> None:
    class Counted(vision.Rescale):
        seen = 0

        def many(self, values: np.ndarray, draws: Any) -> np.ndarray:
            Counted.seen += len(values)
            return super().many(values, draws)

    list(rows([Counted(1 / 255, 0.0)], images()))
    assert Counted.seen == COUNT
    assert not processes
