"""A parameter that is read in another layout before and after it changes: the second reader gets the new values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Layout, Parameter, Tensor, nn, ops, reshard
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ir.types import FLOAT32, TensorType
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.executor import Executor

START = np.arange(32, dtype=np.float32).reshape(8, 4)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(START), "w")
        self.product = ops.MatMul().shard(((1, 2), (2, 1)))
        self.replicated = Layout((2,), ("all",))("None", "None")
        self.add = ops.AssignAdd()

    def construct(self, x: Any) -> Any:
        product = self.product(x, self.w)
        before = ops.relu(reshard(self.w, self.replicated))
        self.add(self.w, ops.ones_like(self.w))
        return product, before, ops.relu(reshard(self.w, self.replicated)), self.w


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
def test_the_second_reader_gets_the_new_values(mode: str) -> None:
    config = Config(ranks=2, mode=mode, dataset_strategy="full_batch")
    compiled = compile_call(Net(), [TensorType(FLOAT32, (4, 8))], config)

    def main(comm: LocalComm) -> list[Any]:
        graph = compiled.rank_graph(comm.rank)
        mine = START[graph.parameter("w").tensor_layout.slices_for(comm.rank, START.shape)].copy()
        return Executor(graph, NumPyBackend(comm), {"w": mine}).run([np.ones((4, 8), np.float32)])

    for product, before, after, stored in World(2).run(main):
        np.testing.assert_array_equal(product, np.ones((4, 8)) @ START)
        np.testing.assert_array_equal(before, START)
        np.testing.assert_array_equal(after, START + 1)
        np.testing.assert_array_equal(stored, START + 1)
