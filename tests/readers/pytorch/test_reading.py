"""Exported programs are read as data: nodes, places, types, signature, and tensors where they lie in the archive."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import BFLOAT16, FLOAT32, INT64
from mspc.mindspore_api.common.tensor import Tensor
from mspc.readers.pytorch.exported_program import ExportedGraph, ExportedType, NodeResult, TensorPlace
from mspc.readers.pytorch.exported_program import SymbolicSize as Symbolic
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.network import ImportedNetwork
from mspc.readers.pytorch.sizes import with_sizes
from tests.exported_programs import Exported, meta, size, two_layers


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
