"""Products whose operands are stored in slices over all ranks, ((a, b), (a, b)), and gathered where they are used."""

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
        self.u, self.v = Parameter(tensor(16, 16), "u"), Parameter(tensor(16, 16), "v")
        self.first, self.second = P.MatMul().shard({0}), P.MatMul().shard({0})
    def construct(self, x):
        return self.second(ops.relu(self.first(x, self.u)), self.v)
net = Net()
nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.1, 0.9))(
    tensor(16, 16), tensor(16, 16))
"""
CUTS = ["((8, 1), (8, 1))", "((1, 8), (1, 8))", "((2, 4), (2, 4))"]


@pytest.mark.parametrize(("cuts", "ranks"), [*((cuts, 8) for cuts in CUTS), ("((2, 2), (2, 2))", 4)])
def test_products_of_stored_slices_equal_one_device(cuts: str, ranks: int, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text((HEAD + NETWORK.format(cuts)).replace("device_num=8", f"device_num={ranks}"))
    verify_target(str(script), CompileOptions(), seed=1)


@pytest.mark.parametrize(("cuts", "stored"), [*zip(CUTS, [(8, 1), (1, 8), (2, 4)], strict=True)])
def test_parameters_are_stored_in_the_slices_of_the_strategy(
    cuts: str, stored: tuple[int, int], tmp_path: Path
) -> None:
    graph = compiled(tmp_path, NETWORK.format(cuts)).graph
    for name in ("u", "v"):
        layout = graph.parameter(name).layout
        assert isinstance(layout, Layout)
        assert layout.strategy == stored


def test_a_strategy_on_fewer_ranks_is_none_of_these(tmp_path: Path) -> None:
    with pytest.raises(MspcError) as caught:
        compiled(tmp_path, NETWORK.format("((4, 1), (4, 1))"))
    assert "dimension 0 of input 1 is sharded into 4 slices, but dimension 1 of input 0 into 1" in str(caught.value)
