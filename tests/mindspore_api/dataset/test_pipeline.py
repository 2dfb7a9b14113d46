"""Data sets as pipelines."""

from __future__ import annotations

import gzip
import struct
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import dataset as ds
from mspc.dataset import sources
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
