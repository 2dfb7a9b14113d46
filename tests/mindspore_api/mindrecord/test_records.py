"""Files of records: what is written is read back, in every type and shape, over pages and files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import dataset as ds
from mspc.dataset import vision
from mspc.mindrecord import FileReader, FileWriter
from mspc.mindspore_api.mindrecord.file_format import pack, pack_integers, unpack, unpack_integers

SCHEMA: dict[str, Any] = {
    "label": {"type": "int32"}, "far": {"type": "int64"}, "score": {"type": "float64"}, "near": {"type": "float32"},
    "name": {"type": "string"}, "data": {"type": "bytes"}, "ids": {"type": "int64", "shape": [-1]},
    "marks": {"type": "int32", "shape": [2, 2]}, "box": {"type": "float32", "shape": [2, -1]},
    "exact": {"type": "float64", "shape": [3]},
}  # fmt: skip
EDGES = [0, 1, -1, 31, 32, -32, -33, 127, 128, -128, -129, 255, 256, 32767, 32768, -32768, -32769, 65535, 65536,
         2**31 - 1, -(2**31)]  # fmt: skip
WIDE = [*EDGES, 2**31, -(2**31) - 1, 2**32 - 1, 2**32, 2**63 - 1, -(2**63)]


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "label": EDGES[i % len(EDGES)], "far": WIDE[i % len(WIDE)], "score": i / 3,
            "near": float(np.float32(i / 7)), "name": "ß" * i + f"{i}", "data": bytes(range(i)) + bytes(i * 90),
            "ids": np.array(WIDE[: i % 30], np.int64),
            "marks": np.array(EDGES[i % 17 : i % 17 + 4], np.int32).reshape(2, 2),
            "box": np.arange(2 * (i + 1), dtype=np.float32).reshape(2, i + 1), "exact": np.array([i, 0.1, np.inf]),
        }
        for i in range(count)
    ]  # fmt: skip


def write(path: Path, data: list[dict[str, Any]], schema: Any = SCHEMA, shards: int = 1, **about: Any) -> Path:
    """The first file of a set of small pages."""
    writer = FileWriter(str(path), shards, **about)
    writer.set_header_size(1 << 14)
    writer.set_page_size(1 << 15)
    writer.add_schema(schema, "about")
    for first in range(0, len(data), 20):
        writer.write_raw_data(data[first : first + 20])
    writer.commit()
    return path if shards == 1 else Path(f"{path}{'0' * len(str(shards - 1))}")


def same(found: Any, expected: dict[str, Any]) -> bool:
    if found.keys() != expected.keys():
        return False
    return all(
        np.array_equal(found[name], value) and found[name].dtype == value.dtype
        if isinstance(value, np.ndarray) else found[name] == value and type(found[name]) is type(value)
        for name, value in expected.items()
    )  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    data = rows(60)
    reader = FileReader(str(write(tmp_path / "a.mindrecord", data)))
    assert reader.len() == 60
    assert reader.schema() == SCHEMA
    assert all(same(found, row) for found, row in zip(reader.get_next(), data, strict=True))
    reader.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mindrecord", "a.mindrecord.db"]
    pages = json.loads((tmp_path / "a.mindrecord").read_bytes()[8:].split(b"\0")[0])["page"]
    assert len(pages) > 4


@pytest.mark.parametrize("schema", [
    {"x": {"type": "int32"}}, {"x": {"type": "bytes"}}, {"x": {"type": "int64", "shape": [-1]}},
    {"x": {"type": "float32", "shape": [2]}}, {"x": {"type": "string"}},
])  # fmt: skip
def test_one_field_alone(tmp_path: Path, schema: dict[str, Any]) -> None:
    kind = schema["x"]["type"]
    values = {"int32": [3, -4], "bytes": [b"", b"\0\1"], "string": ["", "é"]}
    arrays = {"int64": np.array([5, -(2**40)]), "float32": np.array([0.5, 2], np.float32)}
    data = [{"x": value} for value in (values[kind] if kind in values else [arrays[kind], arrays[kind] * 2])]
    found = list(FileReader(str(write(tmp_path / "a", data, schema))).get_next())
    assert all(same(each, row) for each, row in zip(found, data, strict=True))


def test_integers_take_as_few_bytes_as_hold_them() -> None:
    for values in (WIDE, EDGES[:3], [], [7]):
        array = np.array(values, np.int64)
        raw = pack_integers(array)
        assert np.array_equal(unpack_integers(raw, np.dtype(np.int64)), array)
    raw = pack_integers(np.array([-1, 127, 128, -129, 32768], np.int32))
    assert raw.hex() == "00000005" + "0580" + "ff" + "7f" + "8000" + "7fff" + "00800000"
    values = {f"v{i}": value for i, value in enumerate([*WIDE, 2**64 - 1, 0.1, 0.5, np.inf, "", "x" * 40, "y" * 70000])}
    assert unpack(pack(values)) == values


def test_several_files_and_records_of_several_calls(tmp_path: Path) -> None:
    first = write(tmp_path / "set", [{"x": i} for i in range(47)], {"x": {"type": "int32"}}, shards=11)
    assert first.name == "set00"
    whole = [row["x"] for row in FileReader(str(first)).get_next()]
    assert sorted(whole) == list(range(47))
    files = [str(tmp_path / "set03"), str(tmp_path / "set01")]
    assert [row["x"] for row in FileReader(files, columns=["x"]).get_next()] == [5, 6, 25, 26, 41, 1, 2, 21, 22, 40]


def epoch(data: ds.Dataset) -> list[int]:
    return [int(row[0]) for row in data.create_tuple_iterator(num_epochs=1, output_numpy=True)]


def test_a_data_set_of_records(tmp_path: Path) -> None:
    data = rows(10)
    path = str(write(tmp_path / "a", data))
    found = ds.MindDataset(path, shuffle=False)
    assert found.column_names == sorted(SCHEMA)
    assert found.get_dataset_size() == 10
    for row, expected in zip(found.create_dict_iterator(num_epochs=1, output_numpy=True), data, strict=True):
        assert (row["label"].dtype, row["label"].shape, int(row["label"])) == (np.int32, (), expected["label"])
        assert (row["near"].dtype, row["data"].dtype) == (np.float32, np.uint8)
        assert row["data"].tobytes() == expected["data"]
        assert str(row["name"]) == expected["name"]
        assert np.array_equal(row["ids"], expected["ids"])
        assert row["marks"].shape == (2, 2)
    assert ds.MindDataset(path, columns_list=["score", "label"]).column_names == ["score", "label"]
    shuffled = epoch(ds.MindDataset(path, ["label"]))
    assert shuffled != EDGES[:10]
    assert sorted(shuffled) == sorted(EDGES[:10])


def test_samplers_and_shards(tmp_path: Path) -> None:
    path = str(write(tmp_path / "set", [{"x": i} for i in range(7)], {"x": {"type": "int32"}}, shards=2))
    assert epoch(ds.MindDataset(path, shuffle=False)) == list(range(7))
    assert epoch(ds.MindDataset(path, sampler=ds.SubsetSampler([3, 1]))) == [3, 1]
    assert epoch(ds.MindDataset(path, shuffle=False, num_samples=3)) == [0, 1, 2]
    assert [epoch(ds.MindDataset(path, shuffle=False, num_shards=2, shard_id=i)) for i in range(2)] == [
        [0, 2, 4, 6], [1, 3, 5, 0],
    ]  # fmt: skip


def test_images_in_records_are_decoded(tmp_path: Path) -> None:
    image = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    data = [{"image": vision_bytes(image), "label": 1}]
    schema = {"image": {"type": "bytes"}, "label": {"type": "int32"}}
    found = ds.MindDataset(str(write(tmp_path / "a", data, schema))).map(vision.Decode(), "image").batch(1)
    assert np.array_equal(next(found.create_dict_iterator(output_numpy=True))["image"][0], image)


def vision_bytes(image: np.ndarray) -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    return file.getvalue()


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.hex() if isinstance(value, bytes) else value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in row.items()
    }
