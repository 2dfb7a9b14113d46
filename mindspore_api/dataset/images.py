"""Data sets of images in their publishers' own formats: MNIST, CIFAR-10 and CIFAR-100, folders of images."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.regular import check_regular
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.dataset import config
from mspc.mindspore_api.dataset.nodes.block import Column, column_of
from mspc.mindspore_api.dataset.nodes.pipeline_node import Arrays, Indexed
from mspc.mindspore_api.dataset.origins import MappableDataset, VisionBaseDataset
from mspc.mindspore_api.dataset.pillow import decoded
from mspc.mindspore_api.dataset.row_values import flag, workers_of
from mspc.mindspore_api.dataset.samplers import BuiltinSampler, select_sampler
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError


class _Images(Arrays):
    """Images from files, with known labels."""

    def __init__(self, records: Records, sampler: BuiltinSampler) -> None:
        super().__init__(["image", *records.kinds], [records.images, *records.labels.T.astype(np.uint32)], sampler)
        self.records = records

    @property
    def classes(self) -> int | None:
        return [*self.records.kinds.values()][-1]

    def describe(self, number: int) -> str:
        return self.records.describe(number)


class _ImageDataset(MappableDataset, VisionBaseDataset):
    """Data set with images and labels in memory. images: [rows, height, width], and channels if there are several.
    labels: [rows]."""

    def __init__(
        self, dataset_dir: str, usage: str | None = None, num_samples: int | None = None,
        num_parallel_workers: int | None = None, shuffle: Any = None, sampler: Any = None,
        num_shards: int | None = None, shard_id: int | None = None, cache: Any = None,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        folder = _folder(name, dataset_dir)
        if usage not in ("train", "test", "all", None):
            raise ApiValueError(f"{name}: usage {usage!r} is not 'train', 'test' or 'all'")
        workers_of(name, num_parallel_workers, 1)
        chosen = select_sampler(name, sampler, shuffle, num_samples, num_shards, shard_id)
        node = _Images(self._read(name, folder, usage or "all"), chosen)
        super().__init__(node)
        images = node.arrays[0]
        self.images = images[..., 0] if images.shape[-1] == 1 else images
        self.labels = node.arrays[-1]

    def _read(self, name: str, folder: Path, usage: str) -> Records:
        raise NotImplementedError


class MnistDataset(_ImageDataset):
    """Images [28, 28, 1] (UInt8) and labels (UInt32) from files in the idx format of MNIST.

    Args:
        dataset_dir: folder with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-...`, plain or .gz; images
            may have any size.
        usage: "train", "test" or "all". The other arguments are as for all data sets: `sampler` excludes `shuffle` and
            shards.

    Raises:
        MspcError: a file is missing or damaged. TypeError, ValueError, RuntimeError: an argument is impossible.
    """

    def _read(self, name: str, folder: Path, usage: str) -> Records:
        parts = {"train": ("train",), "test": ("t10k",)}.get(usage, ("train", "t10k"))
        if usage == "all":
            parts = tuple(part for part in parts if find_idx(folder, f"{part}-images-idx3-ubyte")) or parts
        return read_mnist(name, folder, parts)


class Cifar10Dataset(_ImageDataset):
    """Images [32, 32, 3] (UInt8) and labels (UInt32) from the binary version of CIFAR-10.

    Args:
        dataset_dir: folder with `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`.
        usage: "train", "test" or "all".

    Raises:
        MspcError: a file is missing or damaged. TypeError, ValueError, RuntimeError: an argument is impossible.
    """

    def _read(self, name: str, folder: Path, usage: str) -> Records:
        patterns = {"train": ["data_batch_*.bin"], "test": ["test_batch.bin"]}.get(usage, ["*_batch*.bin"])
        return read_cifar(_files(name, folder, patterns), {"label": 10})


class Cifar100Dataset(_ImageDataset):
    """Images [32, 32, 3] (UInt8), coarse labels and fine labels (UInt32) from the binary version of CIFAR-100.

    Args:
        dataset_dir: folder with `train.bin` and `test.bin`. usage: "train", "test" or "all".

    Raises:
        MspcError: a file is missing or damaged. TypeError, ValueError, RuntimeError: an argument is impossible.
    """

    def _read(self, name: str, folder: Path, usage: str) -> Records:
        patterns = {"train": ["train.bin"], "test": ["test.bin"]}.get(usage, ["train.bin", "test.bin"])
        return read_cifar(_files(name, folder, patterns), {"coarse_label": 20, "fine_label": 100})


class ImageFolderDataset(MappableDataset, VisionBaseDataset):
    """Images in a folder that has one subfolder per class, with the class numbers (UInt32). An image is the bytes of
    its file, one dimension, or [height, width, 3] (UInt8) with `decode`.

    Args:
        extensions: suffixes of the files to read; by default all kinds of images.
        class_indexing: class numbers by subfolder name; by default counted from 0 in sorted order.
        decrypt: a function that returns the bytes of a file by its path.

    Raises:
        MspcError: there is no folder or image, or one cannot be read. TypeError, ValueError, RuntimeError: an argument
            is impossible.
    """

    def __init__(
        self, dataset_dir: str, num_samples: int | None = None, num_parallel_workers: int | None = None,
        shuffle: Any = None, sampler: Any = None, extensions: Any = None,
        class_indexing: dict[str, int] | None = None, decode: bool = False, num_shards: int | None = None,
        shard_id: int | None = None, cache: Any = None, decrypt: Callable[[str], bytes] | None = None,
    ) -> None:  # fmt: skip
        name = "ImageFolderDataset"
        folder = _folder(name, dataset_dir)
        ends = () if not extensions else (extensions,) if isinstance(extensions, str) else tuple(extensions)
        if class_indexing is not None and not isinstance(class_indexing, dict):
            raise ApiTypeError(f"{name}: class_indexing must be a dict, not {class_indexing!r}")
        workers = workers_of(name, num_parallel_workers, config.get_num_parallel_workers())
        found = list_images(name, folder, ends, class_indexing or None)
        chosen = select_sampler(name, sampler, shuffle, num_samples, num_shards, shard_id)
        super().__init__(_ImageFiles(found, flag(name, "decode", decode), decrypt, chosen, workers))


class _ImageFiles(Indexed):
    """Image files that are read together with their rows."""

    def __init__(
        self, found: tuple[list[tuple[Path, int]], dict[str, int]], decode: bool,
        decrypt: Callable[[str], bytes] | None, sampler: BuiltinSampler, workers: int,
    ) -> None:  # fmt: skip
        super().__init__(["image", "label"], sampler, workers)
        self.files = [file for file, _ in found[0]]
        self.numbers_of_classes = np.array([number for _, number in found[0]], np.uint32)
        self.indexing = found[1]
        self.decode = decode
        self.decrypt = decrypt
        self.is_own = decrypt is None

    @property
    def classes(self) -> int | None:
        return len(self.indexing)

    @property
    def class_indexing(self) -> dict[str, int]:
        return self.indexing

    def length(self) -> int:
        return len(self.files)

    def describe(self, number: int) -> str:
        return f"of {str(self.files[number])!r}"

    def fetch(self, numbers: np.ndarray) -> tuple[Column, ...]:
        images = column_of([self._image(self.files[number]) for number in numbers])
        return images, self.numbers_of_classes[numbers]

    def _image(self, path: Path) -> np.ndarray:
        if self.decrypt is not None:
            raw = np.frombuffer(self.decrypt(str(path)), np.uint8)
        else:
            try:
                check_regular(path)
                raw = np.fromfile(path, np.uint8)
            except OSError as error:
                raise MspcError(f"ImageFolderDataset: cannot read {str(path)!r}: {error.strerror}") from None
        if not self.decode:
            return raw
        try:
            return np.asarray(decoded("ImageFolderDataset", raw))
        except MspcError as error:
            raise MspcError(f"{error.message}: {str(path)!r}", notes=error.notes) from None


def _folder(name: str, dataset_dir: Any) -> Path:
    if not isinstance(dataset_dir, (str, os.PathLike)) or not str(dataset_dir):
        raise ApiValueError(f"{name}: dataset_dir must be the name of a folder, not {dataset_dir!r}")
    return Path(dataset_dir)


def _files(name: str, folder: Path, patterns: Sequence[str]) -> list[Path]:
    check_folder(name, folder)
    files = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    for pattern in patterns:
        if not any(path.match(pattern) for path in files):
            raise MspcError(f"{name}: there is no file {pattern!r} in {str(folder)!r}")
    return files


MAX_PACKED = 1100
"""Maximum number of decompressed bytes per byte of a .gz file; one for a plain file."""
PIXELS = 3 * 32 * 32
"""Bytes of an image of CIFAR: its red, green and blue planes."""


@dataclass(frozen=True)
class Records:
    """Images of several files. images: [rows, height, width, channels] of bytes. labels: [rows, kinds] of bytes. kinds:
    number of classes of each label, by column name. files: (name, rows) of each."""

    images: np.ndarray
    labels: np.ndarray
    kinds: dict[str, int]
    files: tuple[tuple[str, int], ...]

    def describe(self, number: int) -> str:
        """Return the file of a row and its record number in that file."""
        for name, rows in self.files:
            if number < rows:
                return f"record {number} of {name!r}"
            number -= rows
        return ""


def check_folder(name: str, folder: Path) -> None:
    """Raise MspcError if there is no folder of that name."""
    if not os.path.isdir(folder):
        raise MspcError(f"{name}: there is no folder {str(folder)!r}")


def read_mnist(name: str, folder: Path, parts: tuple[str, ...]) -> Records:
    """Return the images of some parts, "train" and "t10k". Raise MspcError for missing or damaged files."""
    pairs = [_read_pair(name, folder, part) for part in parts]
    shapes = {images.shape[1:] for images, _, _ in pairs}
    if len(shapes) > 1:
        raise MspcError(f"{name}: the images of {folder} have different sizes: {', '.join(map(str, sorted(shapes)))}")
    images = np.concatenate([images for images, _, _ in pairs])[..., None]
    labels = np.concatenate([labels for _, labels, _ in pairs])[:, None]
    return Records(images, labels, {"label": 10}, tuple((path, len(images)) for images, _, path in pairs))


def _read_pair(name: str, folder: Path, part: str) -> tuple[np.ndarray, np.ndarray, str]:
    images, path = read_idx(folder, f"{part}-images-idx3-ubyte", 3)
    labels, labels_path = read_idx(folder, f"{part}-labels-idx1-ubyte", 1)
    if len(images) != len(labels):
        raise MspcError(f"{name}: {part} has {len(images)} images, but {len(labels)} labels")
    _check_labels(labels, 10, labels_path)
    return images, labels, path


def find_idx(folder: Path, name: str) -> Path | None:
    for candidate in (folder / name, folder / f"{name}.gz", folder / name.replace("-idx", ".idx")):
        if os.path.isfile(candidate):
            return candidate
    return None


def read_idx(folder: Path, name: str, dimensions: int) -> tuple[np.ndarray, str]:
    """Return (the byte array of a file in the idx format, the file's path). The format: magic number, sizes as
    big-endian 32-bit numbers, data. Raise MspcError if the file is missing, of another kind or damaged."""
    path = find_idx(folder, name)
    if path is None:
        raise MspcError(f"there is no file {name!r} (or {name + '.gz'!r}) in {str(folder)!r}")
    try:
        check_regular(path)
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return _array_of(file, path, dimensions), str(path)
    except (OSError, EOFError, zlib.error) as error:
        raise MspcError(f"cannot read {str(path)!r}: {error}") from None


def _array_of(file: Any, path: Path, dimensions: int) -> np.ndarray:
    """Return the array of an open file. Read and decompress no more bytes than its header announces. Raise MspcError
    for a damaged file."""
    head = file.read(4 + 4 * dimensions)
    if len(head) < 4 + 4 * dimensions or head[:4] != bytes((0, 0, 8, dimensions)):
        raise MspcError(f"{str(path)!r} is no idx file of bytes with {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", head[4:])
    size = math.prod(shape)
    raw = file.read(size + 1) if size <= MAX_PACKED * os.stat(path).st_size else b""
    if len(raw) != size:
        found = f"more than {size}" if len(raw) > size else f"less than {size}"
        raise MspcError(f"{str(path)!r} holds {found} bytes for shape {shape}: it is damaged", code="E0116")
    return np.frombuffer(raw, np.uint8).reshape(shape)


def read_cifar(files: list[Path], kinds: dict[str, int]) -> Records:
    """Return the records of CIFAR files: labels, one byte for each of `kinds`, then the three planes of 32 x 32. Raise
    MspcError if a file cannot be read, is damaged, or is of another format."""
    records = [_read_records(path, kinds) for path in files]
    joined = np.concatenate(records)
    planes = joined[:, len(kinds) :].reshape(-1, 3, 32, 32)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    named = tuple((str(path), len(rows)) for path, rows in zip(files, records, strict=True))
    return Records(images, joined[:, : len(kinds)].copy(), kinds, named)


def _read_records(path: Path, kinds: dict[str, int]) -> np.ndarray:
    try:
        check_regular(path)
        raw = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise MspcError(f"cannot read {str(path)!r}: {error.strerror}") from None
    record = len(kinds) + PIXELS
    if raw.size == 0 or raw.size % record:
        raise MspcError(f"{str(path)!r} holds {raw.size} bytes, no multiple of {record}: it is damaged", code="E0116")
    rows = raw.reshape(-1, record)
    for place, count in enumerate(kinds.values()):
        _check_labels(rows[:, place], count, str(path))
    return rows


def _check_labels(labels: np.ndarray, classes: int, path: str) -> None:
    wrong = np.flatnonzero(labels >= classes)
    if wrong.size:
        raise MspcError(
            f"{path!r}: record {wrong[0]} has label {labels[wrong[0]]}, which is not from 0 to {classes - 1}: "
            "it is damaged, or of another format", code="E0116"
        )


def list_images(
    name: str, folder: Path, extensions: tuple[str, ...], indexing: dict[str, int] | None
) -> tuple[list[tuple[Path, int]], dict[str, int]]:
    """Return ([(file, class number)] sorted by class and name, class numbers by name) for a folder that has one
    subfolder per class. Raise MspcError if there is no such folder, class or image."""
    check_folder(name, folder)
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    found = {label: number for number, label in enumerate(classes)} if indexing is None else dict(indexing)
    for label in found:
        if label not in classes:
            raise MspcError(f"{name}: there is no folder {label!r} in {str(folder)!r}")
    images = [
        (path, number)
        for label, number in found.items()
        for path in sorted((folder / label).rglob("*"))
        if path.is_file() and (path.suffix in extensions if extensions else path.suffix.lower() in IMAGES)
    ]
    if not images:
        wanted = ", ".join(extensions or IMAGES)
        raise MspcError(f"{name}: there are no images ({wanted}) in the folders of {str(folder)!r}")
    return images, found


IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Suffixes of files that are read as images."""
