"""An exported program as a cell: names, calls, places, gradients on ranks, and what is told of mistakes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mspc
from mspc import Tensor, nn
from mspc.commands.run import run_script
from mspc.compiler.frontend.trace import trace
from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.exported_program import ExportedGraph, ExportedNode, ExportedType, NodeResult
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.network import ImportedNetwork
from tests.exported_programs import Exported, two_layers

F = "float32"


def loaded(made: Exported, folder: Path, returns: str | None = None) -> ImportedNetwork:
    return ImportedNetwork(read_program(made.save(folder / "model.pt2")), returns)


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).normal(size=shape).astype(np.float32)


def test_parameters_have_the_names_of_the_module(tmp_path: Path) -> None:
    network = loaded(two_layers(), tmp_path)
    names = ["first.weight", "first.bias", "second.weight"]
    assert [p.name for p in network.get_parameters()] == names
    assert [p.name for p in nn.WithLossCell(network, nn.MSELoss()).trainable_params()] == names
    assert network.argument_names == ("x",)


def test_it_has_a_state_as_other_cells(tmp_path: Path) -> None:
    network = loaded(two_layers(), tmp_path)
    state = network.state_dict()
    assert list(state) == [p.name for p in network.get_parameters()]
    assert list(network.named_buffers()) == []
    weights = {name: Tensor(values(*each.shape)) for name, each in state.items()}
    network.load_state_dict(weights)
    for name, each in network.parameters_dict().items():
        np.testing.assert_array_equal(each.asnumpy(), weights[name].asnumpy())


def test_it_computes_what_the_program_says(tmp_path: Path) -> None:
    network = loaded(two_layers(), tmp_path)
    w, b, v = (p.asnumpy() for p in network.get_parameters())
    x = values(6, 4)
    expected = np.maximum(x @ w.T + b, 0) @ v.T
    np.testing.assert_allclose(network(Tensor(x)).asnumpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(network(x=Tensor(x)).asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_script_loads_it(tmp_path: Path) -> None:
    two_layers("s0").save(tmp_path / "model.pt2")
    network = mspc.load_torch(tmp_path / "model.pt2", "y", {"s0": 3})
    assert network(Tensor(values(3, 4))).shape == (3, 2)


@pytest.mark.parametrize(("arguments", "what"), [
    ((3,), "takes the path of an exported program, not int"),
    (("model.pt2", 0), "returns must be a string or None, not 0"),
    (("model.pt2", None, {"x.0": 2.0}), "sizes must be a dictionary of integers"),
])  # fmt: skip
def test_wrong_arguments_of_the_script_are_told(arguments: tuple[object, ...], what: str) -> None:
    with pytest.raises(TypeError, match=what):
        mspc.load_torch(*arguments)


def test_nodes_are_in_the_module_and_at_the_line_of_its_source(tmp_path: Path) -> None:
    network = loaded(two_layers(), tmp_path)
    graph = trace(network, [Tensor(values(6, 4))]).graph
    [relu] = [node for node in graph.nodes if node.op.name == "ReLU"]
    products = [node for node in graph.nodes if node.op.name == "MatMul"]
    assert [str(node.frames[0]) for node in (*products, relu)] == ["net.py:11", "net.py:13", "net.py:12"]
    assert [node.scope for node in (*products, relu)] == ["Default/first-Part", "Default/second-Part", "Default"]
    assert [p.name for p in graph.parameters if p.kind == "input"] == ["x"]


def test_below_a_cell_it_has_a_scope_and_lines_of_both(tmp_path: Path) -> None:
    class Twice(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.inner = loaded(two_layers(), tmp_path)

        def construct(self, x: Tensor) -> Tensor:
            return self.inner(x) + self.inner(x=x)

    graph = trace(Twice(), [Tensor(values(6, 4))]).graph
    products = [node for node in graph.nodes if node.op.name == "MatMul"]
    assert {node.scope for node in products} == {
        "Default/inner-ImportedNetwork/first-Part", "Default/inner-ImportedNetwork/second-Part"
    }  # fmt: skip
    assert [frame.file.rpartition("/")[2] for frame in products[0].frames] == ["net.py", "test_network.py"]
    assert [p.name for p in graph.parameters if p.kind == "parameter"] == [
        "inner.first.weight", "inner.first.bias", "inner.second.weight"
    ]  # fmt: skip


def test_two_names_of_one_tensor_are_one_parameter(tmp_path: Path) -> None:
    made = Exported()
    w = made.stored("words.weight", values(4, 4))
    other = made.stored("head.weight", values(4, 4))
    made.configs["weights"]["head.weight"]["path_name"] = made.configs["weights"]["words.weight"]["path_name"]
    x = made.user("x", F, (2, 4))
    made.node("aten.linear.default", {"input": x, "weight": w}, {"hidden": (F, (2, 4))})
    made.node("aten.linear.default", {"input": "hidden", "weight": other}, {"result": (F, (2, 4))})
    made.node("aten.sum.default", {"self": "result"}, {"total": (F, ())})
    made.output("total")
    network = loaded(made, tmp_path)
    [weight] = network.trainable_params()
    assert weight.name == "words.weight"
    x0 = values(2, 4)
    _, [gradient] = mspc.value_and_grad(network, None, [weight])(Tensor(x0))
    ones, array = np.ones((2, 4)), values(4, 4)
    expected = ones.T @ (x0 @ array.T) + (ones @ array).T @ x0
    np.testing.assert_allclose(gradient.asnumpy(), expected, rtol=1e-5, atol=1e-5)


def test_one_of_several_results(tmp_path: Path) -> None:
    made = two_layers()
    made.node("aten.mean.default", {"self": "linear_1"}, {"mean": (F, ())})
    made.output("mean", "loss")
    network = loaded(made, tmp_path)
    y, mean = network(Tensor(values(6, 4)))
    assert loaded(made, tmp_path, "loss")(Tensor(values(6, 4))).asnumpy() == mean.asnumpy()
    assert y.shape == (6, 2)
    with pytest.raises(ValueError, match="returns no 'los'") as raised:
        loaded(made, tmp_path, "los")
    assert "did you mean 'loss'?" in raised.value.notes


def test_unknown_kinds_are_told_together(tmp_path: Path) -> None:
    made = Exported()
    x = made.user("x", F, (2,))
    kinds = ("aten.wavy.default", "aten.relu.default", "higher_order.auto_functionalized_v2", "aten.wavy.default")
    for number, kind in enumerate(kinds):
        called = {"op": {"as_operator": "torch.ops.other.curly.default"}} if "auto" in kind else {}
        x = made.node(kind, called | {"self": x}, {f"r{number}": (F, (2,))}, "part", 20 + number)
    made.output(x)
    with pytest.raises(MspcError, match="2 kinds of operators that are not known") as raised:
        loaded(made, tmp_path)
    assert str(raised.value.location) == "net.py:20"
    assert raised.value.notes[0] == "aten.wavy.default: 2 times, first at net.py:20: line 20 of the network (part)"
    assert raised.value.notes[1].startswith("other.curly.default: 1 time, first at net.py:22")
    assert raised.value.notes[2].startswith("other.curly.default is a custom operator, whose code is not in the file")


def test_a_mistake_of_a_node_is_told_with_kind_module_and_line(tmp_path: Path) -> None:
    made = Exported()
    x = made.user("x", F, (2, 3))
    made.node("aten.relu.default", {"self": x}, {"result": (F, (3, 2))}, "part", 8)
    made.output("result")
    with pytest.raises(MspcError, match=r"aten\.relu\.default of part: its result has shape ") as raised:
        loaded(made, tmp_path)(Tensor(values(2, 3)))
    assert str(raised.value.location) == "net.py:8"


@pytest.mark.parametrize(("arguments", "what"), [
    ({"self": "x", "other": 1, "better": 2}, "there is no argument 'better'"), ({"self": "x"}, "'other' is missing"),
])  # fmt: skip
def test_other_arguments_than_the_row_has_are_told(arguments: dict[str, object], what: str, tmp_path: Path) -> None:
    made = Exported()
    made.user("x", F, (2,))
    made.node("aten.add.Tensor", arguments, {"result": (F, (2,))})
    made.output("result")
    with pytest.raises(MspcError, match=what):
        loaded(made, tmp_path)(Tensor(values(2)))


def test_what_is_read_in_one_way_alone_is_told_elsewhere(tmp_path: Path) -> None:
    made = Exported()
    w, x = made.stored("w", values(4, 2)), made.user("x", "int64", (3,))
    arguments = {"weight": w, "indices": x, "padding_idx": -1, "scale_grad_by_freq": True}
    made.node("aten.embedding.default", arguments, {"rows": (F, (3, 2))})
    made.output("rows")
    with pytest.raises(MspcError, match="scale_grad_by_freq is read as False alone, and is True"):
        loaded(made, tmp_path)(Tensor(np.arange(3)))


def test_a_call_with_other_tensors_is_told(tmp_path: Path) -> None:
    network, x = loaded(two_layers(), tmp_path), Tensor(values(6, 4))
    with pytest.raises(TypeError, match="takes 1 tensors, x, not 2"):
        network(x, x)
    with pytest.raises(TypeError, match="takes no 'y' here; it takes x"):
        network(x, y=x)


def test_dropout_draws_anew_in_every_place_and_call(tmp_path: Path) -> None:
    made = Exported()
    x = made.user("x", F, (64,))
    for number in range(2):
        made.node("aten.dropout.default", {"input": x, "p": 0.5, "train": True}, {f"r{number}": (F, (64,))})
        made.output(f"r{number}", f"r{number}")
    network, ones = loaded(made, tmp_path), Tensor(np.ones(64, np.float32))
    drawn = [each.asnumpy() for _ in range(2) for each in network(ones)]
    assert all(set(each.tolist()) == {0, 2} for each in drawn)
    assert len({each.tobytes() for each in drawn}) == 4


def test_weights_of_an_attention_are_dropped(tmp_path: Path) -> None:
    """With the unit matrix as values the result is the weights: dropped ones are 0, the others twice as large."""
    made, size = Exported(), 16
    names = [made.user(name, F, (2, 3, size, size)) for name in ("query", "value")]
    for p in (0.0, 0.5):
        arguments = {"query": names[0], "key": names[0], "value": names[1], "attn_mask": None, "dropout_p": p,
                     "is_causal": True}  # fmt: skip
        result = {f"result{p}": (F, (2, 3, size, size))}
        made.node("aten.scaled_dot_product_attention.default", arguments, result)
        made.output(f"result{p}", f"{p}")
    value = np.broadcast_to(np.eye(size, dtype=np.float32), (2, 3, size, size))
    whole, dropped = (x.asnumpy() for x in loaded(made, tmp_path)(Tensor(values(2, 3, size, size)), Tensor(value)))
    stays = dropped != 0
    np.testing.assert_allclose(dropped[stays], 2 * whole[stays], rtol=1e-5)
    assert 0.4 < stays[whole != 0].mean() < 0.6


def test_a_graph_without_gradients_is_inlined(tmp_path: Path) -> None:
    """`with torch.no_grad()` is exported as a graph of its own."""
    program = read_program(two_layers().save(tmp_path / "model.pt2"))
    type = ExportedType(program.inputs[-1].type.dtype, (6, 8))  # type: ignore[union-attr]
    inner = ExportedGraph(
        (ExportedNode("twice", "aten.mul.Tensor", (("self", NodeResult("a")), ("other", 2)), ("twice",), (type,)),),
        (("a", type),), (NodeResult("twice"),),
    )  # fmt: skip
    wrapped = ExportedNode(
        "wrapped", "higher_order.wrap_with_set_grad_enabled",
        (("", False), ("", inner), ("", NodeResult("relu"))), ("out",), (type,),
    )  # fmt: skip
    nodes = list(program.graph.nodes)
    nodes[2:] = [wrapped, replace(nodes[2], arguments=(("input", NodeResult("out")), *nodes[2].arguments[1:]))]
    network = ImportedNetwork(replace(program, graph=replace(program.graph, nodes=tuple(nodes))))
    plain = loaded(two_layers(), tmp_path)
    x = Tensor(values(6, 4))
    np.testing.assert_allclose(network(x).asnumpy(), 2 * plain(x).asnumpy(), rtol=1e-5, atol=1e-5)
    _, gradients = mspc.value_and_grad(network, None, network.trainable_params())(x)
    assert [bool(np.any(g.asnumpy())) for g in gradients] == [False, False, True]


SCRIPT = """
import sys
import numpy as np
import mindspore as ms
from mindspore.communication import get_rank, init

init()
network = ms.load_torch(sys.argv[1], "loss")
ms.set_auto_parallel_context(parallel_mode=sys.argv[2], dataset_strategy=((2, 1),), device_num=2)
x = np.random.default_rng(5).normal(size=(6, 4)).astype(np.float32)[3 * get_rank():][:3]
loss, gradients = ms.value_and_grad(network, None, network.trainable_params())(ms.Tensor(x))
np.savez(f"{sys.argv[3]}/{get_rank()}.npz", loss.asnumpy(), *(g.asnumpy() for g in gradients))
"""


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
def test_ranks_have_the_gradients_of_one_device(mode: str, tmp_path: Path) -> None:
    made = two_layers()
    made.node("aten.mean.default", {"self": "linear_1"}, {"mean": (F, ())})
    made.output("mean", "loss")
    network = loaded(made, tmp_path, "loss")
    loss, gradients = mspc.value_and_grad(network, None, network.trainable_params())(Tensor(values(6, 4)))
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run_script(script, 2, True, script_arguments=(str(tmp_path / "model.pt2"), mode, str(tmp_path)))
    for rank in range(2):
        found = np.load(tmp_path / f"{rank}.npz")
        for name, expected in zip(found.files, (loss, *gradients), strict=True):
            np.testing.assert_allclose(found[name], expected.asnumpy(), rtol=1e-5, atol=1e-6)
