"""Megatron-style plans: pairs of matmuls are found whatever operators are between the weights and the matmuls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mspc as ms
from mspc import Parameter, nn, ops
from mspc.analysis.cost.machine import H200
from mspc.common.initializer import initializer
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, TensorType
from mspc.mindspore_api.context import freeze
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.search.plans.alternatives import PlannedNetwork, PlanRequest, shard_in_pairs


class Pair(nn.Cell):
    """Two matmuls. prepare: computes each weight from a parameter."""

    def __init__(self, prepare: Callable[[Any], Any], shapes: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        self.up, self.down = (Parameter(initializer("normal", shape)) for shape in shapes)
        self.prepare, self.scale = prepare, Parameter(initializer("ones", [1]), name="scale")

    def construct(self, x: Any) -> Any:
        x = x.astype(ms.float16)
        x = ops.gelu(ops.matmul(x, self.prepare(self.up, self).astype(ms.float16)))
        return ops.matmul(x, self.prepare(self.down, self).astype(ms.float16)).sum()


SQUARE = ((64, 64), (64, 64))
PREPARED: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "cast": (lambda w, net: w, SQUARE),
    "scaled": (lambda w, net: w * 2.0, SQUARE),
    "scaled by a parameter": (lambda w, net: w * net.scale, SQUARE),
    "reshaped": (lambda w, net: w.reshape(64, 64), ((8, 8, 64), (64, 8, 8))),
    "transposed": (lambda w, net: w.T, SQUARE),
    "dropped": (lambda w, net: ops.dropout(w, 0.5), SQUARE),
    "normalized": (lambda w, net: w / ops.sqrt(ops.square(w).mean()), SQUARE),
}


def matmuls_in_pairs(network: nn.Cell) -> list[Any]:
    """The strategies of the matmuls, in pairs over 4 of 8 ranks."""
    step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
    captured = CapturedCall(step, (TensorType(FLOAT32, (16, 64)),), freeze(step), Path("net.py"), global_types=True)
    asked = PlanRequest(8, H200, free=True)
    graph = PlannedNetwork.read(captured, asked.config(captured), True).call.traced.graph
    shard_in_pairs(graph, 8, 4)
    return [node.in_strategy for node in graph.nodes if isinstance(node.op, MatMul | BatchMatMul)]


@pytest.mark.parametrize("kind", PREPARED)
def test_operators_on_a_weight_do_not_hide_a_pair(kind: str) -> None:
    assert matmuls_in_pairs(Pair(*PREPARED[kind])) == [((2, 1), (1, 4)), ((2, 4), (4, 1))]


class Scores(nn.Cell):
    """A matmul of two activations, which has no weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(initializer("normal", (64, 64)))

    def construct(self, x: Any) -> Any:
        y = ops.matmul(x, self.weight)
        return ops.matmul(y, (y * self.weight.sum()).T).sum()


def test_a_matmul_of_activations_is_not_sharded() -> None:
    with pytest.raises(MspcError, match="no product of a weight follows on another"):
        matmuls_in_pairs(Scores())
