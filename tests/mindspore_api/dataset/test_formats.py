"""Files of image sets: what is read, and what is said of missing, damaged and foreign ones."""

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import dataset as ds
from mspc.dataset import vision
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api.dataset.images import read_idx
from tests.errors import error_of

Image = pytest.importorskip("PIL.Image", reason="needs Pillow")
PIXELS = 3072


def records(labels: list[tuple[int, ...]], seed: int = 0) -> tuple[bytes, np.ndarray]:
    planes = np.random.default_rng(seed).integers(0, 256, (len(labels), PIXELS)).astype(np.uint8)
    rows = np.concatenate([np.array(labels, np.uint8), planes], 1)
    return rows.tobytes(), planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def test_cifar100_has_two_labels(tmp_path: Path) -> None:
    raw, images = records([(19, 99), (3, 7)])
    (tmp_path / "train.bin").write_bytes(raw)
    (tmp_path / "test.bin").write_bytes(records([(1, 2)])[0])
    rows = ds.Cifar100Dataset(str(tmp_path), "train", shuffle=False)
    found = list(rows.create_dict_iterator(1, output_numpy=True))
    assert [(int(row["coarse_label"]), int(row["fine_label"])) for row in found] == [(19, 99), (3, 7)]
    assert np.array_equal(found[1]["image"], images[1])
    assert {row["fine_label"].dtype for row in found} == {np.dtype(np.uint32)}
    assert (rows.num_classes(), ds.Cifar100Dataset(tmp_path).get_dataset_size()) == (100, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: None, "Cifar10Dataset: there is no file 'data_batch_*.bin' in {f!r}"),
        (lambda f: f.write_bytes(records([(1,), (2,)])[0][:-1]), "{f!r} holds 6145 bytes, no multiple of 3073: it is "
         "damaged"),
        (lambda f: f.write_bytes(b""), "{f!r} holds 0 bytes, no multiple of 3073: it is damaged"),
        (lambda f: f.write_bytes(records([(1,), (10,)])[0]), "{f!r}: record 1 has label 10, which is not from 0 to 9: "
         "it is damaged, or of another format"),
        (lambda f: f.write_bytes(records([(1, 60)] * 3073)[0]), "{f!r}: record 1 has label"),
        (lambda f: f.mkdir(), "cannot read {f!r}: Is a directory"),
    ],
)  # fmt: skip
def test_files_of_cifar_that_cannot_be(tmp_path: Path, make: Callable[[Path], Any], message: str) -> None:
    file = tmp_path / "data_batch_1.bin"
    make(file)
    error = error_of(ds.Cifar10Dataset, str(tmp_path), "train")
    shown = str(file if file.exists() else tmp_path)
    assert error.message.startswith(message.replace("{f!r}", repr(shown)))


@pytest.mark.parametrize("cls", [ds.MnistDataset, ds.Cifar10Dataset, ds.Cifar100Dataset, ds.ImageFolderDataset])
def test_arguments_of_image_sets(cls: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"{cls.__name__}: dataset_dir must be the name"):
        cls("")
    for folder in (None, 3):
        with pytest.raises(TypeError, match=f"{cls.__name__}: dataset_dir must be a string, not {folder}"):
            cls(folder)
    with pytest.raises(MspcError, match=r"there is no (folder|file)"):
        cls(str(tmp_path / "none"))
    if cls is not ds.ImageFolderDataset:
        with pytest.raises(ValueError, match="usage 'valid' is not 'train', 'test' or 'all'"):
            cls(str(tmp_path), usage="valid")


def encoded(colour: tuple[int, int, int], size: tuple[int, int] = (5, 4), kind: str = "PNG") -> bytes:
    data = io.BytesIO()
    Image.new("RGB", size, colour).save(data, kind)
    return data.getvalue()


@pytest.mark.parametrize(("size", "said"), [(10**9, "less than 1000000000"), (4, "more than 4")])
def test_a_packed_file_is_unpacked_as_far_as_it_says(size: int, said: str, tmp_path: Path) -> None:
    """A megabyte of zeros in a thousand bytes: what it says is wrong, so nothing of it comes to be in memory."""
    raw = bytes((0, 0, 8, 1)) + size.to_bytes(4, "big") + bytes(1 << 20)
    (tmp_path / "x-idx1-ubyte.gz").write_bytes(gzip.compress(raw))
    with pytest.raises(MspcError, match=f"holds {said} bytes for shape \\({size},\\): it is damaged"):
        read_idx(tmp_path, "x-idx1-ubyte", 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, colour in (("dog", (9, 8, 7)), ("cat", (1, 2, 3))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "b.png").write_bytes(encoded(colour))
        (tmp_path / name / "a.bmp").write_bytes(encoded(colour, (2, 3), "BMP"))
        (tmp_path / name / "notes.txt").write_text("no image")
    (tmp_path / "list.txt").write_text("no class")
    return tmp_path


def test_folders_are_classes(folder: Path) -> None:
    rows = ds.ImageFolderDataset(str(folder), shuffle=False)
    raw = [(bytes(image), int(label)) for image, label in rows.create_tuple_iterator(output_numpy=True, num_epochs=1)]
    assert [label for _, label in raw] == [0, 0, 1, 1]
    assert raw[1][0] == (folder / "cat" / "b.png").read_bytes()
    assert (rows.num_classes(), rows.get_class_indexing()) == (2, {"cat": 0, "dog": 1})
    rows = ds.ImageFolderDataset(folder, shuffle=False, decode=True, extensions=[".png"], class_indexing={"dog": 7})
    ((image, label),) = rows.create_tuple_iterator(output_numpy=True, num_epochs=1)
    assert (image.shape, image[0, 0].tolist(), label) == ((4, 5, 3), [9, 8, 7], 7)
    decoded = ds.ImageFolderDataset(folder, shuffle=False).map([vision.Decode(), vision.Resize((6, 6))], "image")
    images, labels = next(decoded.batch(4).create_tuple_iterator(output_numpy=True))
    assert (images.shape, images[3, 5, 5].tolist(), labels.tolist()) == ((4, 6, 6, 3), [9, 8, 7], [0, 0, 1, 1])
    flipped = ds.ImageFolderDataset(folder, shuffle=False, decrypt=lambda path: open(path, "rb").read()[::-1])
    assert bytes(next(iter(flipped))[0].asnumpy())[::-1] == (folder / "cat" / "a.bmp").read_bytes()


def test_a_damaged_image_is_named_with_its_file(folder: Path) -> None:
    file = folder / "dog" / "b.png"
    file.write_bytes(encoded((1, 2, 3), (300, 300))[:-200])
    rows = ds.ImageFolderDataset(str(folder), shuffle=False).map(vision.Decode(), "image")
    error = error_of(list, rows)
    assert error.message.startswith(f"map: Decode fails at row 3, of {str(file)!r}: Decode: cannot decode the")
    assert error.location is not None
    assert "vision.Decode()" in error.location.text
    error = error_of(list, ds.ImageFolderDataset(str(folder), decode=True))
    assert error.message.startswith("ImageFolderDataset: cannot decode the image: ")
    assert error.message.endswith(f": {str(file)!r}")
    file.write_text("these are no pixels")
    with pytest.raises(MspcError, match="Decode: these 19 bytes are no image of a known format"):
        list(rows)
    file.unlink()
    with pytest.raises(MspcError, match=r"ImageFolderDataset: cannot read '.*b\.png': No such file"):
        list(rows)


def test_folders_that_hold_no_images(folder: Path) -> None:
    with pytest.raises(MspcError, match=r"there are no images \(\.jpg\) in the folders of"):
        ds.ImageFolderDataset(str(folder), extensions=".jpg")
    with pytest.raises(MspcError, match="there is no folder 'bird' in"):
        ds.ImageFolderDataset(str(folder), class_indexing={"bird": 0})
    with pytest.raises(TypeError, match=r"class_indexing must be a dict, not \['cat'\]"):
        ds.ImageFolderDataset(str(folder), class_indexing=["cat"])  # type: ignore[arg-type]


def test_a_row_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1.bin").write_bytes(records([(1,)] * 2)[0])
    (tmp_path / "data_batch_2.bin").write_bytes(records([(2,)] * 2)[0])
    rows = ds.Cifar10Dataset(str(tmp_path), "train", shuffle=False).map(lambda label: 1 // (2 - int(label)), "label")
    with pytest.raises(ZeroDivisionError) as caught:
        list(rows)
    file = str(tmp_path / "data_batch_2.bin")
    expected = f"map: the lambda fails at row 2, record 0 of {file!r}: ZeroDivisionError: "
    assert str(getattr(caught.value, "message", "")).startswith(expected)
