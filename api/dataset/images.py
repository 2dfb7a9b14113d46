"""Data sets of images in their publishers' own formats: MNIST (idx) and CIFAR-10 (binary)."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from mspc.api.dataset.rows import Row
from mspc.api.dataset.sources import IndexedDataset
from mspc.api.errors import ApiValueError
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.regular import check_regular


class MnistDataset(IndexedDataset):
    """Images [28, 28, 1] (UInt8) and labels (UInt32) from files in the idx format of MNIST.

    Args:
        dataset_dir: folder with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-…`, plain
            or .gz; images
            may have any size.
        usage: "train", "test" or "all".

    Raises:
        MspcError: a file is missing or damaged. ValueError: an argument is impossible.
    """

    def __init__(
        self, dataset_dir: str, usage: str | None = None, num_samples: int | None = None,
        num_parallel_workers: int | None = None, shuffle: bool | None = None, sampler: Any = None,
        num_shards: int | None = None, shard_id: int | None = None, cache: Any = None,
    ) -> None:  # fmt: skip
        if dataset_dir is None or not str(dataset_dir):
            raise ApiValueError("MnistDataset: dataset_dir is missing", ["give the folder of the idx files"])
        parts = {
            "train": ("train",),
            "test": ("t10k",),
            "all": ("train", "t10k"),
            None: ("train", "t10k"),
        }.get(usage)
        if parts is None:
            raise ApiValueError(f"MnistDataset: usage {usage!r} is not 'train', 'test' or 'all'")
        folder = Path(str(dataset_dir))
        found = [
            p for p in parts if usage is not None or _find(folder, f"{p}-images-idx3-ubyte") is not None
        ] or parts
        pairs = [_read_pair(folder, part) for part in found]
        self.images = np.concatenate([images for images, _ in pairs])
        self.labels = np.concatenate([labels for _, labels in pairs]).astype(np.uint32)
        super().__init__(["image", "label"], shuffle is not False, num_samples, num_shards, shard_id, sampler)

    def length(self) -> int:
        return len(self.images)

    def row(self, index: int) -> Row:
        return self.images[index][..., None], self.labels[index]


def _read_pair(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    images = read_idx(folder, f"{part}-images-idx3-ubyte", 3)
    labels = read_idx(folder, f"{part}-labels-idx1-ubyte", 1)
    if len(images) != len(labels):
        raise MspcError(f"MnistDataset: {part} has {len(images)} images, but {len(labels)} labels")
    return images, labels


def _find(folder: Path, name: str) -> Path | None:
    for candidate in (folder / name, folder / f"{name}.gz", folder / name.replace("-idx", ".idx")):
        if os.path.isfile(candidate):
            return candidate
    return None


def read_idx(folder: Path, name: str, dimensions: int) -> np.ndarray:
    """The array of bytes in a file of the idx format: magic number, sizes as big-endian 32-bit numbers, data.

    Raises:
        MspcError: the file is missing, of another kind or damaged.
    """
    path = _find(folder, name)
    if path is None:
        raise MspcError(f"there is no file {name!r} (or {name + '.gz'!r}) in {str(folder)!r}")
    try:
        check_regular(path)
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise MspcError(f"cannot read {str(path)!r}: {error}") from None
    start = 4 + 4 * dimensions
    if len(raw) < start or raw[:4] != bytes((0, 0, 8, dimensions)):
        raise MspcError(f"{str(path)!r} is no idx file of bytes with {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise MspcError(f"{str(path)!r} holds {len(raw) - start} bytes for shape {shape}: it is damaged")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


_CIFAR_RECORD = 1 + 3 * 32 * 32
"""Bytes of one image: its label, then the red, green and blue planes."""


class Cifar10Dataset(IndexedDataset):
    """Images [32, 32, 3] (UInt8) and labels (UInt32) from the binary version of CIFAR-10.

    Args:
        dataset_dir: folder with `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`.
        usage: "train", "test" or "all".

    Raises:
        MspcError: a file is missing or damaged. ValueError: an argument is impossible.
    """

    def __init__(
        self, dataset_dir: str, usage: str | None = None, num_samples: int | None = None,
        num_parallel_workers: int | None = None, shuffle: bool | None = None, sampler: Any = None,
        num_shards: int | None = None, shard_id: int | None = None, cache: Any = None,
    ) -> None:  # fmt: skip
        if usage not in ("train", "test", "all", None):
            raise ApiValueError(f"Cifar10Dataset: usage {usage!r} is not 'train', 'test' or 'all'")
        folder = Path(str(dataset_dir))
        wanted = {"train": "data_batch_*.bin", "test": "test_batch.bin"}.get(usage or "all", "*_batch*.bin")
        files = sorted(folder.glob(wanted)) if os.path.isdir(folder) else []
        if not files:
            raise MspcError(f"there is no file {wanted!r} in {str(folder)!r}")
        records = np.concatenate([_read_cifar(path) for path in files])
        self.labels = records[:, 0].astype(np.uint32)
        self.images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        super().__init__(["image", "label"], shuffle is not False, num_samples, num_shards, shard_id, sampler)

    def length(self) -> int:
        return len(self.images)

    def row(self, index: int) -> Row:
        return np.ascontiguousarray(self.images[index]), self.labels[index]


def _read_cifar(path: Path) -> np.ndarray:
    try:
        check_regular(path)
        raw = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise MspcError(f"cannot read {str(path)!r}: {error.strerror}") from None
    if raw.size == 0 or raw.size % _CIFAR_RECORD:
        raise MspcError(
            f"{str(path)!r} holds {raw.size} bytes, no multiple of {_CIFAR_RECORD}: it is damaged"
        )
    return raw.reshape(-1, _CIFAR_RECORD)
