"""Finite differences judge gradients where a network has slopes, and leave corners alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target

SCRIPT = """\
import numpy as np, mindspore as ms
from mindspore import nn, ops, Parameter, Tensor
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a = Parameter(Tensor(np.eye(4, dtype=np.float32)))
        self.b = Parameter(Tensor(np.eye(4, dtype=np.float32)))
    def construct(self, x):
        x = ops.relu(ops.matmul(x, self.a))
        return ops.relu(ops.matmul(x, self.b)).sum()
net = Net()
nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))(Tensor(np.ones((8, 4), np.float32)))
"""


def test_a_corner_has_no_slope(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second ReLU is given zeros by the first one, and b moves them to either side."""
    (tmp_path / "net.py").write_text(SCRIPT)
    verify_target(str(tmp_path / "net.py"), CompileOptions(1), 0)
    said = capsys.readouterr().out
    assert "finite differences along 1 random direction\n" in said
    assert "not compared with finite differences: the gradient of b: values have a corner here\n" in said



MEAN = """\
import numpy as np, mindspore as ms
from mindspore import nn, ops, Parameter, Tensor
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a = Parameter(Tensor(np.random.RandomState(1).randn(8, 8) * 0.3, ms.bfloat16))
    def construct(self, x):
        return 0.3 * ops.square(ops.matmul(x, self.a) / 3.0).mean()
net = Net()
step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
step(Tensor(np.random.RandomState(0).randn(48, 8), ms.bfloat16))
"""


def test_a_mean_s_share_is_no_rounded_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In Float64, in which gradients are judged, 1 / 384 is not what BFloat16 holds of it."""
    (tmp_path / "net.py").write_text(MEAN)
    verify_target(str(tmp_path / "net.py"), CompileOptions(1), 0)
    assert "finite differences along 1 random direction" in capsys.readouterr().out
