"""This module reads image sets in their publishers' formats: idx of MNIST, the binary versions of CIFAR, image
folders."""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.regular import check_regular
from mspc.ir.late_dataclass import dataclass

MOST_PACKED = 1100
"""Bytes that one byte of a .gz file can stand for; of a plain file it is one."""
PIXELS = 3 * 32 * 32
"""Bytes of an image of CIFAR: its red, green and blue planes."""


@dataclass(frozen=True)
class Records:
    """Images of some files. images: [rows, height, width, channels] of bytes. labels: [rows, kinds] of bytes.
    files: (name, rows) of each."""

    images: np.ndarray
    labels: np.ndarray
    files: tuple[tuple[str, int], ...]

    def describe(self, number: int) -> str:
        """The file and the record there of a row."""
        for name, rows in self.files:
            if number < rows:
                return f"record {number} of {name!r}"
            number -= rows
        return ""


def check_folder(name: str, folder: Path) -> None:
    """Raises MspcError where there is no folder of that name."""
    if not os.path.isdir(folder):
        raise MspcError(f"{name}: there is no folder {str(folder)!r}")


def read_mnist(name: str, folder: Path, parts: tuple[str, ...]) -> Records:
    """The images of some parts, "train" and "t10k". Raises MspcError for files that are missing or damaged."""
    pairs = [_read_pair(name, folder, part) for part in parts]
    shapes = {images.shape[1:] for images, _, _ in pairs}
    if len(shapes) > 1:
        raise MspcError(f"{name}: the images of {folder} have different sizes: {', '.join(map(str, sorted(shapes)))}")
    images = np.concatenate([images for images, _, _ in pairs])[..., None]
    labels = np.concatenate([labels for _, labels, _ in pairs])[:, None]
    return Records(images, labels, tuple((path, len(images)) for images, _, path in pairs))


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
    """(the array of bytes in a file of the idx format, the file). The format: magic number, sizes as big-endian 32-bit
    numbers, data.

    Raises:
        MspcError: the file is missing, of another kind or damaged.
    """
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
    """The array of an open file, of which no more is read, and unpacked, than its header says. Raises MspcError."""
    head = file.read(4 + 4 * dimensions)
    if len(head) < 4 + 4 * dimensions or head[:4] != bytes((0, 0, 8, dimensions)):
        raise MspcError(f"{str(path)!r} is no idx file of bytes with {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", head[4:])
    size = math.prod(shape)
    raw = file.read(size + 1) if size <= MOST_PACKED * os.stat(path).st_size else b""
    if len(raw) != size:
        found = f"more than {size}" if len(raw) > size else f"less than {size}"
        raise MspcError(f"{str(path)!r} holds {found} bytes for shape {shape}: it is damaged")
    return np.frombuffer(raw, np.uint8).reshape(shape)


def read_cifar(files: list[Path], classes: tuple[int, ...]) -> Records:
    """The records of files of CIFAR: labels, one byte for each of `classes`, then the three planes of 32 x 32.

    Raises:
        MspcError: a file cannot be read, is damaged, or is of another format.
    """
    records = [_read_records(path, classes) for path in files]
    joined = np.concatenate(records)
    planes = joined[:, len(classes) :].reshape(-1, 3, 32, 32)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    named = tuple((str(path), len(rows)) for path, rows in zip(files, records, strict=True))
    return Records(images, joined[:, : len(classes)].copy(), named)


def _read_records(path: Path, classes: tuple[int, ...]) -> np.ndarray:
    try:
        check_regular(path)
        raw = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise MspcError(f"cannot read {str(path)!r}: {error.strerror}") from None
    record = len(classes) + PIXELS
    if raw.size == 0 or raw.size % record:
        raise MspcError(f"{str(path)!r} holds {raw.size} bytes, no multiple of {record}: it is damaged")
    rows = raw.reshape(-1, record)
    for place, count in enumerate(classes):
        _check_labels(rows[:, place], count, str(path))
    return rows


def _check_labels(labels: np.ndarray, classes: int, path: str) -> None:
    wrong = np.flatnonzero(labels >= classes)
    if wrong.size:
        raise MspcError(
            f"{path!r}: record {wrong[0]} has label {labels[wrong[0]]}, which is not from 0 to {classes - 1}: "
            "it is damaged, or of another format"
        )


def list_images(
    name: str, folder: Path, extensions: tuple[str, ...], indexing: dict[str, int] | None
) -> tuple[list[tuple[Path, int]], dict[str, int]]:
    """((file, number of its class), sorted by class and name; numbers of classes) of a folder with one folder for
    every class.

    Raises:
        MspcError: there is no such folder, class or image.
    """
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
"""Ends of names of files that are taken for images."""
