"""`mint`: each function against NumPy, and a network of its cells on ranks against one device."""

from __future__ import annotations

from pathlib import Path

import pytest

import mspc as ms
from mspc import mint
from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="mint has no 'frobnicate'"):
        _ = mint.frobnicate
    with pytest.raises(AttributeError, match=r"mint\.nn has no 'Conv9d'; did you mean Conv"):
        _ = mint.nn.Conv9d
    with pytest.raises(ValueError, match="GELU: approximate 'erf' is neither 'none' nor 'tanh'"):
        mint.nn.GELU("erf")
    with pytest.raises(ValueError, match="Embedding: max_norm, scale_grad_by_freq and sparse are not supported"):
        mint.nn.Embedding(4, 2, max_norm=1.0)
    assert ms.mint is mint


NETWORK = """
import mindspore as ms, numpy as np
from mindspore import nn, mint, Layout, Tensor
import mindspore.mint.nn.functional as F
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, full_batch=True)
layout = Layout((2, 4), ("dp", "mp"))
random = np.random.default_rng(3)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.embedding = mint.nn.Embedding(32, 16)
        self.norm = mint.nn.LayerNorm(16)
        self.wide = mint.nn.Linear(16, 32)
        self.act = mint.nn.GELU()
        self.narrow = mint.nn.Linear(32, 8, bias=False)
        self.mm = ms.shard(mint.matmul, (layout("dp", "mp"), layout("mp", "None")))
        self.w = ms.Parameter(Tensor(random.normal(size=(8, 8)), ms.float32), "w")
    def construct(self, ids):
        x = self.act(self.wide(self.norm(mint.mean(self.embedding(ids), 1))))
        return mint.nn.functional.log_softmax(self.mm(F.relu(self.narrow(x)), self.w), dim=1)
class Loss(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net, self.loss = net, mint.nn.CrossEntropyLoss()
    def construct(self, ids, labels):
        return self.loss(self.net(ids), labels)
net = Net()
train = nn.TrainOneStepCell(Loss(net), nn.Momentum(net.trainable_params(), 0.1, 0.9))
train(Tensor(random.integers(0, 32, (8, 4)), ms.int32), Tensor(random.integers(0, 8, (8,)), ms.int32))
"""


def test_a_network_of_its_cells(tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text(NETWORK)
    verify_target(str(script), CompileOptions(), seed=1)
