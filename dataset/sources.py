"""Where rows come from: Python generators, arrays, and MNIST's own files."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.dataset.pipeline import Dataset, Row, as_column, next_shuffle, shuffled_order, whole
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import dtype_of
from mspc.session.errors import ApiTypeError, ApiValueError


class _Indexed(Dataset):
    """Rows that can be reached by number: in order or shuffled, all or one shard's.

    Shard s of n holds rows s, s + n, s + 2 n, ...; the last ones are filled up from the first, so that all shards have
    the same number of rows.
    """

    def __init__(
        self, column_names: Sequence[str], shuffle: bool, num_samples: int | None, num_shards: int | None,
        shard_id: int | None, sampler: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(column_names)
        if (num_shards is None) != (shard_id is None):
            raise ApiValueError("num_shards and shard_id must be given together")
        self.shards = 1 if num_shards is None else whole("data set", "num_shards", num_shards)
        self.shard = 0 if shard_id is None else whole("data set", "shard_id", shard_id, 0)
        if self.shard >= self.shards:
            raise ApiValueError(f"shard_id {shard_id} must be below num_shards {num_shards}")
        self.limit = None if num_samples is None else whole("data set", "num_samples", num_samples)
        self.sampler = sampler
        self.key = next_shuffle() if shuffle and sampler is None else 0

    def length(self) -> int:
        """Number of rows of the source."""
        raise NotImplementedError

    def row(self, index: int) -> Row:
        raise NotImplementedError

    def count(self) -> int:
        if self.sampler is not None:
            return len(list(self.sampler))
        rows = math.ceil(self.length() / self.shards)
        return rows if self.limit is None else min(rows, self.limit)

    def rows(self, epoch: int) -> Iterator[Row]:
        if self.sampler is not None:
            for index in self.sampler:
                yield self.row(int(index))
            return
        size = self.length()
        order = shuffled_order(size, self.key, epoch) if self.key else range(size)
        for i in range(self.count()):
            yield self.row(int(order[(self.shard + i * self.shards) % size]))


class GeneratorDataset(Dataset):
    """Rows from Python.

    Args:
        source: a function that returns an iterator (called anew for every epoch), an iterable, or an object with
            `__getitem__` and `__len__`, which is shuffled unless `shuffle` is False.
        column_names: names of the columns, or one string. column_types: element types to convert to.
        num_samples: at most so many rows. num_shards, shard_id: every num_shards-th row from shard_id on.

    Raises:
        TypeError, ValueError: an argument is of the wrong kind.
    """

    def __init__(
        self, source: Any, column_names: Any = None, column_types: Any = None, schema: Any = None,
        num_samples: int | None = None, num_parallel_workers: int = 1, shuffle: bool | None = None,
        sampler: Any = None, num_shards: int | None = None, shard_id: int | None = None, **_: Any,
    ) -> None:  # fmt: skip
        if column_names is None:
            raise ApiValueError("GeneratorDataset: column_names is missing")
        names = [column_names] if isinstance(column_names, str) else list(column_names)
        super().__init__(names)
        self._types = None if column_types is None else [dtype_of(t).numpy for t in column_types]
        if self._types is not None and len(self._types) != len(names):
            raise ApiValueError(f"GeneratorDataset: {len(self._types)} column_types for {len(names)} columns")
        random_access = hasattr(source, "__getitem__") and hasattr(source, "__len__")
        if not (random_access or callable(source) or hasattr(source, "__iter__") or hasattr(source, "__next__")):
            raise ApiTypeError(f"GeneratorDataset: source {type(source).__name__} gives no rows")
        self.source = source
        self._indexed: _Indexed | None = None
        if random_access:
            drawn = shuffle is not False and sampler is None
            self._indexed = _Items(source, self._checked, names, drawn, num_samples, num_shards, shard_id, sampler)
        elif shuffle or sampler is not None:
            raise ApiValueError("GeneratorDataset: only a source with __getitem__ and __len__ can be shuffled or sampled")
        self._limit = num_samples
        self._shards = (num_shards or 1, shard_id or 0)

    def rows(self, epoch: int) -> Iterator[Row]:
        if self._indexed is not None:
            yield from self._indexed.rows(epoch)
            return
        shards, shard = self._shards
        made = 0
        for i, values in enumerate(self.source() if callable(self.source) else self.source):
            if self._limit is not None and made >= self._limit:
                return
            if i % shards == shard:
                made += 1
                yield self._checked(values)

    def count(self) -> int:
        return self._indexed.count() if self._indexed is not None else super().count()

    def _checked(self, values: Any) -> Row:
        columns = values if isinstance(values, (tuple, list)) else (values,)
        if len(columns) != len(self.column_names):
            raise ApiValueError(
                f"GeneratorDataset: a row has {len(columns)} columns, column_names has {len(self.column_names)}"
            )
        row = tuple(as_column(column) for column in columns)
        if self._types is None:
            return row
        return tuple(column.astype(kind) for column, kind in zip(row, self._types, strict=True))


class _Items(_Indexed):
    """The rows of an object with `__getitem__`."""

    def __init__(self, source: Any, checked: Callable[[Any], Row], *settings: Any) -> None:
        super().__init__(*settings)
        self.source = source
        self.checked = checked

    def length(self) -> int:
        return len(self.source)

    def row(self, index: int) -> Row:
        return self.checked(self.source[index])


class NumpySlicesDataset(_Indexed):
    """Rows of arrays: row i holds the i-th element of each.

    Args: data: an array, a tuple or list of arrays of one length, or a dict by column name.
    """

    def __init__(
        self, data: Any, column_names: Any = None, num_samples: int | None = None, num_parallel_workers: int = 1,
        shuffle: bool | None = None, sampler: Any = None, num_shards: int | None = None, shard_id: int | None = None,
    ) -> None:  # fmt: skip
        if isinstance(data, dict):
            names, columns = list(data), list(data.values())
        else:
            columns = list(data) if isinstance(data, tuple) else [data]
            names = [f"column_{i}" for i in range(len(columns))]
        if column_names is not None:
            names = [column_names] if isinstance(column_names, str) else list(column_names)
        self.columns = [as_column(column) for column in columns]
        if len(names) != len(self.columns):
            raise ApiValueError(f"NumpySlicesDataset: {len(self.columns)} columns, {len(names)} names")
        if len({column.shape[:1] for column in self.columns}) != 1 or not self.columns[0].ndim:
            raise ApiValueError("NumpySlicesDataset: the columns have different lengths")
        super().__init__(names, shuffle is not False, num_samples, num_shards, shard_id, sampler)

    def length(self) -> int:
        return len(self.columns[0])

    def row(self, index: int) -> Row:
        return tuple(column[index] for column in self.columns)


class MnistDataset(_Indexed):
    """Images [28, 28, 1] (UInt8) and labels (UInt32) from files in the idx format of MNIST.

    Args:
        dataset_dir: folder with `train-images-idx3-ubyte`, `train-labels-idx1-ubyte`, `t10k-…`, plain or .gz; images
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
        parts = {"train": ("train",), "test": ("t10k",), "all": ("train", "t10k"), None: ("train", "t10k")}.get(usage)
        if parts is None:
            raise ApiValueError(f"MnistDataset: usage {usage!r} is not 'train', 'test' or 'all'")
        folder = Path(str(dataset_dir))
        found = [p for p in parts if usage is not None or _find(folder, f"{p}-images-idx3-ubyte") is not None] or parts
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
        if candidate.is_file():
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
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise MspcError(f"cannot read {str(path)!r}: {error}") from None
    start = 4 + 4 * dimensions
    if len(raw) < start or raw[:4] != bytes((0, 0, 8, dimensions)):
        raise MspcError(f"{str(path)!r} is no idx file of bytes with {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise MspcError(f"{str(path)!r} holds {len(raw) - start} bytes for shape {shape}: it is damaged")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)
