"""Image sets and tables that become files of records, read back by `MindDataset`."""

from __future__ import annotations

import gzip
import io
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import dataset as ds
from mspc import mindrecord
from mspc.ir.diagnostics import MspcError
from mspc.mindrecord import Cifar10ToMR, Cifar100ToMR, CsvToMR, ImageNetToMR, MnistToMR

Image = pytest.importorskip("PIL.Image", reason="needs Pillow")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(path: str) -> list[dict[str, Any]]:
    return list(ds.MindDataset(path, shuffle=False).create_dict_iterator(1, output_numpy=True))


def image(raw: np.ndarray) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(raw.tobytes())))


def cifar(path: str, labels: list[tuple[int, ...]]) -> np.ndarray:
    planes = np.random.default_rng(len(labels)).integers(0, 256, (len(labels), 3072)).astype(np.uint8)
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_bytes(np.concatenate([np.array(labels, np.uint8), planes], 1).tobytes())
    return planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def test_cifar() -> None:
    trained = [cifar(f"set/data_batch_{i}.bin", [(i,), (0,)][: 1 + i % 2]) for i in range(1, 6)]
    tested = cifar("set/test_batch.bin", [(3,)])
    Cifar10ToMR("set", "ten.mindrecord").transform(["label"])
    found = rows("ten.mindrecord")
    assert [(int(row["id"]), int(row["label"])) for row in found] == list(enumerate((1, 0, 2, 3, 0, 4, 5, 0)))
    assert all(np.array_equal(image(row["data"]), one) for row, one in zip(found, np.concatenate(trained), strict=True))
    (other,) = rows("ten.mindrecord_test")
    assert np.array_equal(image(other["data"]), tested[0])
    cifar("hundred/train.bin", [(19, 99)])
    cifar("hundred/test.bin", [(1, 2)])
    Cifar100ToMR(".", "hundred.mindrecord").run()  # the folder below is found
    (only,) = rows("hundred.mindrecord")
    assert (int(only["coarse_label"]), int(only["fine_label"])) == (19, 99)


def test_mnist() -> None:
    pictures = np.arange(2 * 28 * 28).reshape(2, 28, 28).astype(np.uint8)
    for part in ("train", "t10k"):
        head = struct.pack(">4I", 0x803, *pictures.shape)
        Path(f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + pictures.tobytes()))
        Path(f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, 2) + bytes([7, 1]))
    MnistToMR(".", "digits", 2).transform()
    found = rows("digits_train.mindrecord0")
    assert sorted(int(row["label"]) for row in found) == [1, 7]
    assert {tuple(image(row["data"])[0, :2]) for row in found} == {tuple(picture[0, :2]) for picture in pictures}
    assert Path("digits_test.mindrecord0").is_file()


def test_imagenet() -> None:
    for folder, names in (("n01 a", ("b.JPEG", "a.png", "notes.txt")), ("n02", ("c.jpg",))):
        Path("images", folder).mkdir(parents=True)
        for name in names:
            Path("images", folder, name).write_bytes(f"{folder}/{name}".encode())
    Path("map.txt").write_text("n01 a 0\n\nn02 7\n")
    ImageNetToMR("map.txt", "images", "net.mindrecord").transform()
    found = [(int(row["label"]), row["image"].tobytes(), str(row["file_name"])) for row in rows("net.mindrecord")]
    assert found == [(0, b"n01 a/a.png", "a.png"), (0, b"n01 a/b.JPEG", "b.JPEG"), (7, b"n02/c.jpg", "c.jpg")]


def test_tables() -> None:
    Path("t.csv").write_text('id, size,name,big\n1,2.5,"a, b",9000000000\n-2,1e3,c,0\n')
    CsvToMR("t.csv", "t.mindrecord").transform()
    found = rows("t.mindrecord")
    assert [int(row["id"]) for row in found] == [1, -2]
    assert [float(row["size"]) for row in found] == [2.5, 1000]
    assert [str(row["name"]) for row in found] == ["a, b", "c"]
    assert found[0]["big"].dtype == np.int64
    CsvToMR("t.csv", "some.mindrecord", ["name"]).transform()
    assert [set(row) for row in rows("some.mindrecord")] == [{"name"}] * 2


def table(text: str) -> CsvToMR:
    Path("t.csv").write_text(text)
    return CsvToMR("t.csv", "t.mindrecord", ["a"])


def waiting() -> CsvToMR:
    os.mkfifo("t.csv")
    return CsvToMR("t.csv", "t.mindrecord")


def mapped(text: str) -> ImageNetToMR:
    Path("map.txt").write_text(text)
    return ImageNetToMR("map.txt", ".", "t.mindrecord")


def pickled() -> Cifar10ToMR:
    Path("data_batch_1").write_bytes(b"\x80\x02")
    return Cifar10ToMR(".", "t.mindrecord")


MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: table("a,b\n1\n").run(), MspcError, "CsvToMR: row 1 of 't.csv' has 1 values, not 2"),
    (lambda: table("a,a\n1,2\n").run(), MspcError, "CsvToMR: 't.csv' has columns without a name of their own"),
    (lambda: table("a,b\n").run(), MspcError, "CsvToMR: 't.csv' has no rows below its first line"),
    (lambda: table('a,b\n1,"2').run(), MspcError, "CsvToMR: 't.csv' is no table: unexpected end of data"),
    (lambda: table("b\n1\n").run(), RuntimeError, "CsvToMR: 't.csv' has no column 'a'"),
    (lambda: waiting().run(), MspcError, "t.csv is a FIFO, not a file"),
    (lambda: CsvToMR("x.csv", "t").run(), MspcError, "CsvToMR: there is no file 'x.csv'"),
    (lambda: CsvToMR(3, "t"), TypeError, "CsvToMR: source must be a string, not 3"),  # type: ignore[arg-type]
    (lambda: CsvToMR("a", "t", [1]), ValueError, "CsvToMR: columns_list must be a list of names"),  # type: ignore[list-item]
    (lambda: MnistToMR(".", "t", 0), ValueError, "MnistToMR: partition_number must be an integer from 1, not 0"),
    (lambda: MnistToMR("x", "t").run(), MspcError, "MnistToMR: there is no folder 'x'"),
    (lambda: mapped("n01\n").run(), MspcError, "ImageNetToMR: 'map.txt' has no folder and label in line 1: 'n01'"),
    (lambda: mapped("n01 " + "1" * 5000).run(), MspcError, "ImageNetToMR: 'map.txt' has no folder and label in line 1"),
    (lambda: mapped("n01 1\n").run(), MspcError, "ImageNetToMR: there is no folder 'n01'"),
    (lambda: pickled().run(), MspcError, "Cifar10ToMR: there is no 'data_batch_1.bin' in '.'"),
    (lambda: Cifar10ToMR(".", "t").run("label"), ValueError, "Cifar10ToMR: fields must be a list of names"),  # type: ignore[arg-type]
    (lambda: mindrecord.TFRecordToMR("a", "b", {}), TypeError, "TFRecordToMR: features are described by TensorFlow's"),
    (lambda: mindrecord.set_enc_key("0123456789012345"), ValueError, "set_enc_key: records are not encrypted"),
    (lambda: mindrecord.set_enc_mode("SM4-CBC"), ValueError, "set_enc_mode: records are not encrypted, so there is no "
     "mode 'SM4-CBC'"),
    (lambda: mindrecord.set_dec_mode(3), ValueError, "set_dec_mode: records are not encrypted, so there is no mode 3"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), MISTAKES)
def test_mistakes(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, MspcError)
    assert caught.value.message.startswith(message)
    assert not Path("t.mindrecord").exists()


def test_no_key_is_none() -> None:
    mindrecord.set_enc_key(None)
    mindrecord.set_enc_mode()
    mindrecord.set_dec_mode(None)
