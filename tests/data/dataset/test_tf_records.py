"""TensorFlow's record files: rows and messages. What is expected of rows is what MindSpore 2.10 gives."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import mspc.dataset as ds
from mspc.data.dataset.examples import masked_crc
from mspc.ir.diagnostics import MspcError

ROWS = [
    {"ids": [1, -3, 2**40 + i], "weight": [0.5, float(i)], "name": [b"ab%d" % i], "one": [i], "words": [b"x", b"yy"]}
    for i in range(3)
]


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def inside(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def feature(values: Sequence[Any]) -> bytes:
    if isinstance(values[0], bytes):
        return inside(1, b"".join(inside(1, value) for value in values))
    if isinstance(values[0], float):
        return inside(2, inside(1, struct.pack(f"<{len(values)}f", *values)))
    return inside(3, inside(1, b"".join(map(varint, values))))


def record(body: bytes) -> bytes:
    head = struct.pack("<Q", len(body))
    return head + struct.pack("<I", masked_crc(head)) + body + struct.pack("<I", masked_crc(body))


def example(row: dict[str, Any]) -> bytes:
    entries = (inside(1, inside(1, name.encode()) + inside(2, feature(values))) for name, values in row.items())
    return record(inside(1, b"".join(entries)))


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, rows in (("a", ROWS), ("b", [{**ROWS[0], "one": [7]}] * 2)):
        (tmp_path / f"{name}.tfrecord").write_bytes(b"".join(map(example, rows)))
    return [str(tmp_path / f"{name}.tfrecord") for name in "ab"]


def rows_of(data: ds.Dataset) -> list[list[Any]]:
    return [[value.tolist() for value in row] for row in data.create_tuple_iterator(num_epochs=1, output_numpy=True)]


def test_the_checksum_is_the_published_one() -> None:
    turned = (masked_crc(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert (turned << 15 | turned >> 17) & 0xFFFFFFFF == 0xE3069283


def test_without_a_schema_columns_are_those_of_the_first_example(files: list[str]) -> None:
    data = ds.TFRecordDataset(files[0], shuffle=False)
    assert data.get_col_names() == ["ids", "name", "one", "weight", "words"]
    assert [str(kind) for kind in data.output_types()] == ["int64", "uint8", "int64", "float32", "uint8"]
    assert rows_of(data)[1] == [[1, -3, 2**40 + 1], [97, 98, 49], [1], [0.5, 1.0], [120, 32, 121, 121]]


def test_a_schema_says_types_and_shapes(files: list[str], tmp_path: Path) -> None:
    schema = ds.Schema()
    schema.add_column("one", "int32", [1, 1])
    schema.add_column("weight", "float32")
    schema.add_column("name", "string")
    data = ds.TFRecordDataset(files, schema, shuffle=False)
    assert rows_of(data)[:2] == [[[[0]], [0.5, 0.0], ["ab0"]], [[[7]], [0.5, 0.0], ["ab0"]]]
    (tmp_path / "schema.json").write_text('{"numRows": 2, "columns": {"one": {"type": "int64", "shape": []}}}')
    assert rows_of(ds.TFRecordDataset(files[0], str(tmp_path / "schema.json"), shuffle=False)) == [[0], [1]]
    again = ds.Schema()
    again.parse_columns([{"name": "one", "type": "int64", "rank": 0}])
    assert again.columns == [{"name": "one", "type": "int64", "shape": []}]
    assert '"rank": 0' in str(again)


def test_files_and_rows_are_shared(files: list[str], tmp_path: Path) -> None:
    pattern = str(tmp_path / "*.tfrecord")
    parts = [
        rows_of(ds.TFRecordDataset(pattern, None, ["one"], shuffle=False, num_shards=2, shard_id=i, shard_equal_rows=e))
        for e in (False, True) for i in (0, 1)
    ]  # fmt: skip
    assert parts[:2] == [[[[0]], [[1]], [[2]]], [[[7]], [[7]]]]
    assert parts[3][:2] == [[[7]], [[7]]]
    shuffled = rows_of(ds.TFRecordDataset(files, columns_list=["one"]))
    assert sorted(shuffled) == [[[0]], [[1]], [[2]], [[7]], [[7]]]


def test_compressed_files(files: list[str], tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(Path(files[0]).read_bytes()))
    data = ds.TFRecordDataset(str(packed), columns_list=["one"], shuffle=False, compression_type="GZIP")
    assert rows_of(data) == [[[0]], [[1]], [[2]]]


def schema_of(*column: Any) -> ds.Schema:
    schema = ds.Schema()
    schema.add_column(*column)
    return schema


@pytest.mark.parametrize(("damage", "options", "message"), [
    (lambda raw: raw[:-30], {}, "record 2 says 107 bytes, and 77 are left"),
    (lambda raw: raw + b"abc", {}, "record 3 is truncated at byte 369"),
    (lambda raw: raw[:8] + b"0000" + raw[12:], {}, "record 0 has a wrong checksum of its length at byte 0"),
    (lambda raw: raw, {"schema": schema_of("ids", "int64", [5])},
     "record 0 does not fit the schema: ids has 3 elements, which do not fit [5]"),
    (lambda raw: raw, {"schema": schema_of("ids", "float32")},
     "record 0 does not fit the schema: ids holds int64, not float32"),
    (lambda raw: raw, {"schema": schema_of("lost", "int64")}, "record 0 has no feature 'lost'"),
    (lambda raw: record(b"\x0a\x7f"), {}, "record 0 is no example: a field at byte 2 has 127 bytes, and 0 are left"),
])  # fmt: skip
def test_damaged_files(files: list[str], damage: Callable[[bytes], bytes], options: Any, message: str) -> None:
    path = Path(files[0])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(MspcError) as raised:
        rows_of(ds.TFRecordDataset(files[0], shuffle=False, **options))
    assert f"{files[0]!r}: {message}" in raised.value.message


@pytest.mark.parametrize(("call", "message"), [
    (lambda a: ds.TFRecordDataset("none"), "TFRecordDataset: there is no file 'none'"),
    (lambda a: ds.TFRecordDataset(3), "dataset_files must be the name of a file or a list of names, not 3"),
    (lambda a: ds.TFRecordDataset(a, columns_list=["two"]),
     "TFRecordDataset: columns_list names 'two'; there are ids, name, one, weight, words"),
    (lambda a: ds.TFRecordDataset(a, num_shards=2, shard_id=0), "TFRecordDataset: num_shards 2 for 1 files"),
    (lambda a: ds.TFRecordDataset(a, compression_type="LZ4"),
     "TFRecordDataset: compression_type 'LZ4' is not 'GZIP' or 'ZLIB'"),
    (lambda a: ds.Schema("none.json"), "Schema: there is no file 'none.json'"),
    (lambda a: ds.Schema(a), "is no JSON"),
    (lambda a: ds.Schema().parse_columns([{"name": "x"}]), "Schema: a column has no 'type'"),
    (lambda a: ds.Schema().add_column("x", "int32", [-1, -1]), "shape [-1, -1] leaves more than one size open"),
    (lambda a: ds.Schema().add_column("x", "int7"), "unknown element type 'int7'"),
])  # fmt: skip
def test_impossible_arguments(files: list[str], call: Callable[[str], Any], message: str) -> None:
    with pytest.raises(MspcError) as raised:
        call(files[0])
    assert message in raised.value.message
