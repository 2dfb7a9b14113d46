"""Files that are no exported programs, damaged and hostile ones: each is told in one message, and nothing is run."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.graph_reader import read_program
from tests.exported_programs import Exported, meta, size, two_layers, write_archive

SENTINEL = "pickle_was_loaded"


class Evil:
    """Makes a file where its pickle is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path / SENTINEL,))


def refused(path: Path, message: str) -> str:
    with pytest.raises(MspcError, match=message) as caught:
        read_program(path)
    return caught.value.render()


def members(made: Exported) -> dict[str, bytes]:
    return {f"{made.name}/{name}": content for name, content in made.all_members().items()}


def test_no_file(tmp_path: Path) -> None:
    refused(tmp_path / "none.pt2", "there is no file .*none.pt2")
    refused(tmp_path, "cannot read")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04K\x01.", b"\x00" * 3000])
def test_no_zip_archive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "text.pt2").write_bytes(content)
    assert "torch.export.save" in refused(tmp_path / "text.pt2", "it is no zip archive")


def test_archives_cut_short(tmp_path: Path) -> None:
    whole = two_layers().save(tmp_path / "whole.pt2").read_bytes()
    cut = tmp_path / "cut.pt2"
    for length in [4, 30, *range(100, len(whole), 331), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        refused(cut, r"cut.pt2 is damaged: it has no list of its members, as a file cut short")


def test_bytes_missing_in_the_middle(tmp_path: Path) -> None:
    """The list of members is there, and they do not stand where it says."""
    whole = two_layers().save(tmp_path / "whole.pt2").read_bytes()
    hole = tmp_path / "hole.pt2"
    for begin in range(0, len(whole) // 2, 500):
        hole.write_bytes(whole[:begin] + whole[begin + 64 :])
        refused(hole, "is damaged|no zip archive")


@pytest.mark.parametrize("name", ["../out", "model/../../out", "/etc/out", "model/..", "C:out", "model\\..\\out"])
def test_paths_that_leave_the_archive(tmp_path: Path, name: str) -> None:
    path = write_archive(tmp_path / "a.pt2", members(two_layers()) | {name: b"x"})
    refused(path, r"out of its folder|can be no member")


def test_members_in_two_folders(tmp_path: Path) -> None:
    refused(write_archive(tmp_path / "a.pt2", members(two_layers()) | {"other/x": b"x"}), "stand in 2 folders")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_twice(tmp_path: Path) -> None:
    path = two_layers().save(tmp_path / "a.pt2")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("model/archive_format", b"pt2")
    refused(path, "it has 'archive_format' twice")


def listed(content: bytearray, name: bytes) -> int:
    """Where the list of members has a name."""
    return content.rindex(b"PK\x01\x02", 0, content.rindex(name))


@pytest.mark.parametrize(
    ("offset", "form", "value", "message"),
    [
        (42, "<I", 0, "is called b'model/models/model.json' where it stands|lie on top of each other"),
        (42, "<I", 1 << 30, "is damaged"),
        (42, "<I", 7, "is not at the position in the list of members"),
        (20, "<II", (1 << 30, 1 << 30), "ends after the end of the file"),
        (20, "<II", (8, 1 << 30), "is stored in 8 bytes and has 1073741824"),
        (20, "<II", (4000, 4000), "lie on top of each other|ends after the end"),
        (8, "<H", 1, "is encrypted"),
        (10, "<H", 99, "is compressed|is damaged"),
    ],
)
def test_a_list_of_members_that_lies(tmp_path: Path, offset: int, form: str, value: Any, message: str) -> None:
    path = two_layers().save(tmp_path / "a.pt2")
    content = bytearray(path.read_bytes())
    at = listed(content, b"model/data/weights/weight_0") + offset
    packed = struct.pack(form, *value) if isinstance(value, tuple) else struct.pack(form, value)
    content[at : at + len(packed)] = packed
    path.write_bytes(content)
    refused(path, message)


def test_a_text_that_unpacks_to_more_than_it_says(tmp_path: Path) -> None:
    made = members(two_layers()) | {"model/archive_format": b"pt2" * 40_000}
    path = write_archive(tmp_path / "a.pt2", made, zipfile.ZIP_DEFLATED)
    content = bytearray(path.read_bytes())
    at = listed(content, b"model/archive_format") + 24
    content[at : at + 4] = struct.pack("<I", 3)
    path.write_bytes(content)
    refused(path, "is damaged: archive_format")


def test_a_text_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mspc.readers.pytorch.archive.LARGEST_TEXT", 1000)
    refused(two_layers().save(tmp_path / "a.pt2"), "model.json has .* bytes; a text may have 1000")


def test_compressed_tensors(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.pt2", members(two_layers()), zipfile.ZIP_DEFLATED)
    refused(path, "data/weights/weight_0 is compressed, and tensors are read in place")


def test_texts_may_be_compressed(tmp_path: Path) -> None:
    made = Exported()
    made.node("aten.ones.default", {"size": [2]}, {"ones": ("float32", (2,))})
    made.output("ones")
    assert len(read_program(write_archive(tmp_path / "a.pt2", members(made), zipfile.ZIP_DEFLATED)).graph.nodes) == 1


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    """Not where tensors are expected, not as inputs of an example, not in archives of older versions."""
    evil = pickle.dumps(Evil(tmp_path))
    made = two_layers()
    made.members["data/sample_inputs/model.pt"] = evil
    read_program(made.save(tmp_path / "a.pt2"))
    made.members["data/weights/weight_0"] = evil
    made.configs["weights"]["first.weight"]["use_pickle"] = True
    refused(made.save(tmp_path / "b.pt2"), "'first.weight' is pickled, in data/weights/weight_0, and mspc loads no")
    (tmp_path / "c.pt2").write_bytes(evil)
    refused(tmp_path / "c.pt2", "no zip archive")
    old = {"serialized_exported_program.json": b"{}", "serialized_state_dict.pt": evil, "version": b"8.2"}
    refused(write_archive(tmp_path / "d.pt2", old), "PyTorch 2.7 and older, whose tensors are pickled")
    later = two_layers()
    later.members["data/weights/model.pt"] = evil
    assert "torch.export.save of PyTorch 2.9" in refused(later.save(tmp_path / "f.pt2"), "whose tensors are pickled")
    saved = write_archive(tmp_path / "e.pt2", {"model/data.pkl": evil, "model/version": b"3"})
    assert "it is a file of torch.save" in refused(saved, "it has no archive_format")
    assert not (tmp_path / SENTINEL).exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("archive_format", b"pt3", "has format b'pt3'"),
        ("archive_version", b"7", "has version b'7' of archives; mspc reads 0"),
        ("byteorder", b"big", "has byte order b'big'"),
        ("models/other.json", b"{}", "has 2 programs, model, other; mspc reads a file with one"),
        ("models/model.json", b"", "models/model.json: it is empty"),
        ("models/model.json", b"{", "models/model.json: "),
        ("models/model.json", b"[]", "models/model.json: it is"),
        ("models/model.json", b"\xff\xfe", "it is not text in UTF-8"),
        ("models/model.json", b"[" * 100_000, "brackets stand too deep"),
        ("models/model.json", b'{"a": 1, "a": 2}', "it has an entry 'a' twice"),
        ("data/weights/model_weights_config.json", b"{}", "has no 'config'"),
    ],
)
def test_wrong_members(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    refused(write_archive(tmp_path / "a.pt2", members(two_layers()) | {f"model/{name}": content}), message)


def test_no_program(tmp_path: Path) -> None:
    rest = {name: content for name, content in members(two_layers()).items() if "/models/" not in name}
    refused(write_archive(tmp_path / "a.pt2", rest), "has no program in models/")


@pytest.mark.parametrize("major", [5, 7, 9, 80])
def test_other_versions_are_refused_by_number(tmp_path: Path, major: int) -> None:
    made = two_layers()
    made.content["schema_version"] = {"major": major, "minor": 3}
    refused(made.save(tmp_path / "a.pt2"), rf"is of version {major}.3 of exported programs \(PyTorch 2.13.0\)")


@pytest.mark.parametrize("minor", [0, 8, 999])
def test_minor_versions_are_read(tmp_path: Path, minor: int) -> None:
    made = two_layers()
    made.content["schema_version"] = {"major": 8, "minor": minor}
    made.content["new_in_this_version"] = made.graph["new_in_this_version"] = [1, 2]
    assert len(read_program(made.save(tmp_path / "a.pt2")).graph.nodes) == 3


def _node(index: int, **changes: Any) -> Callable[[Exported], object]:
    return lambda made: made.graph["nodes"][index].update(changes)


def _about(**changes: Any) -> Callable[[Exported], object]:
    return lambda made: made.configs["weights"]["first.weight"]["tensor_meta"].update(changes)


def _value(name: str, **changes: Any) -> Callable[[Exported], object]:
    return lambda made: made.graph["tensor_values"][name].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_node(1, inputs=[{"name": "self", "arg": {"as_tensor": {"name": "later"}}}]), "'later', which nothing"),
        (_node(0, inputs=[{"name": "self", "arg": {"as_tensor": {"name": "relu"}}}]), "'relu', which nothing"),
        (_node(1, outputs=[{"as_tensor": {"name": "x"}}]), "is called 'x', as another value before it"),
        (_node(1, inputs=[{"name": "k", "arg": {"as_wonder": 1}}]), "argument 0 is of kind 'as_wonder'"),
        (_node(1, inputs=[{"name": "k", "arg": {"as_int": 1, "as_bool": True}}]), "not an object with one entry"),
        (_node(1, inputs=[{"name": "k", "arg": {"as_scalar_type": 77}}]), "has element type 77"),
        (_node(1, inputs=[{"name": "k", "arg": {"as_custom_obj": {"name": "o"}}}]), "is an object of TorchScript"),
        (_node(1, target=7), "node 1: target is 7, not a text"),
        (_value("x", sizes=[size(6), size(-4)]), "not a whole number from 0"),
        (_value("x", sizes=[size(1)] * 65), "has 65 dimensions"),
        (_value("x", sizes=[size("import os")]), "is no expression"),
        (_value("x", sizes=[size("os.system(s0)")]), "is no arithmetic over sizes"),
        (_value("relu", dtype=29), r"node 1 \(aten.relu.default\).* is of float8_e4m3fn, which mspc does not have"),
        (_value("x", layout=44), "layout is 44, which no version"),
        (lambda made: made.signature["input_specs"].pop(), "its signature has 3 inputs, and its graph has 4"),
        (lambda made: made.signature["output_specs"].clear(), "its signature has 0 outputs, and its graph has 1"),
        (lambda made: made.signature["input_specs"].reverse(), "in the signature"),
        (lambda made: made.graph.pop("nodes"), "its graph has no 'nodes'"),
        (_about(sizes=[size(80), size(4)]), r"'first.weight' .* does not fit into the 128 bytes"),
        (_about(strides=[size(1 << 40), size(1)]), "does not fit into the 128 bytes"),
        (_about(strides=[size(-4), size(1)]), "not a whole number from 0"),
        (_about(strides=[size(1)]), "has 2 sizes and 1 strides"),
        (_about(storage_offset=size(8)), "from element 8 on does not fit"),
        (
            _about(sizes=[size(4), size(8)], strides=[size(8), size(1)]),
            r"'first.weight' is Float32\[8, 4\] in the graph, and <Tensor\[Float32\], \(4, 8\)> is stored",
        ),
        (_about(dtype=4), r"'first.weight' is Float32\[8, 4\] in the graph, and <Tensor\[Int32\]"),
        (_about(layout=1), "is not strided"),
        (_about(sizes=[size(1 << 61), size(8)]), "does not fit"),
        (lambda made: made.members.pop("data/weights/weight_1"), "is damaged: it has no data/weights/weight_1"),
        (lambda made: made.configs["weights"]["first.bias"].update(path_name="../../x"), "has no data/weights/../../x"),
        (lambda made: made.configs["constants"].update(made.configs["weights"]), "has no data/constants/weight_0"),
    ],
)  # fmt: skip
def test_entries_that_lie(tmp_path: Path, change: Callable[[Exported], object], message: str) -> None:
    made = two_layers()
    change(made)
    refused(made.save(tmp_path / "a.pt2"), message)


def test_trainable_tensors_that_overlap(tmp_path: Path) -> None:
    made = two_layers()
    made.members["data/weights/weight_0"] = np.zeros(40, np.float32).tobytes()
    made.stored("other", np.zeros((8, 4), np.float32))
    made.configs["weights"]["other"] = copy.deepcopy(made.configs["weights"]["first.weight"])
    made.configs["weights"]["other"]["tensor_meta"]["storage_offset"] = size(8)
    refused(made.save(tmp_path / "a.pt2"), "parameters 'first.weight' and 'other' overlap in data/weights/weight_0")


def test_a_trainable_tensor_that_overlaps_itself(tmp_path: Path) -> None:
    made = two_layers()
    made.configs["weights"]["first.weight"]["tensor_meta"]["strides"] = [size(0), size(1)]
    refused(made.save(tmp_path / "a.pt2"), "elements of parameter 'first.weight' lie on top of each other")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything that stands in JSON."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


@pytest.mark.parametrize("other", [None, 1 << 70, "x", [], {}, [{}], True, -1])
def test_every_entry_may_be_wrong(tmp_path: Path, other: Any) -> None:
    """Whatever stands in the place of whatever: it is read, or told in a message."""
    made = two_layers()
    made.all_members()
    made.graph["tensor_values"]["x"] = meta("float32", ("s0", 4))
    whole, told = json.dumps(made.content), 0
    for path in list(places(made.content))[1::3]:
        made.content = json.loads(whole)
        owner: Any = made.content
        for key in path[:-1]:
            owner = owner[key]
        owner[path[-1]] = other
        content = members(made) | {"model/models/model.json": json.dumps(made.content).encode()}
        with contextlib.suppress(MspcError):
            read_program(write_archive(tmp_path / "a.pt2", content))
            told -= 1
        told += 1
    assert told > 20
