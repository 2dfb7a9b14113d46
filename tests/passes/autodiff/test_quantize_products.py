"""Linear layers in Float8: which of them, in which types and with which scales, and what ranks send of them."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.passes.autodiff.quantize_products import HISTORY
from tests.compiled_scripts import Config, compile_call
from tests.graphs import BFLOAT16, FLOAT32, Graph, MspcError, Node, TensorType
from tests.operators import AllGather, Assign, Float8Scale, MatMul, Quantize, ScaledMatMul

WIDTH = 256


class Net(nn.Cell):
    """Four layers of weights [in, out]."""

    def __init__(self) -> None:
        super().__init__()
        weights = np.random.default_rng(0).standard_normal((4, WIDTH, WIDTH)).astype(np.float32) / 16
        self.weights = [Parameter(Tensor(w), f"w{i}") for i, w in enumerate(weights)]
        self.matmuls = [ops.MatMul() for _ in weights]

    def construct(self, x: Any) -> Any:
        for matmul, weight in zip(self.matmuls, self.weights, strict=True):
            x = ops.tanh(matmul(x, weight))
        return x.sum()


def compiled(ranks: int = 1, rows: int = 128, fp8_format: str = "hybrid", **settings: Any) -> Graph:
    net = Net()
    step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
    mode = {"mode": "semi_auto_parallel", "dataset_strategy": "full_batch"} if ranks > 1 else {}
    config = Config(ranks=ranks, fp8_format=fp8_format, **mode, **settings)
    return compile_call(step, (TensorType(FLOAT32, (rows, WIDTH)),), config, global_types=True).graph


def of(kind: type, graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if isinstance(node.op, kind)]


def test_the_first_and_the_last_layer_stay_unless_all_are_asked_for() -> None:
    inner, every = compiled(), compiled(fp8_layers="all")
    assert (len(of(ScaledMatMul, inner)), len(of(MatMul, inner))) == (6, 5)  # data have no gradient
    assert (len(of(ScaledMatMul, every)), len(of(MatMul, every))) == (11, 0)
    for graph, types in ((inner, {"Float8E4M3": 4, "Float8E5M2": 2}), (compiled(fp8_format="e4m3"), {"Float8E4M3": 6})):
        assert Counter(str(node.tensor_type.dtype) for node in of(Quantize, graph)) == types


@pytest.mark.parametrize(
    ("recipe", "shapes"),
    [
        ("tensorwise", {()}),
        ("delayed", {()}),
        ("blockwise", {(128, 2), (2, 2), (1, 256)}),
        ("mxfp8", {(128, 8), (8, 256), (4, 256), (256, 8)}),
    ],
)
def test_scales_are_those_of_the_recipe(recipe: str, shapes: set[tuple[int, ...]]) -> None:
    graph = compiled(fp8_recipe=recipe)
    assert {value.shape for node in of(ScaledMatMul, graph) for value in node.inputs[2:]} == shapes
    assert {node.op.power_of_two for node in of(Float8Scale, graph)} == {recipe == "mxfp8"}
    updates = [node for node in of(Assign, graph) if getattr(node.inputs[0], "name", "") == HISTORY]
    assert len(updates) == (recipe == "delayed")


def test_matmuls_whose_blocks_do_not_fit_stay() -> None:
    graph = compiled(rows=100, fp8_recipe="mxfp8")
    assert len(of(ScaledMatMul, graph)) == 4  # gradients of weights sum along 100 rows


def test_weights_in_slices_are_gathered_in_8_bits() -> None:
    graph = compiled(4, parallel_optimizer=True, parallel_optimizer_threshold=0, optimizer_level="level3")
    sent = Counter(str(node.tensor_type.dtype) for node in of(AllGather, graph))
    assert sent["Float8E4M3"] >= 2, sent
    others = [node for node in of(AllGather, graph) if node.inputs[0].name in ("w0", "w3")]
    assert {node.tensor_type.dtype for node in others} == {FLOAT32}


def test_delayed_scaling_remembers_in_a_cell() -> None:
    net = Net()

    def step(x: Any) -> Any:
        return net(x)

    with pytest.raises(MspcError, match="remembers magnitudes in a cell"):
        compile_call(step, (TensorType(FLOAT32, (128, WIDTH)),), Config(fp8_format="e4m3", fp8_recipe="delayed"))


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("recipe", ["tensorwise", "delayed"])
def test_weights_of_tensor_parallel_layers_are_stored_in_slices(cast: bool, recipe: str) -> None:
    class Wide(Net):
        def construct(self, x: Any) -> Any:
            for matmul, weight in zip(self.matmuls, self.weights, strict=True):
                x = ops.tanh(matmul(x, weight.astype(ms.bfloat16) if cast else weight))
            return x.sum()

    net = Wide()
    for number, matmul in enumerate(net.matmuls):
        matmul.shard(((1, 2), (2, 1)) if number % 2 else ((1, 1), (1, 2)))
    step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
    mode = {"mode": "semi_auto_parallel", "dataset_strategy": "full_batch"}
    config = Config(ranks=2, fp8_format="hybrid", fp8_recipe=recipe, **mode)
    types = (TensorType(BFLOAT16 if cast else FLOAT32, (128, WIDTH)),)
    graph = compile_call(step, types, config, global_types=True).graph
    assert [len(graph.parameter(f"w{i}").layout.dims[1 - i % 2]) for i in range(4)] == [1] * 4
    assert not [node for node in of(AllGather, graph) if node.phase == "update"]
