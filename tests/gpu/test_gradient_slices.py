"""Updates that read their gradients where a joined product has left them, on an emulated GPU."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

import mspc
from mspc import Parameter, Tensor, nn, ops
from mspc.ir.graph import Graph, Node
from mspc.runtime.memory import GradientPart, gradient_slices
from tests.compiled_scripts import Config, compile_call
from tests.gpu.test_ranks import steps
from tests.ops.cuda.cuda_emulator import NEEDED
from tests.shares import is_taken

pytestmark = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
ROWS, WIDTHS = 12, (16, 24, 40)


class Joined(nn.Cell):
    """Three products of one operand, two of which others read. widths: columns of the weights; kind: in which they are
    computed."""

    def __init__(self, widths: tuple[int, ...], kind: Any) -> None:
        super().__init__()
        rng = np.random.default_rng(7)
        self.kind = kind
        self.first = Parameter(Tensor(rng.standard_normal((8, 16)).astype(np.float32)), name="first")
        self.weights = [Parameter(Tensor(rng.standard_normal((16, width)).astype(np.float32) / 4), name=f"w{i}")
                        for i, width in enumerate(widths)]  # fmt: skip

    def construct(self, x: Any) -> Any:
        x = ops.tanh(ops.matmul(ops.cast(x, self.kind), ops.cast(self.first, self.kind)))
        made = [ops.matmul(x, ops.cast(weight, self.kind)) for weight in self.weights]
        return sum(ops.reduce_mean(ops.square(ops.cast(each, mspc.float32))) for each in made)


def compiled(optimizer: Callable[[Any], Any], widths: tuple[int, ...], kind: Any) -> tuple[Any, Graph, Any]:
    network = Joined(widths, kind)
    train = nn.TrainOneStepCell(network, optimizer(network.trainable_params()))
    x = np.random.default_rng(8).standard_normal((ROWS, 8)).astype(np.float32)
    found = compile_call(train, (Tensor(x),), Config(device="GPU"))
    return found, found.rank_graph(0), x


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Momentum": lambda weights: nn.Momentum(weights, 0.1, 0.9),
    "Adam": lambda weights: nn.Adam(weights, 0.01),
    "SGD": lambda weights: nn.SGD(weights, 0.1),
}


def in_turn(ways: list[Any]) -> list[tuple[str, Any]]:
    """Every optimizer with one of the ways."""
    pairs = itertools.product(range(len(OPTIMIZERS)), range(len(ways)))
    names = list(OPTIMIZERS)
    return [(names[i], ways[j]) for i, j in pairs if is_taken(i + (len(ways) - 1) * j, len(ways))]


@pytest.mark.parametrize(("name", "kind"), in_turn([mspc.bfloat16, mspc.float16, mspc.float32]), ids=str)
def test_updates_read_columns_where_they_are(name: str, kind: Any, tmp_path: Path) -> None:
    found, graph, x = compiled(OPTIMIZERS[name], WIDTHS, kind)
    slices = gradient_slices(graph)
    assert sorted(part.ranges[1] for part in slices.parts.values()) == [(0, 16), (16, 40), (40, 80)]
    assert {part.ranges[0] for part in slices.parts.values()} == {(0, 16)}
    assert len({part.source for part in slices.parts.values()}) == 1
    check(found, x, tmp_path, 1e-5 if kind == mspc.float32 else 2e-2)


def check(found: Any, x: Any, folder: Path, tolerance: float) -> None:
    """Emulated GPUs and NumPy train to the same losses and parameters."""
    wanted, got = (steps(found, [x], folder, gpu) for gpu in (False, True))
    for (losses, parameters), (also, others) in zip(wanted, got, strict=True):
        np.testing.assert_allclose(also, losses, rtol=tolerance)
        for each, value in parameters.items():
            np.testing.assert_allclose(others[each], value, rtol=tolerance, atol=tolerance / 10, err_msg=each)


def makers(graph: Graph) -> list[Node]:
    slices = gradient_slices(graph)
    return [node for node in graph.nodes if slices.source(node) is not None]


class Dense(nn.Cell):
    """The same of layers, whose weights have a row for each of what they make."""

    def __init__(self, widths: tuple[int, ...], kind: Any) -> None:
        super().__init__()
        rng = np.random.default_rng(9)
        self.kind = kind
        self.first = nn.Dense(8, 16, weight_init=Tensor(rng.standard_normal((16, 8)).astype(np.float32)))
        self.layers = nn.CellList([
            nn.Dense(16, width, weight_init=Tensor(rng.standard_normal((width, 16)).astype(np.float32) / 4))
            for width in widths
        ])  # fmt: skip

    def construct(self, x: Any) -> Any:
        x = ops.tanh(self.first(x))
        return sum(ops.reduce_mean(ops.square(ops.cast(layer(x), mspc.float32))) for layer in self.layers)


@pytest.mark.parametrize(("name", "way"), in_turn([(1, False), (2, False), (2, True)]), ids=str)
def test_updates_read_rows_where_they_are(name: str, way: tuple[int, bool], tmp_path: Path) -> None:
    ranks, wide = way
    network = Dense((16, 24, 40), mspc.bfloat16)
    network.to_float(mspc.bfloat16)
    train = nn.TrainOneStepCell(network, OPTIMIZERS[name](network.trainable_params()))
    x = np.random.default_rng(8).standard_normal((2 * ROWS, 8)).astype(np.float32)
    config = Config(
        ranks=ranks, mode="semi_auto_parallel", dataset_strategy="full_batch", device="GPU", gradient_fp32_sync=wide
    )  # fmt: skip
    found = compile_call(train, (Tensor(x),), config)
    slices = gradient_slices(found.rank_graph(0))
    parts = [(0, 16), (16, 40), (40, 80)]  # of weights and biases
    assert sorted(part.ranges[0] for part in slices.parts.values()) == sorted(2 * parts)
    check(found, x, tmp_path, 2e-2)


def test_columns_that_no_kernel_loads_in_packs_are_made() -> None:
    _, graph, _ = compiled(OPTIMIZERS["Momentum"], (16, 25, 39), mspc.bfloat16)
    assert [gradient_slices(graph).parts[node] for node in makers(graph)] == [GradientPart(ANY, ((0, 16), (0, 16)))]


@pytest.mark.parametrize(("name", "kind"), in_turn([mspc.bfloat16, mspc.float32]), ids=str)
def test_sums_over_ranks_are_cut_apart_by_updates(name: str, kind: Any, tmp_path: Path) -> None:
    network = Joined((16, 16, 16), kind)
    train = nn.TrainOneStepCell(network, OPTIMIZERS[name](network.trainable_params()))
    x = np.random.default_rng(8).standard_normal((2 * ROWS, 8)).astype(np.float32)
    config = Config(
        ranks=2, mode="semi_auto_parallel", dataset_strategy=((2, 1),), device="GPU", gradient_fp32_sync=False
    )  # fmt: skip
    found = compile_call(train, (Tensor(x),), config)
    graph = found.rank_graph(0)
    assert len(gradient_slices(graph).parts) == 3
    (reduction,) = (node for node in graph.nodes if node.op.name == "AllReduce" and len(node.inputs) > 1)
    assert sorted(value.shape for value in reduction.inputs) == [(8, 16), (16, 48)]
    check(found, x, tmp_path, 1e-5 if kind == mspc.float32 else 2e-2)


def test_what_others_read_is_made() -> None:
    class Clipped(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.network = Joined(WIDTHS, mspc.bfloat16)
            self.optimizer = nn.Momentum(self.network.trainable_params(), 0.1, 0.9)
            self.grad = mspc.value_and_grad(self.network, None, self.optimizer.parameters)

        def construct(self, x: Any) -> Any:
            loss, gradients = self.grad(x)
            loss = ops.depend(loss, self.optimizer(ops.clip_by_global_norm(gradients, 1.0)))
            return loss

    x = Tensor(np.ones((ROWS, 8), np.float32))
    graph = compile_call(Clipped(), (x,), Config(device="GPU")).rank_graph(0)
    assert not makers(graph)
