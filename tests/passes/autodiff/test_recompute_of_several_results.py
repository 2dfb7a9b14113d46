"""What a marked cell computes with an operator of several results is computed again with all of them, those, too, that
gradients alone read."""

from __future__ import annotations

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ir.graph import Graph, Node
from mspc.passes.autodiff.recomputable_cells import mark_cells
from mspc.passes.autodiff.recompute import Recompute


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((8,))
        self.weight = Parameter(Tensor(np.ones((8, 8), np.float32)), name="weight")

    def construct(self, x: Tensor) -> Tensor:
        return ops.matmul(self.norm(x), self.weight)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Block(), Block()

    def construct(self, x: Tensor) -> Tensor:
        return ops.square(self.last(self.first(x))).mean()


def saved(graph: Graph, scope: str) -> set[str]:
    """The operators of a cell whose results gradients read of the forward part."""
    found: set[str] = set()
    for node in graph.nodes:
        for value in node.inputs if node.phase != "forward" else ():
            while isinstance(value, Node) and value.op.name == "TupleGetItem":
                value = value.inputs[0]
            if isinstance(value, Node) and value.phase == "forward" and scope in value.scope:
                found.add(value.op.name)
    return found


@pytest.mark.parametrize("way", ["not", "by the script", "by a plan"])
def test_results_that_gradients_alone_read(way: str) -> None:
    network = Net()
    if way == "by the script":
        network.first.recompute()
        network.last.recompute()
    step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
    graph = compile_call(step, (Tensor(np.ones((4, 8), np.float32)),), Config()).graph
    if way == "by a plan":
        assert mark_cells(graph, [f"Default/network-Net/{name}-Block" for name in ("first", "last")]) == []
        Recompute().run(graph)
    assert ("LayerNorm" in saved(graph, "last-Block")) is (way == "not")
