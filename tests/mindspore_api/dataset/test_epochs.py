"""Sources of rows that are endless, or good for one epoch alone."""

from __future__ import annotations

import itertools

import pytest

from mspc import dataset as ds
from tests.mindspore_api.dataset.test_pipeline import Items, first, numbers


def endless():
    return ((i,) for i in itertools.count())


@pytest.mark.parametrize(
    ("steps", "rows"),
    [
        (lambda d: d.take(3), [0, 1, 2]),
        (lambda d: d.skip(2).take(2), [2, 3]),
        (lambda d: d.map(lambda x: x + 1).take(2), [1, 2]),
        (lambda d: d.filter(lambda x: x % 2 == 0).take(3), [0, 2, 4]),
        (lambda d: d.batch(2).take(2), [[0, 1], [2, 3]]),
        (lambda d: d.take(4).batch(3, drop_remainder=True), [[0, 1, 2]]),
        (lambda d: d.rename("x", "y").take(1).repeat(2), [0, 0]),
        (lambda d: (numbers(2) + d).take(3), [0, 1, 0]),
        (lambda d: d.take(5).take(2), [0, 1]),
    ],
)
def test_an_endless_source_is_read_as_far_as_it_is_taken(steps, rows):
    dataset = steps(ds.GeneratorDataset(endless, ["x"]))
    assert dataset.get_dataset_size() == len(rows)
    assert first(dataset) == rows
    assert first(dataset) == rows


def test_an_endless_sampler_is_counted_as_far_as_it_is_taken():
    dataset = ds.GeneratorDataset(Items(), ["a", "b"], sampler=itertools.cycle([3, 1])).take(3)
    assert dataset.get_dataset_size() == 3


def test_the_limit_of_rows_ends_the_source():
    dataset = ds.GeneratorDataset(endless, ["x"], num_samples=2)
    assert (dataset.get_dataset_size(), first(dataset), first(dataset)) == (2, [0, 1], [0, 1])


@pytest.mark.parametrize("steps", [lambda d: d, lambda d: d.batch(2), lambda d: d.filter(lambda x: x >= 0)])
@pytest.mark.parametrize("source", [lambda: ((i,) for i in range(4)), lambda: iter([(0,), (1,), (2,), (3,)])])
def test_an_iterator_is_good_for_one_epoch(source, steps):
    dataset = steps(ds.GeneratorDataset(source(), ["x"]))
    assert dataset.output_shapes() in ([[]], [[2]])
    assert dataset.get_dataset_size() == len(first(dataset))
    message = r"the source is a (generator|list_iterator) object, .* it cannot be read for a second epoch"
    with pytest.raises(RuntimeError, match=message):
        first(dataset)


def test_a_repeated_iterator_is_no_half_epoch():
    with pytest.raises(RuntimeError, match="cannot be read for a second epoch"):
        first(ds.GeneratorDataset(iter([(1,)]), ["x"]).repeat(2))


def test_a_function_that_gives_the_same_iterator_again():
    rows = iter([(1,), (2,)])
    dataset = ds.GeneratorDataset(lambda: rows, ["x"])
    assert first(dataset) == [1, 2]
    with pytest.raises(RuntimeError, match="gave rows in an earlier epoch and gives none in this one"):
        first(dataset)


def test_an_object_with_next_alone_gives_rows():
    class Next:
        left = 2

        def __next__(self):
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return (self.left,)

    assert first(ds.GeneratorDataset(Next(), ["x"])) == [1, 0]


def test_an_iterator_too_large_to_be_counted_first(monkeypatch):
    monkeypatch.setattr("mspc.mindspore_api.dataset.sources.LIMIT", 8)
    dataset = ds.GeneratorDataset(iter([(1,), (2,)]), ["x"])
    assert dataset.get_dataset_size() == 2
    with pytest.raises(RuntimeError, match="so it cannot be counted and then read"):
        first(dataset)


def test_an_empty_data_set_has_no_shapes():
    with pytest.raises(ValueError, match="the data set has no rows"):
        ds.GeneratorDataset(lambda: iter(()), ["x"]).output_shapes()


def test_a_row_that_was_looked_at_is_read_all_the_same() -> None:
    data = numbers(20).shuffle(20)
    rows = data.create_tuple_iterator(num_epochs=2, output_numpy=True)
    for _ in range(2):
        looked = [data.peek()[0].asnumpy().item() for _ in range(2)]
        read = [row[0].item() for row in rows]
        assert looked == read[:1] * 2
        assert sorted(read) == list(range(20))
    assert numbers(0).peek() is None
