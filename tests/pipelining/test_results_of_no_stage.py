"""What a loss adds of parameters alone, or of data alone, is of no stage: it equals one device's all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.pipelining.random_networks import run

SCRIPT = """
import numpy as np
import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.communication import get_rank, init

init()
ms.set_auto_parallel_context({settings})


class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.eye(4) * 0.3), name="w")

    def construct(self, x):
        return ops.tanh(x @ self.w)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(), Layer()
        self.other = Parameter(Tensor(np.ones((4, 4))), name="other")

    def construct(self, x, y):
        loss = ops.square(self.second(self.first(x)) - y).mean()
        return {result}


class Parts(nn.Cell):
    def __init__(self, net):
        super().__init__(auto_prefix=False)
        self.net = net

    def construct(self, x, y):
        return self.net(x[:2], y[:2]) + self.net(x[2:], y[2:])


net = Net()
{cell}
step = nn.TrainOneStepCell(cell, nn.Momentum(net.trainable_params(), 0.1, 0.9))
x = np.arange(16).reshape(4, 4) / 8.0
losses = [step(Tensor(x), Tensor(x[::-1] * 0.5)).asnumpy() for _ in range(2)]
values = {{p.name: p.asnumpy() for p in net.get_parameters()}}
np.savez({folder!r} + f"/rank_{{get_rank()}}.npz", loss=losses, **values)
"""
STAGES = "net.first.pipeline_stage, net.second.pipeline_stage = 0, 1\ncell = nn.PipelineCell(net, 2)"


@pytest.mark.parametrize(
    "result",
    ["loss + 0.0 * self.other.sum()", "loss + ops.square(self.other).sum() + y.mean()",
     "0.5 * ops.square(self.other).sum()"],
    ids=["no share of the loss", "of parameters and of data", "of nothing else"],
)  # fmt: skip
def test_a_loss_of_what_is_of_no_stage(tmp_path: Path, result: str) -> None:
    folder = str(tmp_path)
    (alone,) = run(SCRIPT.format(settings="", result=result, cell="cell = Parts(net)", folder=folder), 1, tmp_path)
    settings = "parallel_mode='semi_auto_parallel', dataset_strategy='full_batch', pipeline_stages=2"
    text = SCRIPT.format(settings=settings, result=result, cell=STAGES, folder=folder)
    for rank in run(text, 2, tmp_path):
        for name, wanted in alone.items():
            np.testing.assert_allclose(rank[name], wanted, rtol=0, atol=1e-12, err_msg=name)
