"""These data sets are examples in TensorFlow's record files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.api.errors import ApiValueError
from mspc.api.setting_kind import place_of_caller, say_once
from mspc.data.dataset import config
from mspc.data.dataset.examples import COMPRESSIONS, ExampleFile, Feature
from mspc.data.dataset.nodes.block import Column, column_of
from mspc.data.dataset.nodes.indexed import Indexed
from mspc.data.dataset.origins import SourceDataset, UnionBaseDataset
from mspc.data.dataset.row_values import flag, names_of, workers_of
from mspc.data.dataset.samplers import BuiltinSampler, select_sampler
from mspc.data.dataset.schema import Schema, element_type
from mspc.data.dataset.text_files import matching


class TFRecordDataset(SourceDataset, UnionBaseDataset):
    """Examples of TensorFlow's record files, by turns from each file. Without a schema the columns are those of the
    first example in the order of their names: Int64 and Float32 of one dimension, and bytes as UInt8, several side by
    side and filled up with spaces.

    Args:
        dataset_files: a file, or a list of them; patterns such as `*.tfrecord` stand for what they match, in the order
            of the names.
        schema: a Schema, or the name of a file with one. columns_list: names of columns, in their order.
        num_samples: at most so many rows; without it as many as the schema says.
        num_shards, shard_id: every num_shards-th file from shard_id on, or with shard_equal_rows so many of the rows.
        compression_type: "GZIP" or "ZLIB". The others are as everywhere.

    Raises:
        MspcError: a file is missing or damaged, or an example does not hold what the schema says. TypeError,
            ValueError, RuntimeError: an argument is impossible.
    """

    def __init__(
        self, dataset_files: Any, schema: Any = None, columns_list: Any = None, num_samples: int | None = None,
        num_parallel_workers: int | None = None, shuffle: Any = None, num_shards: int | None = None,
        shard_id: int | None = None, shard_equal_rows: bool = False, cache: Any = None,
        compression_type: str | None = None,
    ) -> None:  # fmt: skip
        name = "TFRecordDataset"
        paths = matching(name, dataset_files)
        if compression_type not in (None, *COMPRESSIONS):
            raise ApiValueError(f"{name}: compression_type {compression_type!r} is not 'GZIP' or 'ZLIB'")
        said = schema if schema is None or isinstance(schema, Schema) else Schema(schema)
        limit = said.num_rows if num_samples is None and said is not None else num_samples
        equal = flag(name, "shard_equal_rows", shard_equal_rows)
        chosen = select_sampler(name, None, shuffle, limit, num_shards, shard_id)
        if num_shards is not None and shard_id is not None and not equal:
            if num_shards > len(paths):
                raise ApiValueError(
                    f"{name}: num_shards {num_shards} for {len(paths)} files", ["shard_equal_rows=True shares the rows"]
                )
            paths, chosen = paths[shard_id::num_shards], select_sampler(name, None, shuffle, limit, None, None)
        if cache is not None:
            why = "records are read again in every epoch"
            say_once(f"{name} cache", f"{place_of_caller()}{name}(cache=...) changes nothing here: {why}")
        files = [ExampleFile(path, compression_type or "") for path in paths]
        columns = _columns(name, files, said, columns_list)
        workers = workers_of(name, num_parallel_workers, config.get_num_parallel_workers())
        super().__init__(_Examples(files, columns, chosen, workers))


class _Examples(Indexed):
    """columns: as a Schema has them, without a type where an example says it."""

    def __init__(
        self, files: Sequence[ExampleFile], columns: Sequence[Mapping[str, Any]], sampler: BuiltinSampler, workers: int
    ) -> None:
        super().__init__([column["name"] for column in columns], sampler, workers)
        self.files = files
        self._columns = columns
        longest = max(len(file.places) for file in files)
        turns = [(file, record) for record in range(longest) for file in files if record < len(file.places)]
        self._turns = turns

    def length(self) -> int:
        return len(self._turns)

    def describe(self, number: int) -> str:
        file, record = self._turns[number]
        return f"record {record} of {str(file.path)!r}"

    def fetch(self, numbers: np.ndarray) -> tuple[Column, ...]:
        rows = [self._row(*self._turns[number]) for number in numbers.tolist()]
        return tuple(column_of(values) for values in zip(*rows, strict=True))

    def _row(self, file: ExampleFile, record: int) -> list[np.ndarray]:
        example = file.example(record)
        row: list[np.ndarray] = []
        for column in self._columns:
            feature = example.get(column["name"])
            if feature is None:
                raise file.damaged(record, f"has no feature {column['name']!r}")
            try:
                row.append(_value(feature, column))
            except ValueError as error:
                raise file.damaged(record, f"does not fit the schema: {column['name']} {error}") from None
        return row


def _value(feature: Feature, column: Mapping[str, Any]) -> np.ndarray:
    """A feature in the type and shape of its column. Raises ValueError where it has others."""
    if "type" not in column:
        return _side_by_side(feature) if isinstance(feature, list) else feature
    kind = element_type(column)
    if kind is None:
        if not isinstance(feature, list):
            raise ValueError(f"holds {feature.dtype}, not bytes")
        made = np.array([each.decode() for each in feature])
    elif isinstance(feature, list):
        if kind != np.uint8:
            raise ValueError(f"holds bytes, not {kind}")
        made = _side_by_side(feature)
    else:
        if feature.dtype.kind != ("f" if kind.kind == "f" else "i"):
            raise ValueError(f"holds {feature.dtype}, not {kind}")
        made = feature.astype(kind)
    shape = column.get("shape")
    if shape is None:
        return made
    try:
        return made.reshape(shape)
    except ValueError:
        raise ValueError(f"has {made.size} elements, which do not fit {shape}") from None


def _side_by_side(texts: list[bytes]) -> np.ndarray:
    longest = max(map(len, texts), default=0)
    return np.frombuffer(b"".join(each.ljust(longest) for each in texts), np.uint8).copy()


def _columns(
    name: str, files: Sequence[ExampleFile], schema: Schema | None, columns_list: Any
) -> list[Mapping[str, Any]]:
    wanted = None if columns_list is None else names_of(name, "columns_list", columns_list)
    if schema is not None and schema.columns:
        known: dict[str, Mapping[str, Any]] = {column["name"]: column for column in schema.columns}
    else:
        first = next((file for file in files if file.places), None)
        if first is None:
            raise ApiValueError(f"{name}: there is no record in {', '.join(repr(str(file.path)) for file in files)}")
        known = {each: {"name": each} for each in sorted(first.example(0))}
    for each in wanted or ():
        if each not in known:
            raise ApiValueError(f"{name}: columns_list names {each!r}; there are {', '.join(known)}")
    return [known[each] for each in (known if wanted is None else wanted)]
