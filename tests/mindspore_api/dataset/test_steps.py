"""Steps of pipelines: batches, padding, parts, data sets side by side, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import mspc as ms
from mspc import dataset as ds
from mspc.dataset import transforms, vision


def numbers(count: int = 6, name: str = "x") -> Any:
    return ds.NumpySlicesDataset(np.arange(count), name, shuffle=False)


def rows(dataset: Any) -> list[list[Any]]:
    iterator = dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)
    return [[value.tolist() for value in row] for row in iterator]


def first(dataset: Any) -> list[Any]:
    return [row[0] for row in rows(dataset)]


def test_batches_of_sizes_that_a_function_gives() -> None:
    dataset = numbers(7).batch(lambda info: info.get_batch_num() + 1)
    assert first(dataset) == [[0], [1, 2], [3, 4, 5], [6]]
    assert dataset.get_dataset_size() == 4


def test_a_function_over_a_batch() -> None:
    def scaled(a: list[np.ndarray], b: list[np.ndarray], info: Any) -> Any:
        return [x * (info.get_batch_num() + 1) for x in a], [x + info.get_epoch_num() for x in b]

    dataset = ds.NumpySlicesDataset({"a": np.arange(4), "b": np.arange(4), "c": np.arange(4)}, shuffle=False)
    batches = dataset.batch(2, per_batch_map=scaled, input_columns=["a", "b"])
    iterator = batches.create_dict_iterator(output_numpy=True)
    found = [{name: value.tolist() for name, value in row.items()} for _ in range(2) for row in iterator]
    assert found[1] == {"a": [4, 6], "b": [2, 3], "c": [2, 3]}
    assert found[3] == {"a": [4, 6], "b": [3, 4], "c": [2, 3]}
    summed = dataset.batch(2, per_batch_map=lambda a, b, info: (list(map(np.add, a, b)),),
                           input_columns=["a", "b"], output_columns="s")  # fmt: skip
    assert (summed.get_col_names(), rows(summed)) == (["s", "c"], [[[0, 2], [0, 1]], [[4, 6], [2, 3]]])


def test_data_sets_side_by_side() -> None:
    both = ds.zip((numbers(5, "a"), numbers(3, "b").map(lambda b: b * 10)))
    assert rows(both) == [[0, 0], [1, 10], [2, 20]]
    assert (both.get_col_names(), both.get_dataset_size()) == (["a", "b"], 3)
    endless = ds.GeneratorDataset(lambda: ((i,) for i in itertools.count()), ["c"])
    assert rows(numbers(2, "a").zip((numbers(9, "b"), endless))) == [[0, 0, 0], [1, 1, 1]]
    assert numbers(2).zip(endless).get_dataset_size() == 2


def test_parts_and_repeats() -> None:
    assert first(numbers().skip(2).take(3).repeat(2)) == [2, 3, 4, 2, 3, 4]
    assert first(numbers(3).repeat().take(7)) == [0, 1, 2, 0, 1, 2, 0]
    assert (numbers(3).repeat().take(7).get_dataset_size(), numbers().repeat().get_repeat_count()) == (7, -1)
    assert first(numbers(3).batch(2).repeat(2)) == [[0, 1], [2]] * 2
    assert first(numbers(2) + numbers(1)) == first(numbers(2).concat([numbers(1)])) == [0, 1, 0]
    assert first(numbers(0 + 4).apply(lambda d: d.batch(3))) == [[0, 1, 2], [3]]
    assert first(numbers(4).skip(9)) == []


def test_splits_are_all_rows_the_same_every_epoch() -> None:
    ms.set_seed(2)
    train, test = numbers(10).split([0.8, 0.2])
    one, two = [(first(train), first(test)) for _ in range(2)]
    assert one == two
    assert sorted(one[0] + one[1]) == list(range(10)) != one[0] + one[1]
    assert [first(part) for part in numbers(5).split([2, 3], randomize=False)] == [[0, 1], [2, 3, 4]]
    assert [len(part) for part in numbers(10).split([0.55, 0.45], randomize=False)] == [6, 4]


def test_shuffled_blocks_are_all_rows() -> None:
    ms.set_seed(2)
    dataset = numbers(300).map(transforms.TypeCast(ms.float32)).shuffle(50)
    one, two = first(dataset), first(dataset)
    assert sorted(one) == list(range(300))
    assert one != two
    assert all(value <= place + 50 for place, value in enumerate(one))


def test_loops_are_epochs() -> None:
    iterator = numbers(2).create_tuple_iterator(num_epochs=2, output_numpy=True)
    assert [[int(row[0]) for row in iterator] for _ in range(3)] == [[0, 1], [0, 1], []]
    assert (iterator.epoch, iterator.row) == (1, 2)
    row = next(iter(numbers(2)))
    assert (type(row), type(row[0])) == (list, ms.Tensor)


def test_reading_goes_on_where_it_stood() -> None:
    def batches(dataset: Any, count: int) -> list[Any]:
        iterator = dataset.create_tuple_iterator(output_numpy=True)
        endless = itertools.chain.from_iterable(iterator for _ in itertools.count())
        return [row[0].tolist() for row in itertools.islice(endless, count)]

    def made() -> Any:
        ms.set_seed(1)
        images = np.random.default_rng(0).integers(0, 256, (20, 4, 4, 3)).astype(np.uint8)
        dataset = ds.NumpySlicesDataset(images, "image").map([vision.RandomCrop(4, 2), vision.RandomVerticalFlip()])
        return dataset.shuffle(5).batch(6, drop_remainder=True)

    whole = batches(made(), 9)
    for done in (0, 2, 3, 7):
        dataset = made()
        dataset.set_init_step(done)
        assert dataset.get_init_step() == done
        assert batches(dataset, 9 - done) == whole[done:]


