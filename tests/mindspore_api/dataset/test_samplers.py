"""Samplers: which rows, in which order, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np

import mspc as ms
from mspc import dataset as ds


def epochs(sampler: Any, rows: int = 10, count: int = 2, **options: Any) -> list[list[int]]:
    """The numbers of the rows of some epochs."""
    dataset = ds.NumpySlicesDataset({"x": np.arange(rows)}, sampler=sampler, **options)
    iterator = dataset.create_tuple_iterator(output_numpy=True)
    found = [[int(row[0]) for row in iterator] for _ in range(count)]
    assert {len(epoch) for epoch in found} == {dataset.get_dataset_size()}
    return found


def test_in_order() -> None:
    assert epochs(ds.SequentialSampler()) == [list(range(10))] * 2
    assert epochs(ds.SequentialSampler(7, 2)) == [[7, 8]] * 2
    assert epochs(ds.SubsetSampler([3, 1, 3], 2)) == [[3, 1]] * 2
    assert epochs([5, 4]) == epochs(np.array([5, 4])) == epochs(ds.IterSampler([5, 4])) == [[5, 4]] * 2
    assert epochs(6) == [[6]] * 2


def test_at_random() -> None:
    ms.set_seed(1)
    one, two = epochs(ds.RandomSampler())
    assert sorted(one) == sorted(two) == list(range(10))
    assert one != two
    repeated = epochs(ds.RandomSampler(replacement=True, num_samples=200), count=1)[0]
    assert len(set(repeated)) == 10
    assert len(epochs(ds.RandomSampler(num_samples=4))[0]) == 4


def test_one_seed_gives_one_order() -> None:
    def order(seed: int) -> list[list[int]]:
        ms.set_seed(seed)
        return epochs(ds.RandomSampler())

    assert order(3) == order(3) != order(4)


def test_a_sampler_of_the_user() -> None:
    class Backwards(ds.Sampler):
        def __iter__(self) -> Any:
            yield from range(self.dataset_size - 1, -1, -1)

    class Lists(ds.Sampler):
        def __init__(self) -> None:
            pass

        def __iter__(self) -> Any:
            yield [1, 2]
            yield np.array([3])
            yield np.int64(4)

    assert epochs(Backwards()) == [list(range(9, -1, -1))] * 2
    assert epochs(Backwards(3)) == [[9, 8, 7]] * 2
    assert epochs(Lists()) == [[1, 2, 3, 4]] * 2
