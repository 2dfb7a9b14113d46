"""Samplers: which rows, in which order, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import dataset as ds
from mspc.ir.diagnostics import MspcError


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


@pytest.mark.parametrize("shuffle", [False, True, ds.Shuffle.GLOBAL])
@pytest.mark.parametrize("shards", [1, 3, 4, 10, 13])
def test_shards_are_all_rows(shards: int, shuffle: Any) -> None:
    found = [epochs(ds.DistributedSampler(shards, i, shuffle))[1] for i in range(shards)]
    assert {len(shard) for shard in found} == {-(-10 // shards)}
    assert sorted({row for shard in found for row in shard}) == list(range(10))
    interleaved = [shard[i] for i in range(len(found[0])) for shard in found]
    assert sorted(interleaved[:10]) == list(range(10))
    given = [epochs(None, shuffle=shuffle, num_shards=shards, shard_id=i)[1] for i in range(shards)]
    assert given == found


def test_a_sampler_chooses_from_its_childs() -> None:
    sampler = ds.DistributedSampler(2, 1, shuffle=False)
    sampler.add_child(ds.SubsetSampler([9, 8, 7, 6]))
    assert epochs(sampler) == [[8, 6]] * 2
    assert sampler.get_child() is not None
    with pytest.raises(RuntimeError, match="there is a child already"):
        sampler.add_child(ds.RandomSampler())


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


@pytest.mark.parametrize(
    ("sampler", "child", "rows"),
    [
        (ds.SequentialSampler(1, 2), ds.IterSampler([7, 5, 3, 1]), [5, 3]),
        (ds.DistributedSampler(2, 0, shuffle=False), ds.IterSampler([7, 5, 3, 1]), [7, 3]),
        (ds.SubsetSampler([0, 2]), ds.IterSampler([7, 5, 3, 1]), [7, 3]),
        (ds.IterSampler([2, 0]), ds.SequentialSampler(4, 3), [6, 4]),
        (ds.IterSampler([2, 0]), ds.IterSampler([7, 5, 3, 1]), [3, 7]),
    ],
)
def test_samplers_of_the_user_have_children_and_are_children(sampler: Any, child: Any, rows: list[int]) -> None:
    """The rows are those that MindSpore 2.10 gives."""
    sampler.add_child(child)
    assert epochs(sampler) == [rows] * 2
    outside = ds.IterSampler([9])
    outside.add_child(ds.IterSampler([1, 2]))
    with pytest.raises(ValueError, match="gives row 9, but the data set has 2 rows"):
        epochs(outside)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: ds.DistributedSampler(2, 2), RuntimeError, "DistributedSampler: shard_id 2 must be below num_shards"),
        (lambda: ds.DistributedSampler("2", 0), TypeError, "DistributedSampler: num_shards must be an integer, not '2"),
        (lambda: ds.DistributedSampler(0, 0), ValueError, "DistributedSampler: num_shards 0 must be at least 1"),
        (lambda: ds.DistributedSampler(2, 0, "yes"), TypeError, "DistributedSampler: shuffle must be True, False or"),
        (lambda: ds.RandomSampler(1), TypeError, "RandomSampler: replacement must be True or False, not 1"),
        (lambda: ds.RandomSampler(shuffle=ds.Shuffle.FILES), RuntimeError, "RandomSampler: files is not supported"),
        (lambda: ds.RandomSampler(num_samples=-1), ValueError, "RandomSampler: num_samples -1 must be at least 0"),
        (lambda: ds.SubsetSampler(["a"]), TypeError, "SubsetSampler: an index must be an integer, not 'a'"),
        (lambda: epochs(ds.SubsetSampler([10])), ValueError, "SubsetSampler: index 10 is not below the 10 rows"),
        (lambda: epochs(ds.SequentialSampler(10)), ValueError, "SequentialSampler: start_index 10 is not below the 10"),
        (lambda: epochs(ds.IterSampler([11])), ValueError, "the sampler gives row 11, but the data set has 10 rows"),
        (lambda: epochs(ds.IterSampler([1.5])), TypeError, "the sampler gives 1.5, which is no number of a row"),
        (lambda: epochs("all"), TypeError, "NumpySlicesDataset: sampler 'all' is no sampler"),
        (lambda: epochs([1], shuffle=True), RuntimeError, "NumpySlicesDataset: sampler and shuffle are both given"),
        (lambda: epochs([1], num_shards=1, shard_id=0), RuntimeError, "NumpySlicesDataset: sampler and num_shards are"),
        (lambda: epochs(ds.RandomSampler(), num_samples=1), ValueError, "NumpySlicesDataset: sampler and num_samples"),
        (lambda: epochs(None, num_shards=2), RuntimeError, "NumpySlicesDataset: num_shards is given, but shard_id is "
         "not"),
        (lambda: epochs(None, shard_id=1), RuntimeError, "NumpySlicesDataset: shard_id is given, but num_shards is no"),
        (lambda: epochs(None, num_shards=2, shard_id=2), ValueError, "NumpySlicesDataset: shard_id 2 must be below "),
        (lambda: ds.GeneratorDataset([1], "x", batch_sampler=[[0]]), ValueError,
         "GeneratorDataset: batch_sampler is not supported"),
    ],
)  # fmt: skip
def test_what_is_refused(make: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        make()
    assert isinstance(caught.value, MspcError)
    assert caught.value.message.startswith(message)
    assert caught.value.location is not None
    assert "test_samplers.py" in caught.value.location.file
