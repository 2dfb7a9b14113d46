"""Data sets of records in files that `mindspore.mindrecord` writes."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.mindspore_api.dataset import config
from mspc.mindspore_api.dataset.nodes.block import Column, column_of
from mspc.mindspore_api.dataset.nodes.pipeline_node import Indexed
from mspc.mindspore_api.dataset.origins import MappableDataset, UnionBaseDataset
from mspc.mindspore_api.dataset.row_values import Row, names_of, workers_of
from mspc.mindspore_api.dataset.samplers import BuiltinSampler, select_sampler
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.mindrecord.file_format import RecordField
from mspc.mindspore_api.mindrecord.filereader import RecordSet, record_files
from mspc.mindspore_api.setting_kind import place_of_caller, say_once


class MindDataset(MappableDataset, UnionBaseDataset):
    """Records of files written by `mindrecord.FileWriter`. Bytes become one dimension of UInt8, strings stay strings,
    and numbers and arrays have the types and shapes of their fields. Columns are in the order of their names, or of
    `columns_list`.

    Args:
        dataset_files: one file of a set, to read the whole set, or a list of the files to read in sequence.
        columns_list: names of fields. The other arguments are as for all data sets: `sampler` excludes `shuffle` and
            shards; padded_sample and num_padded are not supported.

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
        if padded_sample is not None or num_padded is not None:
            raise ApiValueError(f"{name}: padded_sample is not supported", ["write further records into the file"])
        files = record_files(name, "dataset_files", dataset_files)
        columns = None if columns_list is None else names_of(name, "columns_list", columns_list)
        workers = workers_of(name, num_parallel_workers, config.get_num_parallel_workers())
        chosen = select_sampler(name, sampler, shuffle, num_samples, num_shards, shard_id)
        if cache is not None:
            why = "records are read again in every epoch"
            say_once(f"{name} cache", f"{place_of_caller()}{name}(cache=...) changes nothing here: {why}")
        records = RecordSet(name, files)
        fields = records.chosen(name, columns)
        super().__init__(_Records(records, fields, chosen, workers))


class _Records(Indexed):
    """Records that are read together with their rows."""

    def __init__(self, records: RecordSet, fields: list[RecordField], sampler: BuiltinSampler, workers: int) -> None:
        super().__init__([field.name for field in fields], sampler, workers)
        self.records = records
        self.fields = fields

    def length(self) -> int:
        return len(self.records)

    def describe(self, number: int) -> str:
        shard, place = self.records.place(number)
        return shard.describe(place)

    def fetch(self, numbers: np.ndarray) -> tuple[Column, ...]:
        rows = [self._row(number) for number in numbers.tolist()]
        return tuple(column_of(values) for values in zip(*rows, strict=True))

    def _row(self, number: int) -> Row:
        shard, place = self.records.place(number)
        return tuple(shard.record(place, self.fields))
