"""Exported programs are read as data: nodes, places, types, signature, and tensors where they lie in the archive."""

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

from mspc.mindspore_api.common.tensor import Tensor
from mspc.readers.pytorch.exported_program import ExportedGraph, ExportedType, NodeResult, TensorPlace
from mspc.readers.pytorch.exported_program import SymbolicSize as Symbolic
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.network import ImportedNetwork
from mspc.readers.pytorch.sizes import with_sizes
from tests.exported_programs import Exported, meta, size, two_layers, write_archive
from tests.graphs import BFLOAT16, FLOAT32, INT64, MspcError


def test_nodes(tmp_path: Path) -> None:
    program = read_program(two_layers().save(tmp_path / "two.pt2"))
    first, relu, second = program.graph.nodes
    assert (first.name, first.target, first.results) == ("linear", "aten.linear.default", ("linear",))
    names = {name: value.name for name, value in first.arguments if isinstance(value, NodeResult)}
    assert names == {"input": "x", "weight": "p_first_weight", "bias": "p_first_bias"}
    assert relu.types == (ExportedType(FLOAT32, (6, 8)),)
    assert [name for name, _ in second.arguments] == ["input", "weight"]
    assert (first.scope, first.modules) == ("first", ("Net", "Part"))
    assert [str(frame) for frame in first.frames] == ["net.py:11"]
    assert first.frames[0].text == "line 11 of the network"
    assert first.user_line == first.frames[0]
    assert (program.schema, program.torch) == ((8, 20), "2.13.0")


def test_signature(tmp_path: Path) -> None:
    made = two_layers()
    made.stored("running", np.zeros(3, np.int64), "buffer", trains=False)
    made.stored("frozen", np.ones(3, np.float32), trains=False)
    made.stored("table", np.ones(3, np.float32), "tensor_constant", trains=False)
    inputs = read_program(made.save(tmp_path / "two.pt2")).inputs
    found = [(each.kind, each.qualified, each.trainable, each.persistent) for each in inputs]
    assert found == [
        ("parameter", "first.weight", True, True), ("parameter", "first.bias", True, True),
        ("parameter", "second.weight", True, True), ("user", "x", False, True), ("buffer", "running", False, True),
        ("parameter", "frozen", False, True), ("constant", "table", False, False),
    ]  # fmt: skip
    program = read_program(made.save(tmp_path / "two.pt2"))
    assert [(each.kind, each.value, each.target) for each in program.outputs] == [("user", NodeResult("linear_1"), "y")]


def test_tensors_are_read_where_they_lie(tmp_path: Path) -> None:
    made, values = two_layers(), np.random.default_rng(3)
    program = read_program(made.save(tmp_path / "two.pt2"))
    w = values.normal(size=(8, 4)).astype(np.float32)
    before = program.weights.files.bytes_read
    assert before == 0
    assert np.array_equal(program.weights.read("first.weight"), w)
    assert np.array_equal(program.weights.read("first.weight", (slice(2, 4), slice(1, 3))), w[2:4, 1:3])
    assert program.weights.files.bytes_read == w.nbytes + w[2:4, 1:3].nbytes


@pytest.mark.parametrize(
    ("shape", "strides", "first", "expected"),
    [
        ((5, 4), (1, 5), 0, np.arange(20).reshape(4, 5).T),
        ((3, 5), (0, 1), 0, np.broadcast_to(np.arange(5), (3, 5))),
        ((4, 2), (5, 1), 1, np.arange(20).reshape(4, 5)[:, 1:3]),
        ((2, 5), (5, 1), 10, np.arange(20).reshape(4, 5)[2:]),
        ((1, 5), (99, 1), 0, np.arange(5).reshape(1, 5)),
        ((0, 5), (5, 1), 0, np.zeros((0, 5))),
    ],
)  # fmt: skip
def test_tensors_that_are_views(
    tmp_path: Path, shape: tuple[int, ...], strides: tuple[int, ...], first: int, expected: np.ndarray
) -> None:
    """Tensors of a member that they do not fill, in another order, one number for many elements."""
    made = Exported()
    made.stored("v", np.arange(20, dtype=np.float32), "buffer", trains=False)
    made.graph["tensor_values"]["b_v"] = meta("float32", shape)
    about = made.configs["weights"]["v"]["tensor_meta"]
    about["sizes"], about["strides"] = [size(n) for n in shape], [size(n) for n in strides]
    about["storage_offset"] = {"as_int": first}
    weights = read_program(made.save(tmp_path / "view.pt2")).weights
    assert np.array_equal(weights.read("v"), expected)
    if expected.size:
        part = slice(0, 1), slice(1, 2)
        assert np.array_equal(weights.read("v", part), expected[part])


def test_one_tensor_of_two_names(tmp_path: Path) -> None:
    made = two_layers()
    made.stored("tied", np.zeros((8, 4), np.float32))
    made.configs["weights"]["tied"] = made.configs["weights"]["first.weight"]
    program = read_program(made.save(tmp_path / "tied.pt2"))
    assert dict(program.same) == {"tied": "first.weight"}
    assert np.array_equal(program.weights.read("tied"), program.weights.read("first.weight"))


def test_tensors_without_values(tmp_path: Path) -> None:
    """A program that was exported of tensors of the device meta has members without bytes."""
    made = two_layers()
    made.members |= {name: b"" for name in made.members if name.startswith("data/weights/")}
    program = read_program(made.save(tmp_path / "meta.pt2"))
    assert not program.weights.tensors
    types = [each.type for each in program.inputs][:2]
    assert types == [ExportedType(FLOAT32, (8, 4), True), ExportedType(FLOAT32, (8,), True)]


def test_kinds_of_arguments(tmp_path: Path) -> None:
    made = two_layers()
    values = {
        "none": {"as_none": True}, "int": {"as_int": -3}, "ints": {"as_ints": [1, 2]}, "float": {"as_float": 1e-5},
        "infinite": {"as_float": "-Infinity"}, "bool": {"as_bool": False}, "text": {"as_string": "mean"},
        "dtype": {"as_scalar_type": 13}, "format": {"as_memory_format": 2}, "layout": {"as_layout": 7},
        "device": {"as_device": {"type": "cuda", "index": 0}}, "complex": {"as_complex": {"real": 1.0, "imag": -2.0}},
        "tensors": {"as_tensors": [{"name": "x"}, {"name": "relu"}]}, "lists": {"as_int_lists": [[1], [2, 3]]},
        "optional": {"as_optional_tensors": [{"as_tensor": {"name": "x"}}, {"as_none": True}]},
        "one": {"as_optional_tensor": {"as_none": True}}, "sizes": {"as_sym_ints": [{"as_int": 4}]},
        "size": {"as_sym_int": {"as_int": 5}}, "words": {"as_string_to_argument": {"k": {"as_int": 1}}},
        "operator": {"as_operator": "_operator.mul"},
    }  # fmt: skip
    made.node("aten.everything.default", values, {"all": ("int64", ())})
    node = read_program(made.save(tmp_path / "all.pt2")).graph.nodes[-1]
    assert dict(node.arguments) == {
        "none": None, "int": -3, "ints": (1, 2), "float": 1e-5, "infinite": -np.inf, "bool": False, "text": "mean",
        "dtype": BFLOAT16, "format": TensorPlace("channels_last"), "layout": TensorPlace("strided"),
        "device": TensorPlace("cuda:0"), "complex": 1 - 2j, "tensors": (NodeResult("x"), NodeResult("relu")),
        "lists": ((1,), (2, 3)), "optional": (NodeResult("x"), None), "one": None, "sizes": (4,), "size": 5,
        "words": (("k", 1),), "operator": "_operator.mul",
    }  # fmt: skip
    assert node.types == (ExportedType(INT64, ()),)


def test_a_graph_inside_of_a_node(tmp_path: Path) -> None:
    made, inner = two_layers(), Exported()
    inner.tensor("x", "float32", (6, 4))
    inner.graph["inputs"].append({"as_tensor": {"name": "x"}})
    inner.node("aten.cos.default", {"self": "x"}, {"cos": ("float32", (6, 4))})
    inner.graph["outputs"].append({"as_tensor": {"name": "cos"}})
    given = {"": {"as_bool": False}, "graph": {"as_graph": {"name": "body", "graph": inner.graph}}, "operand": "x"}
    made.node("higher_order.wrap_with_set_grad_enabled", given, {"wrapped": ("float32", (6, 4))})
    node = read_program(made.save(tmp_path / "inner.pt2")).graph.nodes[-1]
    body = dict(node.arguments)["graph"]
    assert isinstance(body, ExportedGraph)
    assert [each.target for each in body.nodes] == ["aten.cos.default"]
    assert body.outputs == (NodeResult("cos"),)


def test_lists_and_numbers_as_results(tmp_path: Path) -> None:
    made = two_layers()
    made.node("aten.split.Tensor", {"self": "x", "split_size": 2}, {"a": ("float32", (6, 2)), "b": ("float32", (6, 2))})
    made.graph["nodes"][-1]["outputs"] = [{"as_tensors": [{"name": "a"}, {"name": "b"}]}, {"as_none": True}]
    node = read_program(made.save(tmp_path / "lists.pt2")).graph.nodes[-1]
    assert node.results == ("a", "b", "")
    assert node.types == (ExportedType(FLOAT32, (6, 2)), ExportedType(FLOAT32, (6, 2)), None)


def test_arguments_that_are_no_tensors(tmp_path: Path) -> None:
    made = two_layers()
    made.graph["inputs"].append({"as_bool": False})
    made.signature["input_specs"].append({"constant_input": {"name": "use_cache", "value": {"as_bool": False}}})
    made.call["forward_arg_names"].append("use_cache")
    last = read_program(made.save(tmp_path / "value.pt2")).inputs[-1]
    assert (last.kind, last.qualified, last.value, last.type) == ("value", "use_cache", False, None)


def test_mutated_buffers_and_losses(tmp_path: Path) -> None:
    made = two_layers()
    made.stored("mean", np.zeros(8, np.float32), "buffer", trains=False)
    made.node("aten.mean.dim", {"self": "relu", "dim": [0]}, {"new": ("float32", (8,))})
    for name, spec in (
        ("new", {"buffer_mutation": {"arg": {"name": "new"}, "buffer_name": "mean"}}),
        ("relu", {"loss_output": {"arg": {"name": "relu"}}}),
    ):
        made.graph["outputs"].append({"as_tensor": {"name": name}})
        made.signature["output_specs"].append(spec)
    found = read_program(made.save(tmp_path / "mutated.pt2")).outputs
    assert [(each.kind, each.target) for each in found] == [("user", "y"), ("buffer_mutation", "mean"), ("loss", "")]


def open_rows() -> Exported:
    """Two layers over any number of rows, which one of its nodes doubles."""
    made = two_layers("Symbol('s77', positive=True, integer=True)")
    made.content["range_constraints"] = {"s77": {"min_val": 2, "max_val": 64}}
    made.graph["sym_int_values"] = {"rows": size("Symbol('s77')"), "twice": size("Mul(Integer(2), Symbol('s77'))", 12)}
    made.node("aten.sym_size.int", {"self": "x", "dim": 0}, {})
    made.graph["nodes"][-1]["outputs"] = [{"as_sym_int": {"as_name": "rows"}}]
    made.node("_operator.mul", {"a": {"as_sym_int": {"as_name": "rows"}}, "b": 2}, {})
    made.graph["nodes"][-1]["outputs"] = [{"as_sym_int": {"as_name": "twice"}}]
    sizes = {"as_sym_ints": [{"as_name": "twice"}, {"as_int": 4}]}
    made.node("aten.view.default", {"self": "relu", "size": sizes}, {"view": ("float32", ("2*s77", 4))})
    return made


def test_symbolic_sizes(tmp_path: Path) -> None:
    program = read_program(open_rows().save(tmp_path / "open.pt2"))
    assert (dict(program.ranges), dict(program.examples)) == ({"s77": (2, 64)}, {"s77": 6})
    view = program.graph.nodes[-1]
    (rows, columns), (type,) = dict(view.arguments)["size"], view.types  # pyright: ignore
    assert isinstance(rows, Symbolic)
    assert (str(rows), columns, str(type.shape[0])) == ("2*s77", 4, "2*s77")  # pyright: ignore


@pytest.mark.parametrize(("given", "rows"), [({}, 6), ({"s77": 9}, 9), ({"x.0": 2}, 2)])
def test_sizes_get_values(tmp_path: Path, given: dict[str, int], rows: int) -> None:
    """The nodes that compute numbers alone are gone."""
    program = with_sizes(read_program(open_rows().save(tmp_path / "open.pt2")), given)
    assert [node.target for node in program.graph.nodes] == [
        "aten.linear.default", "aten.relu.default", "aten.linear.default", "aten.view.default"
    ]  # fmt: skip
    view = program.graph.nodes[-1]
    assert dict(view.arguments)["size"] == (2 * rows, 4)
    assert view.types == (ExportedType(FLOAT32, (2 * rows, 4)),)
    assert program.inputs[-1].type == ExportedType(FLOAT32, (rows, 4))
    assert program.graph.inputs[-1][1] == ExportedType(FLOAT32, (rows, 4))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"s77": 65}, r"the size s77 \(x.0\) is 65; it may be from 2 to 64"),
        ({"s77": 1}, r"the size s77 \(x.0\) is 1; it may be from 2 to 64"),
        ({"s7": 4}, r"has no size 's7'"),
        ({"x.1": 4}, r"has no size 'x.1'"),
    ],
)
def test_wrong_sizes(tmp_path: Path, given: dict[str, int], message: str) -> None:
    program = read_program(open_rows().save(tmp_path / "open.pt2"))
    with pytest.raises(MspcError, match=message):
        with_sizes(program, given)


@pytest.mark.parametrize("given", [{"y.0": 23}, {"y.0": 23, "x.0": 10}, {"s77": 10, "y.0": 23}])
def test_a_size_that_is_computed_of_a_symbol_says_what_that_is(tmp_path: Path, given: dict[str, int]) -> None:
    made = open_rows()
    made.user("y", "float32", ("2*s77 + 3",))
    program = with_sizes(read_program(made.save(tmp_path / "open.pt2")), given)
    assert [each.type for each in program.inputs[-2:]] == [ExportedType(FLOAT32, (10, 4)), ExportedType(FLOAT32, (23,))]


@pytest.mark.parametrize(("given", "message"), [
    ({"y.0": 22}, r"the size y.0 is .*, and never 22"),
    ({"y.0": 131}, r"the size s77 \(x.0\) is 64; it may be from 2 to 60"),
    ({"y.0": 23, "x.0": 9}, r"sizes y.0 and x.0 are 23 and 9, and no s77 is both"),
    ({"z.0": 4, "x.0": 9}, r"sizes z.0 and x.0 are 4 and 9, and no s77 is both"),
])  # fmt: skip
def test_sizes_that_are_none_together(tmp_path: Path, given: dict[str, int], message: str) -> None:
    made = open_rows()
    made.content["range_constraints"]["s77"]["max_val"] = 60
    made.user("y", "float32", ("2*s77 + 3",))
    made.user("z", "float32", ("s77",))
    program = read_program(made.save(tmp_path / "open.pt2"))
    with pytest.raises(MspcError, match=message.replace(r"(x.0\)", r"(x.0, z.0\)")):
        with_sizes(program, given)


def test_a_size_without_value(tmp_path: Path) -> None:
    made = open_rows()
    for about in [*made.graph["tensor_values"].values(), {"sizes": [*made.graph["sym_int_values"].values()]}]:
        for n in about["sizes"]:
            n.get("as_expr", {})["hint"] = None
    program = read_program(made.save(tmp_path / "open.pt2"))
    with pytest.raises(MspcError, match=r"the size s77 \(x.0\), from 2 to 64, has no value") as caught:
        with_sizes(program, {})
    assert "--size x.0=8" in caught.value.render()


def test_a_size_that_depends_on_data(tmp_path: Path) -> None:
    made = two_layers()
    made.node("aten.nonzero.default", {"self": "x"}, {"found": ("int64", ("u0", 2))}, "second", 21)
    program = read_program(made.save(tmp_path / "data.pt2"))
    with pytest.raises(MspcError, match="known only when it runs: u0") as caught:
        with_sizes(program, {})
    assert "aten.nonzero.default at net.py:21 in second" in caught.value.render()


def test_an_assertion_about_sizes(tmp_path: Path) -> None:
    made = open_rows()
    made.graph["sym_bool_values"] = {"even": {"as_expr": {"expr_str": "Eq(Mod(s77, 2), 0)", "hint": None}}}
    text = {"as_string": "rows must be even"}
    made.node("aten._assert_scalar.default", {"self": {"as_sym_bool": {"as_name": "even"}}, "message": text}, {})
    program = read_program(made.save(tmp_path / "even.pt2"))
    assert len(with_sizes(program, {"s77": 8}).graph.nodes) == 4
    with pytest.raises(MspcError, match="may not be called with these sizes: rows must be even"):
        with_sizes(program, {"s77": 7})


def test_tokens_of_effects_are_left_out(tmp_path: Path) -> None:
    """As `run_decompositions` writes operators with effects: a call with a token, which its first result is, too."""
    made = Exported()
    for name, kind in (("token", "token"), ("x", "user_input")):
        made.tensor(name, "float32", (3,))
        made.graph["inputs"].append({"as_tensor": {"name": name}})
        arg = {"name": name} if kind == "token" else {"as_tensor": {"name": name}}
        made.signature["input_specs"].append({kind: {"arg": arg}})
    given = {"0": "token", "1": {"as_operator": "torch.ops.aten.mul.Tensor"}, "2": "x", "3": 2}
    made.node("higher_order.with_effects", given, {"after": ("float32", (0,)), "y": ("float32", (3,))})
    for argument in made.graph["nodes"][0]["inputs"]:
        argument["name"] = ""
    made.graph["outputs"].append({"as_tensor": {"name": "after"}})
    made.signature["output_specs"].append({"token": {"arg": {"name": "after"}}})
    made.output("y")
    program = read_program(made.save(tmp_path / "effects.pt2"))
    (node,) = program.graph.nodes
    assert (node.target, node.results) == ("aten.mul.Tensor", ("y",))
    assert node.arguments == (("self", NodeResult("x")), ("other", 2))
    assert [each.value for each in program.outputs] == [NodeResult("y")]
    found = ImportedNetwork(program)(Tensor(np.ones(3, np.float32)))
    assert found.asnumpy().tolist() == [2, 2, 2]


def test_numbers_that_give_another_shape_are_refused(tmp_path: Path) -> None:
    """The exported shape of the result of `nonzero` is fixed, also if it is empty."""
    for count, fitting in ((2, [1.0, 0.0, 3.0]), (0, [0.0, 0.0, 0.0])):
        made = Exported()
        made.node("aten.nonzero.default", {"self": made.user("x", "float32", (3,))}, {"y": ("int64", (count, 1))})
        made.output("y")
        network = ImportedNetwork(read_program(made.save(tmp_path / f"{count}.pt2")))
        assert network(Tensor(np.array(fitting, np.float32))).asnumpy().ravel().tolist() == [0, 2][:count]
        with pytest.raises(MspcError, match=rf"a result of shape \(1, 1\); the program is compiled for \({count}, 1"):
            network(Tensor(np.array([0.0, 1.0, 0.0], np.float32)))


def test_a_number_taken_out_of_a_tensor_is_refused(tmp_path: Path) -> None:
    made = Exported()
    made.node("aten._local_scalar_dense.default", {"self": made.user("x", "float32", ())}, {"y": ("float32", ())})
    made.output("y")
    with pytest.raises(MspcError, match="takes numbers out of tensors, which are known only when it runs"):
        ImportedNetwork(read_program(made.save(tmp_path / "number.pt2")))


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
