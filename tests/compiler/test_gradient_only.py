"""A network that is called for its gradients alone: its last operators are shown as they are sharded, but never run."""

from __future__ import annotations

from pathlib import Path

from mspc.compiler.driver import DumpPoint
from mspc.ops.collective.base import Collective
from tests.compiled_scripts import compiled_script

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter
from mindspore.common.initializer import initializer
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, full_batch=True)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(initializer("normal", [32, 16]), "w")
        self.matmul = ops.MatMul().shard(((2, 4), (4, 1)))
        self.relu = ops.ReLU().shard(((2, 4),))
        self.add = ops.Add().shard(((4, 2), (4, 2)))
    def construct(self, x, y):
        return self.add(self.relu(self.matmul(x, self.w)), y)
class Gradients(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.grad = ops.GradOperation(get_all=True)
    def construct(self, x, y):
        return self.grad(self.net)(x, y)
Gradients(Net())(Tensor(np.ones([16, 32]), ms.float32), Tensor(np.ones([16, 16]), ms.float32))
"""


def test_unused_operators_are_shown_but_not_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    names: dict[str, list[str]] = {}

    def note(stage: DumpPoint) -> None:
        names[stage.name] = [node.instance for node in stage.graph.nodes if node.instance]

    compiled = compiled_script(script, 8, look=note)
    graph = compiled.rank_graph(0, note)
    assert names["step_parallel_begin"] == ["matmul", "relu", "add"]
    assert names["slice_to_rank"] == ["matmul", "relu", "add"]
    assert names["execute"] == ["matmul", "relu"]
    needed = [node for node in graph.nodes if isinstance(node.op, Collective) and "'add'" in node.attrs["reason"]]
    assert needed == []
