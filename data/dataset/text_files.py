"""These data sets are lines of text, and tables of which every line is a row."""

from __future__ import annotations

import csv
import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.nodes.indexed import Arrays
from mspc.data.dataset.origins import SourceDataset, TextBaseDataset, UnionBaseDataset
from mspc.data.dataset.row_values import names_of, workers_of
from mspc.data.dataset.samplers import select_sampler
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.regular import check_regular


def matching(name: str, files: Any) -> list[Path]:
    """The files of these names, in the order of the names that match a pattern.

    Raises:
        TypeError: they are no names. ValueError: there is no such file.
    """
    given = [files] if isinstance(files, str | os.PathLike) else files
    if not isinstance(given, list | tuple) or not given or not all(isinstance(f, str | os.PathLike) for f in given):
        raise ApiTypeError(f"{name}: dataset_files must be the name of a file or a list of names, not {files!r}")
    found: list[Path] = []
    for each in map(os.fspath, given):
        matches = sorted(glob.glob(each)) or ([each] if os.path.exists(each) else [])
        if not matches:
            raise ApiValueError(f"{name}: there is no file {each!r}")
        found += map(Path, matches)
    return found


def read_text(name: str, path: Path) -> str:
    """The text of a file in UTF-8. Raises MspcError where it cannot be read, or is none."""
    try:
        check_regular(path)
        return path.read_bytes().decode()
    except OSError as error:
        raise MspcError(f"{name}: cannot read {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise MspcError(f"{name}: {str(path)!r} is no text in UTF-8: {error.reason} at byte {error.start}") from None


class TextFileDataset(SourceDataset, TextBaseDataset):
    """The lines of files, those without a character left out: the column "text".

    Args:
        dataset_files: a file, or a list of them; patterns such as `*.txt` stand for what they match. The others are as
            everywhere.

    Raises:
        MspcError: a file cannot be read, or is no text. TypeError, ValueError, RuntimeError: an argument is impossible.
    """

    def __init__(
        self, dataset_files: Any, num_samples: int | None = None, num_parallel_workers: int | None = None,
        shuffle: Any = None, num_shards: int | None = None, shard_id: int | None = None, cache: Any = None,
    ) -> None:  # fmt: skip
        name = "TextFileDataset"
        workers_of(name, num_parallel_workers, 1)
        lines = [line for path in matching(name, dataset_files) for line in read_text(name, path).split("\n") if line]
        chosen = select_sampler(name, None, shuffle, num_samples, num_shards, shard_id)
        super().__init__(Arrays(["text"], [_texts(lines)], chosen))


class CSVDataset(SourceDataset, UnionBaseDataset):
    """The rows of tables whose fields stand between `field_delim`.

    Args:
        column_defaults: a value for each column, whose type its fields have: an int (Int32), a float (Float32) or a
            string; it takes the place of an empty field of text. All are strings unless given.
        column_names: of the columns; the first line of every file has them unless given. The others are as everywhere.

    Raises:
        MspcError: a file cannot be read, or a row does not fit the columns. TypeError, ValueError, RuntimeError: an
            argument is impossible.
    """

    def __init__(
        self, dataset_files: Any, field_delim: str = ",", column_defaults: Sequence[Any] | None = None,
        column_names: Any = None, num_samples: int | None = None, num_parallel_workers: int | None = None,
        shuffle: Any = None, num_shards: int | None = None, shard_id: int | None = None, cache: Any = None,
    ) -> None:  # fmt: skip
        name = "CSVDataset"
        if not isinstance(field_delim, str) or len(field_delim) != 1 or field_delim in '"\r\n':
            raise ApiValueError(f"{name}: field_delim must be one character, not {field_delim!r}")
        workers_of(name, num_parallel_workers, 1)
        wanted = None if column_names is None else names_of(name, "column_names", column_names)
        rows: list[tuple[str, int, list[str]]] = []
        for path in matching(name, dataset_files):
            lines = read_text(name, path).splitlines(keepends=True)
            found = [(str(path), row) for row in csv.reader(lines, delimiter=field_delim) if row]
            if column_names is None and found:
                own = found.pop(0)[1]
                if wanted is not None and own != wanted:
                    raise MspcError(f"{name}: {str(path)!r} has columns {', '.join(own)}, not {', '.join(wanted)}")
                wanted = own
            rows += [(shown, number + 1, row) for number, (shown, row) in enumerate(found)]
        if not wanted or not rows:
            raise ApiValueError(f"{name}: there are no rows in {dataset_files!r}")
        for shown, number, row in rows:
            if len(row) != len(wanted):
                raise MspcError(f"{name}: row {number} of {shown!r} has {len(row)} fields for {len(wanted)} columns")
        defaults = [""] * len(wanted) if column_defaults is None else list(column_defaults)
        if len(defaults) != len(wanted):
            raise ApiValueError(f"{name}: {len(defaults)} column_defaults are given for {len(wanted)} columns")
        columns = [_column(name, wanted[i], default, [(s, n, row[i]) for s, n, row in rows])
                   for i, default in enumerate(defaults)]  # fmt: skip
        chosen = select_sampler(name, None, shuffle, num_samples, num_shards, shard_id)
        super().__init__(Arrays(wanted, columns, chosen))


def _texts(values: list[str]) -> np.ndarray:
    return np.array(values, dtype=np.str_)


def _column(name: str, column: str, default: Any, fields: list[tuple[str, int, str]]) -> np.ndarray:
    if isinstance(default, str):
        return _texts([field or default for _, _, field in fields])
    if isinstance(default, bool) or not isinstance(default, int | float):
        raise ApiTypeError(f"{name}: column_defaults must be numbers and strings, and holds {default!r}")
    kind, read = (np.int32, int) if isinstance(default, int) else (np.float32, float)
    found = np.empty(len(fields), kind)
    for place, (shown, number, field) in enumerate(fields):
        try:
            found[place] = read(field)
        except (ValueError, OverflowError):
            what = np.dtype(kind).name
            raise MspcError(f"{name}: row {number} of {shown!r}: {column} {field!r} is no {what}") from None
    return found
