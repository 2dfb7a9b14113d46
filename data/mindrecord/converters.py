"""Image sets and tables become files of records here, as `mindspore.mindrecord` converts them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mspc.api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.data.dataset.formats import IMAGES, Records, check_folder, read_cifar, read_mnist
from mspc.data.dataset.pillow import image_of
from mspc.data.mindrecord.filewriter import FileWriter
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of
from mspc.ir.files.regular import check_regular

Row = dict[str, Any]
AT_ONCE = 512
"""Rows that are in memory."""
_PICKLED = "its files are pickled, which mspc does not read; take the binary version of the data set"


class _Converter:
    """What all share: `transform` writes, and so does `run`."""

    def __init__(self, destination: Any, partition_number: Any = 1, **paths: Any) -> None:
        name = type(self).__name__
        for argument, path in {**paths, "destination": destination}.items():
            if not isinstance(path, str) or not path:
                raise ApiValueError(f"{name}: {argument} must be a path, not {path!r}")
        if isinstance(partition_number, bool) or not isinstance(partition_number, int) or partition_number < 1:
            raise ApiValueError(f"{name}: partition_number must be an integer from 1, not {partition_number!r}")
        self.destination, self.partition_number = destination, partition_number

    def _write(self, path: str, schema: Mapping[str, Any], rows: Iterable[Row], index: Sequence[str] = ()) -> None:
        writer = FileWriter(path, self.partition_number)
        writer.add_schema(schema)
        if index:
            writer.add_index(list(index))
        rest = iter(rows)
        while some := list(islice(rest, AT_ONCE)):
            writer.write_raw_data(some)
        writer.commit()


class _Cifar(_Converter):
    """CIFAR's binary files: records of the training images in `destination`, of the others in `destination` + "_test",
    each with its id, its labels and a PNG image as `data`."""

    parts: ClassVar[tuple[tuple[str, ...], tuple[str, ...]]]
    labels: ClassVar[Mapping[str, int]]

    def __init__(self, source: str, destination: str) -> None:
        super().__init__(destination, source=source)
        self.source = Path(source)

    def run(self, fields: list[str] | None = None) -> None:
        """Write the files; `fields` are in their index.

        Raises:
            ValueError: `fields` is no list. MspcError: files are missing, damaged or pickled. RuntimeError: records are
            there already.
        """
        name = type(self).__name__
        if fields is not None and not isinstance(fields, list):
            raise ApiValueError(f"{name}: fields must be a list of names, not {fields!r}")
        check_folder(name, self.source)
        folders = (self.source, *sorted(self.source.iterdir()))
        folder = next((folder for folder in folders if (folder / self.parts[0][0]).is_file()), None)
        if folder is None:
            pickled = any(file.is_file() and not file.suffix for file in self.source.rglob("*"))
            notes = [_PICKLED] if pickled else []
            raise MspcError(f"{name}: there is no {self.parts[0][0]!r} in {str(self.source)!r}", notes=notes)
        schema = {name: {"type": "int64"} for name in ("id", *self.labels)} | {"data": {"type": "bytes"}}
        for files, suffix in zip(self.parts, ("", "_test"), strict=True):
            records = read_cifar([folder / file for file in files], tuple(self.labels.values()))
            self._write(f"{self.destination}{suffix}", schema, _images(records, tuple(self.labels)), fields or ())

    transform = run


class Cifar10ToMR(_Cifar):
    """CIFAR-10's binary version as records; see `run`."""

    parts = (tuple(f"data_batch_{number}.bin" for number in range(1, 6)), ("test_batch.bin",))
    labels: ClassVar[Mapping[str, int]] = {"label": 10}


class Cifar100ToMR(_Cifar):
    """CIFAR-100's binary version as records; see `run`."""

    parts = (("train.bin",), ("test.bin",))
    labels: ClassVar[Mapping[str, int]] = {"coarse_label": 20, "fine_label": 100}


class MnistToMR(_Converter):
    """MNIST's files as records with a label and a PNG image as `data`: `destination` + "_train.mindrecord" and
    "_test.mindrecord"."""

    def __init__(self, source: str, destination: str, partition_number: int = 1) -> None:
        super().__init__(destination, partition_number, source=source)
        self.source = Path(source)

    def run(self) -> None:
        """Write the files. Raises MspcError for files that are missing or damaged, RuntimeError where records are."""
        check_folder("MnistToMR", self.source)
        schema = {"label": {"type": "int64"}, "data": {"type": "bytes"}}
        for part, suffix in (("train", "train"), ("t10k", "test")):
            rows = _images(read_mnist("MnistToMR", self.source, (part,)), ("label",), numbered=False)
            self._write(f"{self.destination}_{suffix}.mindrecord", schema, rows, ["label"])

    transform = run


class ImageNetToMR(_Converter):
    """Images in one folder for every class, as their files are, with a label and a name.

    Args: map_file: lines "FOLDER LABEL". image_dir: holds the folders.
    """

    def __init__(self, map_file: str, image_dir: str, destination: str, partition_number: int = 1) -> None:
        super().__init__(destination, partition_number, map_file=map_file, image_dir=image_dir)
        self.map_file, self.image_dir = Path(map_file), Path(image_dir)

    def run(self) -> None:
        """Write the file. Raises MspcError where the map or a folder is missing or cannot be read, RuntimeError where
        records are."""
        check_folder("ImageNetToMR", self.image_dir)
        schema = {"label": {"type": "int32"}, "image": {"type": "bytes"}, "file_name": {"type": "string"}}
        self._write(self.destination, schema, self._rows(self._labels()), ["label", "file_name"])

    transform = run

    def _labels(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for number, line in enumerate(_text("ImageNetToMR", self.map_file).splitlines(), 1):
            folder, _, label = line.strip().rpartition(" ")
            if not line.strip():
                continue
            if not folder or not label.isdecimal() or len(label) > 10 or int(label) >= 2**31:
                raise MspcError(
                    f"ImageNetToMR: {str(self.map_file)!r} has no folder and label in line {number}: {line!r}"
                )
            found[folder.strip()] = int(label)
        for folder in found:
            check_folder("ImageNetToMR", self.image_dir / folder)
        return found

    def _rows(self, labels: Mapping[str, int]) -> Iterator[Row]:
        for folder, label in labels.items():
            for path in sorted((self.image_dir / folder).iterdir()):
                if path.is_file() and path.suffix.lower() in IMAGES:
                    yield {"label": label, "image": _bytes("ImageNetToMR", path), "file_name": path.name}


class CsvToMR(_Converter):
    """The rows of a table: columns of integers are Int64, of other numbers Float64, all others text. The first line
    names the columns.

    Args: columns_list: the columns to take, None for all.
    """

    def __init__(
        self, source: str, destination: str, columns_list: list[str] | None = None, partition_number: int = 1
    ) -> None:
        super().__init__(destination, partition_number, source=source)
        if columns_list is not None and not (
            isinstance(columns_list, list) and all(isinstance(each, str) for each in columns_list)
        ):
            raise ApiValueError(f"CsvToMR: columns_list must be a list of names, not {columns_list!r}")
        self.source, self.columns = Path(source), columns_list

    def run(self) -> None:
        """Write the file.

        Raises:
            RuntimeError: there is no such column, or records are there already. MspcError: the table is missing, empty,
            or has rows of other lengths.
        """
        names, rows = self._table()
        for name in self.columns or ():
            if name not in names:
                known = f"it has {', '.join(names)}"
                raise ApiRuntimeError(f"CsvToMR: {str(self.source)!r} has no column {name!r}", [known])
        wanted = [names.index(name) for name in self.columns or names]
        kinds = {names[place]: _kind([row[place] for row in rows]) for place in wanted}
        made = {"int64": int, "float64": float, "string": str}
        found = ({names[p]: made[kinds[names[p]]](row[p]) for p in wanted} for row in rows)
        self._write(self.destination, {name: {"type": kind} for name, kind in kinds.items()}, found)

    transform = run

    def _table(self) -> tuple[list[str], list[list[str]]]:
        text = io.StringIO(_text("CsvToMR", self.source), newline="")
        try:
            lines = [line for line in csv.reader(text, strict=True) if line]
        except csv.Error as error:
            raise MspcError(f"CsvToMR: {str(self.source)!r} is no table: {error}") from None
        if len(lines) < 2:
            raise MspcError(f"CsvToMR: {str(self.source)!r} has no rows below its first line, which names the columns")
        names = [name.strip() for name in lines[0]]
        if not all(names) or len(set(names)) < len(names):
            raise MspcError(f"CsvToMR: {str(self.source)!r} has columns without a name of their own: {names}")
        for number, row in enumerate(lines[1:], 1):
            if len(row) != len(names):
                counts = f"{len(row)} values, not {len(names)}"
                raise MspcError(f"CsvToMR: row {number} of {str(self.source)!r} has {counts}")
        return names, lines[1:]


class TFRecordToMR:
    """Refused: what its `feature_dict` holds is TensorFlow's.

    Raises:
        TypeError: always.
    """

    def __new__(cls, *_: Any, **__: Any) -> TFRecordToMR:
        raise ApiTypeError(
            "TFRecordToMR: features are described by TensorFlow's objects, which mspc does not have",
            ["read the records with TensorFlow, and write them with mindrecord.FileWriter"],
        )


def _images(records: Records, labels: tuple[str, ...], numbered: bool = True) -> Iterator[Row]:
    for number, (image, kinds) in enumerate(zip(records.images, records.labels, strict=True)):
        row = dict(zip(labels, map(int, kinds), strict=True))
        yield ({"id": number} if numbered else {}) | row | {"data": _png(image)}


def _png(image: np.ndarray) -> bytes:
    raw = io.BytesIO()
    image_of(image).save(raw, "PNG")
    return raw.getvalue()


def _bytes(name: str, path: Path) -> bytes:
    try:
        check_regular(path)
        return path.read_bytes()
    except FileNotFoundError:
        raise MspcError(f"{name}: there is no file {str(path)!r}") from None
    except (OSError, ValueError) as error:  # ValueError: characters that no file name holds
        raise MspcError(f"{name}: cannot read {str(path)!r}: {reason_of(error)}") from None


def _text(name: str, path: Path) -> str:
    try:
        return _bytes(name, path).decode()
    except UnicodeDecodeError as error:
        raise MspcError(f"{name}: {str(path)!r} is no text: byte {error.start} is none of UTF-8") from None


def _kind(values: Sequence[str]) -> str:
    """The type of a column of texts."""
    for kind, read in (("int64", lambda text: np.int64(int(text))), ("float64", float)):
        try:
            for value in values:
                read(value)
        except (ValueError, OverflowError):
            continue
        return kind
    return "string"
