"""Data sets of records in files that `mindspore.mindrecord` writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mspc.mindspore_api.dataset import config
from mspc.mindspore_api.dataset.nodes.base import Indexed
from mspc.mindspore_api.dataset.nodes.block import Column, column_of
from mspc.mindspore_api.dataset.origins import MappableDataset, UnionBaseDataset
from mspc.mindspore_api.dataset.row_values import Row, integer, names_of, workers_of
from mspc.mindspore_api.dataset.samplers import BuiltinSampler, select_sampler
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.mindspore_api.mindrecord.file_format import RecordField
from mspc.mindspore_api.mindrecord.filereader import RecordSet, record_files
from mspc.mindspore_api.setting_kind import place_of_caller, say_once


class MindDataset(MappableDataset, UnionBaseDataset):
    """Records of files written by `mindrecord.FileWriter`. Bytes become one dimension of UInt8, strings stay strings,
    and numbers and arrays have the types and shapes of their fields. Columns are in the order of their names, or of
    `columns_list`.

    Args:
        dataset_files: one file of a set, to read the whole set, or a list of the files to read in sequence.
        columns_list: names of fields. padded_sample, num_padded: a record and the number of its copies appended to the
            others, so that shards get the same number of rows; they need columns_list. The other arguments are as for
            all data sets: `sampler` excludes `shuffle` and shards.

    Raises:
        MspcError: a file is missing or damaged, or has no such field. TypeError, ValueError, RuntimeError: an argument
            is impossible.
    """

    def __init__(
        self, dataset_files: Any, columns_list: Any = None, num_parallel_workers: int | None = None,
        shuffle: Any = None, num_shards: int | None = None, shard_id: int | None = None, sampler: Any = None,
        padded_sample: dict[str, Any] | None = None, num_padded: int | None = None, num_samples: int | None = None,
        cache: Any = None,
    ) -> None:  # fmt: skip
        name = "MindDataset"
        files = record_files(name, "dataset_files", dataset_files)
        columns = None if columns_list is None else names_of(name, "columns_list", columns_list)
        workers = workers_of(name, num_parallel_workers, config.get_num_parallel_workers())
        chosen = select_sampler(name, sampler, shuffle, num_samples, num_shards, shard_id)
        if cache is not None:
            why = "records are read again in every epoch"
            say_once(f"{name} cache", f"{place_of_caller()}{name}(cache=...) changes nothing here: {why}")
        records = RecordSet(name, files)
        fields = records.chosen(name, columns)
        padding = _padding(name, padded_sample, num_padded, columns, fields, (len(records), num_shards or 1))
        super().__init__(_Records(records, fields, padding, num_padded or 0, chosen, workers))


class _Records(Indexed):
    """Records that are read together with their rows. padding: the row appended `padded` times."""

    def __init__(
        self, records: RecordSet, fields: list[RecordField], padding: Row, padded: int, sampler: BuiltinSampler,
        workers: int,
    ) -> None:  # fmt: skip
        super().__init__([field.name for field in fields], sampler, workers)
        self.records = records
        self.fields = fields
        self.padding = padding
        self.padded = padded

    def length(self) -> int:
        return len(self.records) + self.padded

    def describe(self, number: int) -> str:
        if number >= len(self.records):
            return "of padded_sample"
        shard, place = self.records.place(number)
        return shard.describe(place)

    def fetch(self, numbers: np.ndarray) -> tuple[Column, ...]:
        rows = [self._row(number) for number in numbers.tolist()]
        return tuple(column_of(values) for values in zip(*rows, strict=True))

    def _row(self, number: int) -> Row:
        if number >= len(self.records):
            return self.padding
        shard, place = self.records.place(number)
        return tuple(shard.record(place, self.fields))


def _padding(
    name: str, sample: Any, count: Any, columns: list[str] | None, fields: list[RecordField], sizes: tuple[int, int]
) -> Row:
    """Return the row appended to the records. sizes: (number of records, number of shards that read them)."""
    if sample is None and count is None:
        return ()
    if sample is None or count is None:
        given, missing = ("num_padded", "padded_sample") if sample is None else ("padded_sample", "num_padded")
        raise ApiRuntimeError(f"{name}: {given} is given, but {missing} is not")
    if columns is None:
        raise ApiRuntimeError(f"{name}: padded_sample needs columns_list", code="E1101")
    if not isinstance(sample, Mapping):
        raise ApiTypeError(f"{name}: padded_sample must be a dict, not {type(sample).__name__}")
    records, shards = sizes
    if (records + integer(name, "num_padded", count, 0)) % shards:
        raise ApiRuntimeError(f"{name}: {records} records and {count} padded ones are no multiple of {shards} shards")
    row: list[np.ndarray] = []
    for field in fields:
        if field.name not in sample:
            raise ApiValueError(f"{name}: padded_sample has no {field.name!r}")
        why = field.misfit(sample[field.name])
        if why:
            raise ApiValueError(f"{name}: padded_sample: {field.name} {why}")
        value = sample[field.name]
        row.append(field.array(field.packed(value)) if field.is_blob else field.scalar(_number(value)))
    return tuple(row)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
