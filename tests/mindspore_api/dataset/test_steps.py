"""Steps of pipelines: batches, padding, parts, data sets side by side, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import dataset as ds
from mspc.dataset import transforms, vision
from mspc.ir.diagnostics import MspcError


def numbers(count: int = 6, name: str = "x") -> Any:
    return ds.NumpySlicesDataset(np.arange(count), name, shuffle=False)


def ragged() -> Any:
    return ds.GeneratorDataset(lambda: ((np.arange(i + 1), np.float32(i)) for i in range(4)), ["a", "b"])


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


def test_functions_get_rows_of_their_own() -> None:
    data = np.arange(4)

    def spoils(x: np.ndarray) -> np.ndarray:
        x += 100
        return x

    class Items:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> np.ndarray:
            return data[index : index + 1]

    dataset = ds.GeneratorDataset(Items(), "x", shuffle=False).map(spoils, "x")
    assert first(dataset) == first(dataset) == [[100], [101], [102], [103]]
    assert data.tolist() == [0, 1, 2, 3]


def test_an_operation_on_several_columns_does_the_same_to_each() -> None:
    images = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3)).astype(np.uint8)
    dataset = ds.NumpySlicesDataset({"a": images, "b": images})
    dataset = dataset.map([vision.RandomCrop(4), vision.RandomHorizontalFlip()], ["a", "b"])
    assert all(np.array_equal(*row) for row in dataset.create_tuple_iterator(output_numpy=True, num_epochs=1))


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: first(numbers(3).batch(4, True)), ValueError,
         "batch: the data set has 3 rows, fewer than one batch of 4, and drop_remainder leaves them out"),
        (lambda: numbers().batch("2"), TypeError, "batch: batch_size must be an integer, not '2'"),
        (lambda: numbers().batch(2, "no"), TypeError, "NumpySlicesDataset.batch: drop_remainder must be"),
        (lambda: numbers().batch(2, input_columns="x"), ValueError, "batch: input_columns and output_columns need a "),
        (lambda: first(numbers().batch(lambda info: 0)), ValueError,
         "batch: the lambda fails at row 0: batch: batch_size 0 must be at least 1"),
        (lambda: first(numbers().batch(2, per_batch_map=lambda x, i: 1 // 0)), ZeroDivisionError, "batch: the lambda "
         "fails at row 0: ZeroDivisionError: "),
        (lambda: first(numbers().batch(2, per_batch_map=lambda x, i: (x, x))), ValueError, "batch: the lambda fails at "
         "row 0: it returns 2 columns, not 1"),
        (lambda: numbers().map([]), ValueError, "map: operations is empty"),
        (lambda: numbers().map(vision.HWC2CHW), TypeError, "map: HWC2CHW is no operation"),
        (lambda: numbers().map(len, colums="x"), TypeError, "map has no argument 'colums'"),
        (lambda: numbers().map(len, num_parallel_workers=0), ValueError, "map: num_parallel_workers 0 must be at leas"),
        (lambda: numbers().map(len, ["x", "x"]), ValueError, "map: input_columns names 'x' twice"),
        (lambda: first(numbers().map(lambda x: (x, x), "x")), ValueError,
         "map: the lambda fails at row 0: the operations return 2 columns, not 1: x"),
        (lambda: first(numbers().map(lambda x: object(), "x")), TypeError,
         "map: the lambda fails at row 0: a column must hold numbers or arrays, not object"),
        (lambda: first(numbers().map(vision.HWC2CHW(), "x")), ValueError,
         "map: HWC2CHW fails at row 0: HWC2CHW: an image has 2 or 3 dimensions, not shape ()"),
        (lambda: first(numbers().map(transforms.OneHot(3), "x")), ValueError,
         "map: OneHot fails at row 3: OneHot: label 3 is not from 0 to 2"),
        (lambda: first(numbers().filter(lambda x: 1 // (3 - int(x)))), ZeroDivisionError, "filter: the lambda fails a"),
        (lambda: numbers().filter(3), TypeError, "NumpySlicesDataset.filter: predicate must be a"),
        (lambda: numbers().zip(3), TypeError, "zip takes data sets, not int"),
        (lambda: ds.zip(()), TypeError, "zip takes a tuple of data sets, not ()"),
        (lambda: numbers().zip(numbers()), ValueError, "zip: column 'x' is in several data sets"),
        (lambda: numbers().concat(numbers(2, "y")), ValueError, "concat: columns ['y'] are not ['x']"),
        (lambda: numbers() + 1, TypeError, "concat takes data sets, not int"),
        (lambda: numbers().rename("x", ["a", "b"]), ValueError, "rename: 1 input columns, 2 output columns"),
        (lambda: numbers().zip(numbers(2, "y")).rename("x", "y"), ValueError, "rename: columns names 'y' twice"),
        (lambda: numbers().project([]), TypeError, "project: columns must be a name or a list of names, not []"),
        (lambda: numbers().take(0), ValueError, "take: count 0 must be at least 1"),
        (lambda: numbers().repeat(0), ValueError, "repeat: count 0 must be at least 1"),
        (lambda: numbers().shuffle(True), TypeError, "NumpySlicesDataset.shuffle: buffer_size must be an integer"),
        (lambda: numbers().split([2, 3]), RuntimeError, "split: sizes [2, 3] must be positive and 6 in all"),
        (lambda: numbers().split([0.5, 0.6]), ValueError, "split: the shares [0.5, 0.6] must be above 0 and 1 in all"),
        (lambda: numbers(2).split([0.9, 0.1]), RuntimeError, "split: the shares [0.9, 0.1] of 2 rows leave a part "),
        (lambda: numbers().split("half"), TypeError, "split: sizes must be a list of integers or of floats"),
        (lambda: numbers().create_tuple_iterator(num_epochs=0), ValueError, "num_epochs 0 must be positive, or -1"),
        (lambda: numbers().create_dict_iterator(output_numpy=3), TypeError, "NumpySlicesDataset.create_dict"),
        (lambda: numbers().apply(lambda d: 3), TypeError, "apply takes data sets, not int"),
    ],
)  # fmt: skip
def test_what_is_refused(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, MspcError)
    assert caught.value.message.startswith(message)
    assert caught.value.location is not None
    assert "test_steps.py" in caught.value.location.file
