"""Data sets: sources, samplers, epochs, batches, padding, columns of dicts, and what is refused."""

import gzip
import itertools
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor
from mspc import dataset as ds
from mspc.dataset import sources, transforms, vision
from mspc.ir.diagnostics import MspcError


class Items:
    def __getitem__(self, i):
        return np.float32(i), np.array([i, -i])

    def __len__(self):
        return 6


def first(dataset):
    """The first column of every row."""
    return [row[0].tolist() for row in dataset.create_tuple_iterator(output_numpy=True)]


def numbers(n=6):
    return ds.GeneratorDataset(lambda: ((i,) for i in range(n)), ["x"])


def test_column_types_convert():
    dataset = ds.GeneratorDataset(Items(), ["a", "b"], [ms.float16, ms.int32], shuffle=False)
    assert dataset.output_types() == [np.float16, np.int32]
    assert dataset.output_shapes() == [[], [2]]


def test_shapes_of_all_rows():
    rows = [(np.zeros((2, 3)), np.zeros(1)), (np.zeros((4, 3)), np.zeros(1))]
    dataset = ds.GeneratorDataset(rows, ["a", "b"], shuffle=False)
    assert dataset.output_shapes() == [[2, 3], [1]]
    assert dataset.output_shapes(estimate=True) == [[None, 3], [1]]
    mixed = ds.GeneratorDataset([np.zeros(2), np.zeros((2, 2))], ["a"], shuffle=False)
    with pytest.raises(ValueError, match=r"column 'a' have shapes \[\(2,\), \(2, 2\)\]: no common one"):
        mixed.output_shapes(True)


def test_batches():
    assert first(numbers(5).batch(2)) == [[0, 1], [2, 3], [4]]
    dropped = numbers(5).batch(2, drop_remainder=True)
    assert first(dropped) == [[0, 1], [2, 3]]
    assert (dropped.get_dataset_size(), len(numbers(5).batch(2)), dropped.get_batch_size()) == (2, 3, 2)


def test_steps_compose():
    dataset = numbers(6).map(lambda x: x * 2, "x").filter(lambda x: x > 2).skip(1).take(2).repeat(2)
    assert first(dataset) == [6, 8, 6, 8]
    assert dataset.get_dataset_size() == 4
    assert dataset.get_repeat_count() == 2
    assert first(numbers(2) + numbers(1)) == [0, 1, 0]


def test_map_takes_and_gives_columns():
    dataset = ds.GeneratorDataset(Items(), ["a", "b"], shuffle=False).take(1)
    summed = dataset.map([lambda a, b: (a + b[0], b), lambda s, b: s], ["a", "b"], ["sum"])
    assert (summed.get_col_names(), first(summed)) == (["sum"], [0.0])
    split = dataset.map(lambda b: (b[0], b[1]), ["b"], ["b0", "b1"])
    assert split.column_names == ["a", "b0", "b1"]
    positional = dataset.map(ds.transforms.TypeCast(ms.int32), "a")
    assert positional.output_types()[0] == np.int32
    chosen = dataset.project(["b", "a"]).rename("b", "label")
    assert chosen.column_names == ["label", "a"]


def write_idx(path, array, compressed=False):
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    raw = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(raw) if compressed else raw)


def test_mnist_reads_idx_files(tmp_path):
    images = np.arange(3 * 4 * 5).reshape(3, 4, 5)
    write_idx(tmp_path / "train-images-idx3-ubyte", images)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.array([3, 1, 2]))
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", images[:1], True)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.array([7]), True)
    train = ds.MnistDataset(str(tmp_path), "train", shuffle=False)
    rows = list(train.create_dict_iterator(output_numpy=True))
    assert [int(row["label"]) for row in rows] == [3, 1, 2]
    assert rows[1]["image"].shape == (4, 5, 1)
    assert np.array_equal(rows[1]["image"][..., 0], images[1])
    assert (rows[0]["image"].dtype, rows[0]["label"].dtype) == (np.uint8, np.uint32)
    assert [r[1].item() for r in ds.MnistDataset(str(tmp_path), "test")] == [7]
    assert ds.MnistDataset(str(tmp_path)).get_dataset_size() == 4
    assert first(ds.MnistDataset(str(tmp_path), "train", num_samples=2, shuffle=False).project("label")) == [3, 1]


def test_damaged_idx_files_are_named(tmp_path):
    with pytest.raises(MspcError, match="there is no file 'train-images-idx3-ubyte'"):
        ds.MnistDataset(str(tmp_path), "train")
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"\0\0\10\1" + b"\0" * 20)
    with pytest.raises(MspcError, match="is no idx file of bytes with 3 dimensions"):
        ds.MnistDataset(str(tmp_path), "train")
    (tmp_path / "train-images-idx3-ubyte").write_bytes(bytes((0, 0, 8, 3)) + struct.pack(">3I", 2, 4, 4) + b"\0")
    with pytest.raises(MspcError, match=r"holds less than 32 bytes for shape \(2, 4, 4\): it is damaged"):
        ds.MnistDataset(str(tmp_path), "train")


def test_the_tutorials_image_pipeline(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28))
    write_idx(tmp_path / "train-images-idx3-ubyte", images)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.arange(5))
    dataset = ds.MnistDataset(str(tmp_path), shuffle=False)
    transforms = [
        ds.vision.Rescale(1.0 / 255.0, 0),
        ds.vision.Normalize(mean=(0.1307,), std=(0.3081,)),
        ds.vision.HWC2CHW(),
    ]
    dataset = dataset.map(transforms, "image").map(ds.transforms.TypeCast(ms.int32), "label").batch(2)
    image, label = next(iter(dataset))
    assert (image.shape, image.dtype, label.dtype) == ((2, 1, 28, 28), ms.float32, ms.int32)
    expected = (images[0] / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(image.array[0, 0], expected, rtol=1e-5, atol=1e-5)


def test_image_operations():
    image = np.arange(16, dtype=np.uint8).reshape(4, 4, 1)
    assert ds.vision.Resize((2, 2))(image)[..., 0].tolist() == [[3, 5], [11, 13]]
    assert ds.vision.Resize((8, 8), ds.vision.Inter.NEAREST)(image).shape == (8, 8, 1)
    assert ds.vision.Resize(2)(np.zeros((4, 8, 3), np.uint8)).shape == (2, 4, 3)
    assert np.array_equal(ds.vision.RandomHorizontalFlip(1.0)(image), image[:, ::-1])
    assert np.array_equal(ds.vision.RandomHorizontalFlip(0.0)(image), image)
    assert ds.vision.RandomCrop((3, 3), 1)(image).shape == (3, 3, 1)
    assert ds.vision.ToTensor()(image).shape == (1, 4, 4)
    assert ds.transforms.OneHot(3)(1).tolist() == [0, 1, 0]
    assert ds.transforms.Compose([lambda x: x + 1, lambda x: (x, x)])(1) == (2, 2)


def test_cifar10_reads_binary_files(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32)).astype(np.uint8)
    labels = np.array([[4], [0], [9]], np.uint8)
    records = np.concatenate([labels, pixels.reshape(3, -1)], 1)
    (tmp_path / "data_batch_1.bin").write_bytes(records[:2].tobytes())
    (tmp_path / "test_batch.bin").write_bytes(records[2:].tobytes())
    train = list(ds.Cifar10Dataset(str(tmp_path), "train", shuffle=False))
    assert [label.item() for _, label in train] == [4, 0]
    assert np.array_equal(train[0][0].array, pixels[0].transpose(1, 2, 0))
    assert ds.Cifar10Dataset(str(tmp_path)).get_dataset_size() == 3
    (tmp_path / "test_batch.bin").write_bytes(b"123")
    with pytest.raises(MspcError, match="holds 3 bytes, no multiple of 3073: it is damaged"):
        ds.Cifar10Dataset(str(tmp_path), "test")
    with pytest.raises(MspcError, match=r"Cifar10Dataset: there is no folder '.*none'"):
        ds.Cifar10Dataset(str(tmp_path / "none"), "test")


def test_the_pipelines_own_seed_wins():
    def order(seed):
        ms.set_seed(1)
        ds.config.set_seed(seed)
        return first(numbers(20).shuffle(20))

    assert order(5) == order(5) != order(6)
    assert ds.config.get_seed() == 6
    with pytest.raises(ValueError, match=r"dataset\.config\.set_seed\(-1\)"):
        ds.config.set_seed(-1)


def counted(rows, size=1):
    """(a data set over a function, a list with one entry for every call of it)."""
    calls = []

    def source():
        calls.append(len(calls))
        return ((np.full(size, 100 * calls[-1] + i, np.int64),) for i in range(rows))

    return ds.GeneratorDataset(source, ["x"]), calls


def test_an_iterator_can_be_counted_and_read():
    dataset = ds.GeneratorDataset(iter([(1,), (2,), (3,)]), ["x"], num_samples=2)
    assert dataset.get_dataset_size() == 2
    assert first(dataset) == [1, 2]


def test_rows_too_large_to_keep_are_read_again(monkeypatch):
    monkeypatch.setattr(sources, "LIMIT", 40)
    dataset, calls = counted(3, size=2)
    assert dataset.get_dataset_size() == 3
    assert [row[0] for row in first(dataset)] == [100, 101, 102]
    assert calls == [0, 1]


def strings() -> Any:
    return ds.NumpySlicesDataset(np.array(["a", "bcd", "ef"]), "s", shuffle=False)


@pytest.mark.parametrize(
    "call",
    [lambda x: x + 1, lambda x: x == x, ms.ops.relu, ms.jit(lambda x: x), ms.Parameter, lambda x: x.astype(ms.float32)],
)
def test_no_operator_takes_strings(call: Any) -> None:
    ((column,),) = strings().batch(3).create_tuple_iterator(num_epochs=1)
    with pytest.raises(TypeError, match="no operator takes a tensor of strings"):
        call(column)


def step_numbers(count: int = 6, name: str = "x") -> Any:
    return ds.NumpySlicesDataset(np.arange(count), name, shuffle=False)


def rows(dataset: Any) -> list[list[Any]]:
    iterator = dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)
    return [[value.tolist() for value in row] for row in iterator]


def step_first(dataset: Any) -> list[Any]:
    return [row[0] for row in rows(dataset)]


def test_batches_of_sizes_that_a_function_gives() -> None:
    dataset = step_numbers(7).batch(lambda info: info.get_batch_num() + 1)
    assert step_first(dataset) == [[0], [1, 2], [3, 4, 5], [6]]
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
    both = ds.zip((step_numbers(5, "a"), step_numbers(3, "b").map(lambda b: b * 10)))
    assert rows(both) == [[0, 0], [1, 10], [2, 20]]
    assert (both.get_col_names(), both.get_dataset_size()) == (["a", "b"], 3)
    endless = ds.GeneratorDataset(lambda: ((i,) for i in itertools.count()), ["c"])
    assert rows(step_numbers(2, "a").zip((step_numbers(9, "b"), endless))) == [[0, 0, 0], [1, 1, 1]]
    assert step_numbers(2).zip(endless).get_dataset_size() == 2


def test_parts_and_repeats() -> None:
    assert step_first(step_numbers().skip(2).take(3).repeat(2)) == [2, 3, 4, 2, 3, 4]
    assert step_first(step_numbers(3).repeat().take(7)) == [0, 1, 2, 0, 1, 2, 0]
    assert (step_numbers(3).repeat().take(7).get_dataset_size(), step_numbers().repeat().get_repeat_count()) == (7, -1)
    assert step_first(step_numbers(3).batch(2).repeat(2)) == [[0, 1], [2]] * 2
    assert (
        step_first(step_numbers(2) + step_numbers(1))
        == step_first(step_numbers(2).concat([step_numbers(1)]))
        == [0, 1, 0]
    )
    assert step_first(step_numbers(0 + 4).apply(lambda d: d.batch(3))) == [[0, 1, 2], [3]]
    assert step_first(step_numbers(4).skip(9)) == []


def test_splits_are_all_rows_the_same_every_epoch() -> None:
    ms.set_seed(2)
    train, test = step_numbers(10).split([0.8, 0.2])
    one, two = [(step_first(train), step_first(test)) for _ in range(2)]
    assert one == two
    assert sorted(one[0] + one[1]) == list(range(10)) != one[0] + one[1]
    assert [step_first(part) for part in step_numbers(5).split([2, 3], randomize=False)] == [[0, 1], [2, 3, 4]]
    assert [len(part) for part in step_numbers(10).split([0.55, 0.45], randomize=False)] == [6, 4]


def test_shuffled_blocks_are_all_rows() -> None:
    ms.set_seed(2)
    dataset = step_numbers(300).map(transforms.TypeCast(ms.float32)).shuffle(50)
    one, two = step_first(dataset), step_first(dataset)
    assert sorted(one) == list(range(300))
    assert one != two
    assert all(value <= place + 50 for place, value in enumerate(one))


def test_loops_are_epochs() -> None:
    iterator = step_numbers(2).create_tuple_iterator(num_epochs=2, output_numpy=True)
    assert [[int(row[0]) for row in iterator] for _ in range(3)] == [[0, 1], [0, 1], []]
    assert (iterator.epoch, iterator.row) == (1, 2)
    row = next(iter(step_numbers(2)))
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


def dict_numbers() -> Iterator[np.ndarray]:
    for i in range(4):
        yield np.array(i)


def split(column: list[np.ndarray], info: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"c": np.stack(column), "i": [info.get_batch_num()]}, {"k": {"inner": column[0]}}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_of_a_batch_returns_dicts(workers: int) -> None:
    data = ds.GeneratorDataset(dict_numbers, ["c"]).batch(
        2, per_batch_map=split, output_columns=["a", "b"], num_parallel_workers=workers
    )
    rows = list(data.create_dict_iterator(num_epochs=1, output_numpy=True))
    assert [row["a"]["c"].tolist() for row in rows] == [[0, 1], [2, 3]]
    assert [row["a"]["i"].tolist() for row in rows] == [[0], [1]]
    assert [int(row["b"]["k"]["inner"]) for row in rows] == [0, 2]
    first = next(data.create_tuple_iterator(num_epochs=1))
    assert isinstance(first[0]["c"], Tensor)
    assert first[0]["c"].asnumpy().tolist() == [0, 1]
    doubled = data.map(lambda row: {"c": row["c"] * 2}, ["a"])
    rows = doubled.create_dict_iterator(num_epochs=1, output_numpy=True)
    assert [row["a"]["c"].tolist() for row in rows] == [[0, 2], [4, 6]]


def test_rows_of_dicts_have_no_batch() -> None:
    def rows() -> Iterator[tuple[dict[str, Any]]]:
        for i in range(2):
            yield ({"a": i, "s": "text"},)

    data = ds.GeneratorDataset(rows, ["c"])
    assert [str(row["c"]["s"]) for row in data.create_dict_iterator(num_epochs=1, output_numpy=True)] == ["text"] * 2
    with pytest.raises(MspcError, match="rows of column 'c' are dicts; a per_batch_map says how they are joined"):
        next(data.batch(2).create_tuple_iterator())
    joined = data.batch(2, per_batch_map=lambda column, info: ([row["a"] for row in column],))
    assert [row[0].tolist() for row in joined.create_tuple_iterator(num_epochs=1, output_numpy=True)] == [[0, 1]]
    with pytest.raises(MspcError, match="a column must hold numbers or arrays, not object"):
        next(ds.GeneratorDataset(lambda: iter([({"a": object()},)]), ["c"]).create_tuple_iterator())


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
