"""The search looks at equal layers one by one, and refuses what only the run decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.analysis.cost.known_machines import H200
from mspc.api.state import Session
from mspc.engine.capture import capture
from mspc.ir.diagnostics import MspcError
from mspc.search.plans.alternatives import PlanRequest
from mspc.search.plans.table import plans_for

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=4, full_batch=True)


class Layer(nn.Cell):
    @ms.lazy_inline
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((16, 16), np.float32)), name="w")

    def construct(self, x):
        return ops.tanh(ops.matmul(x, self.w))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Layer() for _ in range(3)])

    def construct(self, x):
        BODY
        return x.mean()


net = Net()
step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
step(Tensor(np.ones((8, 16), np.float32)))
"""
LAYERS = "for layer in self.layers: x = layer(x)"
LOOP = "while x.sum() < 5: x = self.layers[0](x) + 1"


def plans(folder: Path, body: str) -> object:
    script = folder / "net.py"
    script.write_text(SCRIPT.replace("BODY", body))
    return plans_for(capture(script, [], Session.of_rank(0, 4)), PlanRequest(4, H200, "", True, 0, ""))


def test_equal_layers_are_searched_one_by_one(tmp_path: Path) -> None:
    assert plans(tmp_path, LAYERS)


def test_a_loop_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match="the search does not weigh what the run decides") as caught:
        plans(tmp_path, LOOP)
    assert caught.value.location is not None
    assert LOOP in caught.value.location.text
