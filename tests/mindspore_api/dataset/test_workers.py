"""Workers: what they make does not depend on their number, they run ahead, and they end."""

import gc
import os
import random
import threading
import time
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import dataset as ds
from mspc.dataset import transforms, vision
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.dataset.nodes import pipeline_node
from tests.errors import error_of

IMAGES = np.random.default_rng(0).integers(0, 256, (130, 12, 10, 3)).astype(np.uint8)
OWN = [
    vision.RandomCrop((8, 6), 2), vision.RandomHorizontalFlip(), vision.RandomVerticalFlip(0.3),
    vision.RandomResizedCrop(7), vision.Rescale(1 / 255, 0.0),
    vision.Normalize((0.4, 0.5, 0.6), (0.2, 0.2, 0.3)), vision.HWC2CHW(),
]  # fmt: skip


def noisy(image: np.ndarray) -> np.ndarray:
    return image + np.random.random() + random.random()


def epochs(workers: int, operations: Any, count: int = 2, **options: Any) -> list[list[np.ndarray]]:
    """The batches of some epochs."""
    ms.set_seed(5)
    dataset = ds.NumpySlicesDataset({"image": IMAGES, "label": np.arange(130)})
    dataset = dataset.map(operations, "image", num_parallel_workers=workers, **options).batch(32)
    iterator = dataset.create_dict_iterator(count, output_numpy=True)
    return [[row["image"] for row in iterator] for _ in range(count)]


def same(left: list[list[np.ndarray]], right: list[list[np.ndarray]]) -> bool:
    return all(np.array_equal(a, b) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True))


@pytest.fixture
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)


@pytest.mark.usefixtures("three_cores")
def test_threads_and_blocks_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    one = epochs(1, OWN)
    assert not same(one[:1], one[1:]), "every epoch draws its own numbers"
    assert same(one, epochs(3, OWN))
    for size in (1, 7):
        monkeypatch.setattr(pipeline_node, "ROWS", size)
        monkeypatch.setattr(pipeline_node.grouped, "__defaults__", (size,))
        assert same(one, epochs(2, OWN))


@pytest.mark.parametrize("operations", [OWN, [*OWN[:2], noisy]])
def test_shards_draw_what_one_reader_draws(operations: list[Any]) -> None:
    def images(**shard: Any) -> list[np.ndarray]:
        ms.set_seed(5)
        rows = ds.NumpySlicesDataset(IMAGES, "image", **shard)
        rows = rows.map(operations, "image", python_multiprocessing=True, num_parallel_workers=1)
        return [row[0] for row in rows.create_tuple_iterator(output_numpy=True, num_epochs=1)]

    whole = images()
    for shard in range(2):
        for mine, theirs in zip(images(num_shards=2, shard_id=shard), whole[shard::2], strict=True):
            assert np.array_equal(mine, theirs)


@pytest.mark.parametrize("operations", [[noisy], [*OWN[:2], noisy, OWN[5]]])
def test_processes_change_no_number(operations: list[Any]) -> None:
    one = epochs(1, operations, python_multiprocessing=True)
    assert same(one, epochs(3, operations, python_multiprocessing=True))
    assert not np.array_equal(one[0][0], one[1][0])
    plain = [epochs(workers, operations) for workers in (1, 3)]
    assert same(*plain)


def test_functions_leave_the_scripts_generators_alone() -> None:
    np.random.seed(3)
    random.seed(3)
    expected = np.random.random(), random.random()
    np.random.seed(3)
    random.seed(3)
    ms.set_seed(5)
    np.random.seed(3)
    random.seed(3)
    dataset = ds.NumpySlicesDataset(IMAGES, "image").map(noisy, "image", python_multiprocessing=True)
    assert len(list(dataset)) == 130
    assert (np.random.random(), random.random()) == expected


class Items:
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> Any:
        if index == 7:
            raise OSError("no such picture")
        return np.int64(index), np.int64(os.getpid())


@pytest.mark.parametrize("workers", [1, 2])
def test_an_item_that_raises_is_told(workers: int) -> None:
    rows = ds.GeneratorDataset(Items(), ["x", "pid"], shuffle=False, num_parallel_workers=workers)
    error = error_of(list, rows)
    assert error.message == "GeneratorDataset: Items.__getitem__ fails at row 7: OSError: no such picture"
    assert error.location is not None
    assert error.location.text.strip() == 'raise OSError("no such picture")'


def raising(row: np.ndarray) -> np.ndarray:
    if row == 5:
        raise KeyError("colour")
    return row


@pytest.mark.parametrize("options", [{}, {"num_parallel_workers": 2, "python_multiprocessing": True}])
def test_an_operation_that_raises_is_told(options: dict[str, Any]) -> None:
    rows = ds.NumpySlicesDataset(np.arange(8), "x", shuffle=False).map(raising, "x", **options)
    iterator = iter(rows)
    assert [next(iterator)[0].item() for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError) as caught:
        next(iterator)
    assert isinstance(caught.value, MspcError)
    assert caught.value.message == "map: raising fails at row 5: KeyError: 'colour'"
    assert caught.value.location is not None
    assert caught.value.location.text.strip() == 'raise KeyError("colour")'
    assert caught.value.notes[0].startswith("map is called at ")
    assert "test_workers.py" in caught.value.notes[0]


def test_own_stages_run_ahead_and_their_threads_end() -> None:
    made: list[int] = []

    class Counting(transforms.TypeCast):
        def many(self, values: np.ndarray, draws: Any) -> Any:
            made.append(len(values))
            return super().many(values, draws)

    before = threading.active_count()
    ds.config.set_prefetch_size(2)
    rows = ds.NumpySlicesDataset(np.arange(6400), "x").map(Counting(ms.float32), num_parallel_workers=1).batch(64)
    iterator = rows.create_tuple_iterator()
    next(iterator)
    waited = time.monotonic() + 30
    while len(made) < 4 and time.monotonic() < waited:
        time.sleep(0.001)
    assert 4 <= len(made) < 20, "two batches ahead, and no more"
    assert threading.active_count() > before
    del iterator
    gc.collect()
    assert threading.active_count() <= before, "a thread of another test may have ended, too"


def test_an_iterator_that_is_released_gives_nothing_more() -> None:
    iterator = ds.NumpySlicesDataset(np.arange(10), "x").create_tuple_iterator()
    next(iterator)
    iterator.release()
    assert list(iterator) == []


def test_a_generator_of_the_user_is_not_read_ahead() -> None:
    asked: list[int] = []

    def source() -> Any:
        for i in range(10):
            asked.append(i)
            yield (np.int64(i),)

    iterator = ds.GeneratorDataset(source, ["x"]).map(transforms.TypeCast(ms.float32)).create_tuple_iterator()
    next(iterator)
    assert asked == [0]


def test_a_batch_of_the_users_rows_is_one_block() -> None:
    sizes: list[int] = []
    asked: list[int] = []

    class Counting(transforms.TypeCast):
        def many(self, values: np.ndarray, draws: Any) -> Any:
            sizes.append(len(values))
            return super().many(values, draws)

    def source() -> Any:
        for i in range(10):
            asked.append(i)
            yield (np.int64(i),)

    mapped = ds.GeneratorDataset(source, ["x"]).map(Counting(ms.float32))
    iterator = mapped.batch(4).create_tuple_iterator(output_numpy=True)
    assert next(iterator)[0].tolist() == [0, 1, 2, 3]
    assert (sizes, asked) == ([4], [0, 1, 2, 3])
    assert [row[0].tolist() for row in iterator] == [[4, 5, 6, 7], [8, 9]]
    asked.clear()
    sizes.clear()
    assert next(mapped.take(3).batch(4).create_tuple_iterator(output_numpy=True))[0].tolist() == [0, 1, 2]
    assert (sizes, asked) == ([1, 1, 1], [0, 1, 2])
