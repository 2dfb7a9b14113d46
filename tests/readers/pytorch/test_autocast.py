"""Kinds compute as under autocast, where a program is to be trained so and where it says so itself."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mspc import Tensor
from mspc.compiler.frontend.trace import trace
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.training import Training, compiled_as
from tests.exported_programs import Exported, two_layers
from tests.graphs import BFLOAT16, FLOAT16, FLOAT32, DType, Graph, TensorType

F = "float32"


def with_block(enabled: bool, result: str = F) -> Exported:
    """`relu @ v.T` once more, in a block of autocast."""
    made, inner = two_layers(), Exported()
    for name, shape in (("relu", (6, 8)), ("v", (2, 8))):
        inner.tensor(name, F, shape)
        inner.graph["inputs"].append({"as_tensor": {"name": name}})
    inner.node("aten.linear.default", {"input": "relu", "weight": "v"}, {"again": (result, (6, 2))}, "second", 31)
    inner.graph["outputs"].append({"as_tensor": {"name": "again"}})
    given = {
        "a": {"as_string": "cpu"}, "b": {"as_scalar_type": 13}, "c": {"as_bool": enabled}, "d": {"as_bool": True},
        "e": {"as_graph": {"name": "block", "graph": inner.graph}}, "f": "relu", "g": "p_second_weight",
    }  # fmt: skip
    made.node("higher_order.wrap_with_autocast", given, {"block": (result, (6, 2))})
    made.output("block", "z")
    return made


def traced(made: Exported, folder: Path, precision: str) -> Graph:
    program = read_program(made.save(folder / "model.pt2"))
    found = compiled_as(program, Training(precision=precision))
    return trace(found.network, [Tensor(np.zeros(type.shape, np.float32)) for type in found.inputs]).graph


def products(graph: Graph) -> Iterator[tuple[DType, int]]:
    """The element types in which matrices are multiplied, and the lines."""
    for node in graph.nodes:
        if node.op.name == "MatMul":
            type = node.inputs[0].type
            assert isinstance(type, TensorType)
            yield type.dtype, node.frames[0].line


@pytest.mark.parametrize(("precision", "dtype"), [("", FLOAT32), ("float32", FLOAT32), ("bfloat16", BFLOAT16),
                                                    ("float16", FLOAT16)])  # fmt: skip
def test_products(tmp_path: Path, precision: str, dtype: DType) -> None:
    graph = traced(two_layers(), tmp_path, precision)
    assert list(products(graph)) == [(dtype, 11), (dtype, 13)]
    assert [value.tensor_type.dtype for value in graph.results] == [FLOAT32]
    assert all(parameter.tensor_type.dtype == FLOAT32 for parameter in graph.parameters)


@pytest.mark.parametrize(
    ("enabled", "precision", "dtypes"),
    [
        (True, "", [FLOAT32, FLOAT32, BFLOAT16]),
        (False, "", [FLOAT32, FLOAT32, FLOAT32]),
        (False, "bfloat16", [BFLOAT16, BFLOAT16, FLOAT32]),
    ],
)
def test_blocks_of_autocast(tmp_path: Path, enabled: bool, precision: str, dtypes: list[DType]) -> None:
    """A block that is on computes in its type, one that is off as its operands are, whatever is around it."""
    graph = traced(with_block(enabled), tmp_path, precision)
    assert [(dtype, line) for dtype, line in products(graph)] == list(zip(dtypes, (11, 13, 31), strict=True))


def regression() -> Exported:
    """The mean square of products with a weight, and 2e-4 of that: gradients of either are none in Float16."""
    made = Exported()
    weight = made.stored("weight", np.full((2, 4), 1e-2, np.float32))
    x = made.user("x", F, (3, 4))
    y = made.node("aten.linear.default", {"input": x, "weight": weight}, {"y": (F, (3, 2))})
    wide = made.node("aten.to.dtype", {"self": y, "dtype": {"as_scalar_type": 7}}, {"wide": (F, (3, 2))})
    square = made.node("aten.mul.Tensor", {"self": wide, "other": wide}, {"square": (F, (3, 2))})
    mean = made.node("aten.mean.default", {"self": square}, {"mean": (F, ())})
    loss = made.node("aten.mul.Tensor", {"self": mean, "other": 2e-4}, {"scaled": (F, ())})
    made.output(loss, "loss")
    return made


def read_first(graph: Graph) -> dict[str, DType]:
    """The element types of first operands, by the operators that read them."""
    types = {node.op.name: node.inputs[0].type for node in graph.nodes if node.inputs}
    return {name: type.dtype for name, type in types.items() if isinstance(type, TensorType)}


def kinds_of_all_sorts() -> Exported:
    """A product, and what reads it: kinds that compute in Float32, some that take any type, a sum with Float32."""
    made = Exported()
    weight, bias = made.stored("weight", np.ones((4, 4), np.float32)), made.stored("bias", np.ones(4, np.float32))
    x = made.user("x", F, (3, 4))
    y = made.node("aten.linear.default", {"input": x, "weight": weight, "bias": bias}, {"y": (F, (3, 4))})
    relu = made.node("aten.relu.default", {"self": y}, {"relu": (F, (3, 4))})
    half = made.node("aten.mul.Tensor", {"self": relu, "other": 0.5}, {"half": (F, (3, 4))})
    shares = made.node("aten.softmax.int", {"self": half, "dim": -1}, {"shares": (F, (3, 4))})
    total = made.node("aten.add.Tensor", {"self": half, "other": shares}, {"total": (F, (3, 4))})
    both = made.node("aten.cat.default", {"tensors": [half, x], "dim": 1}, {"both": (F, (3, 8))})
    for name in (half, total, both):
        made.output(name, f"{name}_result")
    return made


def test_all_others_compute_in_the_widest_type_that_they_read(tmp_path: Path) -> None:
    graph = traced(kinds_of_all_sorts(), tmp_path, "bfloat16")
    found = read_first(graph)
    assert {found["MatMul"], found["ReLU"], found["Mul"]} == {BFLOAT16}
    assert {found["Softmax"], found["Concat"]} == {FLOAT32}
    assert {value.tensor_type.dtype for value in graph.results} == {FLOAT32}


def test_normalised_batches_keep_their_type_and_their_statistics_are_wide(tmp_path: Path) -> None:
    made = Exported()
    weight = made.stored("weight", np.ones((4, 4), np.float32))
    scale, shift = (made.stored(name, np.ones(4, np.float32)) for name in ("scale", "shift"))
    mean, var = (made.stored(name, np.ones(4, np.float32), "buffer", trains=False) for name in ("mean", "var"))
    x = made.user("x", F, (3, 4))
    y = made.node("aten.linear.default", {"input": x, "weight": weight}, {"y": (F, (3, 4))})
    given = {"input": y, "weight": scale, "bias": shift, "running_mean": mean, "running_var": var, "training": True,
             "momentum": 0.1, "eps": 1e-5, "cudnn_enabled": True}  # fmt: skip
    normal = made.node("aten.batch_norm.default", given, {"normal": (F, (3, 4))})
    made.output(made.node("aten.relu.default", {"self": normal}, {"relu": (F, (3, 4))}))
    graph = traced(made, tmp_path, "bfloat16")
    found = read_first(graph)
    assert (found["BatchNorm"], found["ReLU"]) == (FLOAT32, BFLOAT16)
    assert {p.tensor_type.dtype for p in graph.parameters} == {FLOAT32}


def stepped(folder: Path, precision: str, x: np.ndarray) -> tuple[float, np.ndarray]:
    """The loss of one step, and the weight after it."""
    program = read_program(regression().save(folder / "model.pt2"))
    found = compiled_as(program, Training(optimizer="sgd:lr=1e3", precision=precision))
    loss = found.network(Tensor(x))
    weight = next(p for p in found.network.get_parameters() if p.name == "weight")
    return float(loss.asnumpy()), weight.asnumpy()


def test_small_gradients_in_float16_are_not_lost(tmp_path: Path) -> None:
    x = np.full((3, 4), 1e-2, np.float32)
    loss, weight = stepped(tmp_path, "float16", x)
    expected, other = stepped(tmp_path, "", x)
    np.testing.assert_allclose(loss, expected, rtol=1e-2)
    np.testing.assert_allclose(weight - 1e-2, other - 1e-2, rtol=1e-2)
    assert (weight != np.float32(1e-2)).all()


def test_a_step_that_overflows_updates_nothing(tmp_path: Path) -> None:
    _, weight = stepped(tmp_path, "float16", np.full((3, 4), 6e4, np.float32))
    np.testing.assert_array_equal(weight, np.full((2, 4), 1e-2, np.float32))
