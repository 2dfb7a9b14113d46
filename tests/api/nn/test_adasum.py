"""Adaptive summation of gradients and of steps, on simulated ranks beside NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mspc as ms
from mspc import nn
from mspc.commands.run import run_script

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn
from mindspore.communication import get_rank, init

init()
ms.set_auto_parallel_context(parallel_mode="{mode}", device_num=4)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((2, 3), np.float32)), "w")
        self.v = Parameter(Tensor(np.ones((3,), np.float32)), "v")
    def construct(self, x):
        return (self.w * x).sum() + (self.v * x * x).sum()
net = Net()
inner = nn.Momentum(net.trainable_params(), 0.5, 0.9)
step = nn.TrainOneStepCell(net, nn.{cell}(inner))
for round in range(2):
    rows = np.random.default_rng(round).standard_normal((4, 3)).astype(np.float32)
    rows[3] = 0
    step(Tensor(rows[get_rank()]))
if get_rank() == 2:
    np.savez(r"{file}", w=net.w.asnumpy(), v=net.v.asnumpy())
"""


def _pair(g: np.ndarray, h: np.ndarray) -> np.ndarray:
    common = (g * h).sum()
    return sum(x * (1 - common / (2 * (x * x).sum())) if x.any() else x for x in (g, h))


def _sum(values: list[np.ndarray]) -> np.ndarray:
    while len(values) > 1:
        values = [_pair(g, h) for g, h in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _expected(cell: str) -> dict[str, np.ndarray]:
    shapes = {"w": (2, 3), "v": (3,)}
    values = {name: np.ones(shape) for name, shape in shapes.items()}
    moments = {name: [np.zeros(shape)] * 4 for name, shape in shapes.items()}
    for each in range(2):
        rows = np.random.default_rng(each).standard_normal((4, 3)).astype(np.float32).astype(np.float64)
        rows[3] = 0
        grads = {"w": [np.stack([row, row]) for row in rows], "v": [row * row for row in rows]}
        for name, own in grads.items():
            given = own if cell == "AdaSumByDeltaWeightWrapCell" else [_sum(own)] * 4
            moments[name] = [0.9 * moment + grad for moment, grad in zip(moments[name], given, strict=True)]
            steps = [-0.5 * moment for moment in moments[name]]
            values[name] = values[name] + (steps[0] if given is not own else _sum(steps))
    return values


@pytest.mark.parametrize(("mode", "cell"), [
    ("data_parallel", "AdaSumByGradWrapCell"),
    ("hybrid_parallel", "AdaSumByGradWrapCell"),
    ("hybrid_parallel", "AdaSumByDeltaWeightWrapCell"),
])  # fmt: skip
def test_sums_of_four_ranks(tmp_path: Path, mode: str, cell: str) -> None:
    script, file = tmp_path / "train.py", tmp_path / "found.npz"
    script.write_text(SCRIPT.format(mode=mode, cell=cell, file=file))
    run_script(script, 4, simulate=True)
    with np.load(file) as found:
        for name, expected in _expected(cell).items():
            np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)


def _optimizer() -> nn.Optimizer:
    return nn.SGD([ms.Parameter(ms.Tensor(np.ones(2, np.float32)), "w")], 0.1)


@pytest.mark.parametrize(("settings", "cell", "message"), [
    ({}, "AdaSumByGradWrapCell", "adds up what ranks have computed; there is one rank in stand_alone mode"),
    ({"parallel_mode": "semi_auto_parallel", "device_num": 6}, "AdaSumByGradWrapCell",
     "adds up by pairs; 6 ranks are no power of 2"),
    ({"parallel_mode": "semi_auto_parallel", "enable_parallel_optimizer": True}, "AdaSumByGradWrapCell",
     "needs global gradients; with enable_parallel_optimizer ranks have slices"),
    ({"parallel_mode": "data_parallel"}, "AdaSumByDeltaWeightWrapCell",
     "needs each rank's own gradients, which data_parallel mode adds up"),
])  # fmt: skip
def test_where_it_cannot_be(settings: dict[str, object], cell: str, message: str) -> None:
    ms.communication.init()
    ms.set_auto_parallel_context(**settings)
    with pytest.raises(RuntimeError) as error:
        getattr(nn, cell)(_optimizer())
    assert error.value.message == f"{cell} {message}"


def test_whole_gradients_stay(capsys: pytest.CaptureFixture[str]) -> None:
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4)
    nn.AdaSumByGradWrapCell(_optimizer())
    assert "AdaSumByGradWrapCell changes nothing here: in semi_auto_parallel mode" in capsys.readouterr().err
    with pytest.raises(TypeError, match="optimizer must be an Optimizer, not 3"):
        nn.AdaSumByGradWrapCell(3)
