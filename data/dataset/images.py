"""These data sets are images in their publishers' own formats: MNIST, CIFAR-10 and CIFAR-100, folders of images."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset import config
from mspc.data.dataset.formats import Records, check_folder, find_idx, list_images, read_cifar, read_mnist
from mspc.data.dataset.nodes.block import Column, column_of
from mspc.data.dataset.nodes.indexed import Arrays, Indexed
from mspc.data.dataset.origins import MappableDataset, VisionBaseDataset
from mspc.data.dataset.pillow import decoded
from mspc.data.dataset.row_values import flag, workers_of
from mspc.data.dataset.samplers import BuiltinSampler, select_sampler
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.regular import check_regular


class _Images(Arrays):
    """Images of files, whose labels are known."""

    def __init__(self, records: Records, kinds: Sequence[str], classes: int, sampler: BuiltinSampler) -> None:
        labels = records.labels.astype(np.uint32)
        columns = [labels[:, place] for place in range(len(kinds))]
        super().__init__(["image", *kinds], [records.images, *columns], sampler, columns[-1])
        self.records = records
        self._classes = classes

    @property
    def classes(self) -> int | None:
        return self._classes

    def describe(self, number: int) -> str:
        return self.records.describe(number)


class _ImageDataset(MappableDataset, VisionBaseDataset):
    """A data set whose images and labels are in memory. images: [rows, height, width, channels]. labels: [rows]."""

    def __init__(self, node: _Images) -> None:
        super().__init__(node)
        self.images = node.arrays[0]
        self.labels = node.arrays[-1]


class MnistDataset(_ImageDataset):
    """Images [28, 28, 1] (UInt8) and labels (UInt32) from files in the idx format of MNIST.

    Args:
        dataset_dir: folder with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-...`, plain or .gz; images
            may have any size.
        usage: "train", "test" or "all". The others are as everywhere: `sampler` excludes `shuffle` and shards.

    Raises:
        MspcError: a file is missing or damaged. TypeError, ValueError, RuntimeError: an argument is impossible.
    """

    def __init__(
        self, dataset_dir: str, usage: str | None = None, num_samples: int | None = None,
        num_parallel_workers: int | None = None, shuffle: Any = None, sampler: Any = None,
        num_shards: int | None = None, shard_id: int | None = None, cache: Any = None,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        folder = _folder(name, dataset_dir)
        usage = _usage(name, usage)
        workers_of(name, num_parallel_workers, 1)
        parts = {"train": ("train",), "test": ("t10k",)}.get(usage, ("train", "t10k"))
        if usage == "all":
            parts = tuple(part for part in parts if find_idx(folder, f"{part}-images-idx3-ubyte")) or parts
        chosen = select_sampler(name, sampler, shuffle, num_samples, num_shards, shard_id)
        super().__init__(_Images(read_mnist(name, folder, parts), ["label"], 10, chosen))
        self.images = self.images[..., 0]


class FashionMnistDataset(MnistDataset):
    """Clothes in files as those of MnistDataset, with its arguments and errors."""


class KMnistDataset(MnistDataset):
    """Cursive characters in files as those of MnistDataset, with its arguments and errors."""


class Cifar10Dataset(_ImageDataset):
    """Images [32, 32, 3] (UInt8) and labels (UInt32) from the binary version of CIFAR-10.

    Args:
        dataset_dir: folder with `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`.
        usage: "train", "test" or "all".

    Raises:
        MspcError: a file is missing or damaged. TypeError, ValueError, RuntimeError: an argument is impossible.
    """

    def __init__(
        self, dataset_dir: str, usage: str | None = None, num_samples: int | None = None,
        num_parallel_workers: int | None = None, shuffle: Any = None, sampler: Any = None,
        num_shards: int | None = None, shard_id: int | None = None, cache: Any = None,
    ) -> None:  # fmt: skip
        name = "Cifar10Dataset"
        wanted = {"train": ["data_batch_*.bin"], "test": ["test_batch.bin"]}.get(_usage(name, usage), ["*_batch*.bin"])
        workers_of(name, num_parallel_workers, 1)
        chosen = select_sampler(name, sampler, shuffle, num_samples, num_shards, shard_id)
        super().__init__(_cifar(name, dataset_dir, wanted, {"label": 10}, chosen))


class Cifar100Dataset(_ImageDataset):
    """Images [32, 32, 3] (UInt8), coarse labels and fine labels (UInt32) from the binary version of CIFAR-100.

    Args:
        dataset_dir: folder with `train.bin` and `test.bin`. usage: "train", "test" or "all".

    Raises:
        MspcError: a file is missing or damaged. TypeError, ValueError, RuntimeError: an argument is impossible.
    """

    def __init__(
        self, dataset_dir: str, usage: str | None = None, num_samples: int | None = None,
        num_parallel_workers: int | None = None, shuffle: Any = None, sampler: Any = None,
        num_shards: int | None = None, shard_id: int | None = None, cache: Any = None,
    ) -> None:  # fmt: skip
        name = "Cifar100Dataset"
        wanted = {"train": ["train.bin"], "test": ["test.bin"]}.get(_usage(name, usage), ["train.bin", "test.bin"])
        workers_of(name, num_parallel_workers, 1)
        chosen = select_sampler(name, sampler, shuffle, num_samples, num_shards, shard_id)
        super().__init__(_cifar(name, dataset_dir, wanted, {"coarse_label": 20, "fine_label": 100}, chosen))


def _cifar(name: str, folder: str, wanted: list[str], labels: dict[str, int], sampler: BuiltinSampler) -> _Images:
    """Images of the files `wanted`. labels: how many classes each label has, by the names of their columns."""
    records = read_cifar(_files(name, folder, wanted), tuple(labels.values()))
    return _Images(records, [*labels], [*labels.values()][-1], sampler)


class ImageFolderDataset(MappableDataset, VisionBaseDataset):
    """Images of a folder with one folder for every class, and the class's number (UInt32). An image is the bytes of its
    file, one dimension, or [height, width, 3] (UInt8) with `decode`.

    Args:
        extensions: ends of names of the files that are read, all kinds of images without them.
        class_indexing: numbers of classes by the names of their folders; without it they are counted from 0, sorted.
        decrypt: a function that gives the bytes of a file by its path.

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
    """Files of images, read when their rows are."""

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

    def labels(self) -> np.ndarray:
        return self.numbers_of_classes

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


def _usage(name: str, usage: str | None) -> str:
    if usage not in ("train", "test", "all", None):
        raise ApiValueError(f"{name}: usage {usage!r} is not 'train', 'test' or 'all'")
    return usage or "all"


def _files(name: str, dataset_dir: Any, patterns: Sequence[str]) -> list[Path]:
    folder = _folder(name, dataset_dir)
    check_folder(name, folder)
    files = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    for pattern in patterns:
        if not any(path.match(pattern) for path in files):
            raise MspcError(f"{name}: there is no file {pattern!r} in {str(folder)!r}")
    return files
