"""Operators that make a tensor of nothing take a strategy of their result."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target
from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Layout
from tests.compiler.sharded_networks import HEAD, compiled

NETWORK = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(16, 16), "w")
        self.zeros, self.concat = P.Zeros().shard({0}), P.Concat(1).shard(((4, 1), (4, 1)))
    def construct(self, x):
        return self.concat((ops.matmul(x, self.w), self.zeros((x.shape[0], 8), x.dtype)))
net = Net()
nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))(
    tensor(16, 16), tensor(16, 24))
"""


def test_zeros_are_sharded_as_their_result(tmp_path: Path) -> None:
    (node,) = (n for n in compiled(tmp_path, NETWORK.format("((4, 1),)")).graph.nodes if n.op.name == "Zeros")
    assert isinstance(node.layout, Layout)
    assert node.layout.strategy == (4, 1)
    script = tmp_path / "again.py"
    script.write_text(HEAD + NETWORK.format("((4, 1),)"))
    verify_target(str(script), CompileOptions(), seed=1)


@pytest.mark.parametrize("strategy", ["((3, 1),)", "((4,),)", "((4, 1), (4, 1))"])
def test_a_strategy_that_does_not_fit_is_refused(strategy: str, tmp_path: Path) -> None:
    with pytest.raises(MspcError, match="Zeros 'zeros'"):
        compiled(tmp_path, NETWORK.format(strategy))
